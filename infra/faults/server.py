"""A proxy for an S3 server that fails on demand.

    server.py start URL [FAULT]...
    server.py hold URL [FAULT]...
    server.py plan DIRECTORY [FAULT]...
    server.py stop DIRECTORY
    FAULT is WHAT:OPERATION[:WHEN], such as slow-down:PutObject:every-3
      WHAT       lose-answer    the server does it, and the client never hears of it
                 slow-down      the client hears 503 SlowDown, the server nothing
                 reset          the connection is cut, and the server hears nothing
                 delay=SECONDS  the server receives it later
      OPERATION  as S3 calls it, such as UploadPart; or any
      WHEN       3 for the third, 1-3 for the first three, every-3 for each third; else for each

It runs `holdfast.testing.http_faults` in a separate process. `plan` replaces the previous plan,
and counts from one again.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Holdfast, or no pytest), else it failed; the
last line on stderr has the reason.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    MAX_START_S,
    UNAVAILABLE,
    UsageError,
    directory_of,
    is_running,
    new_directory,
    run,
    stop,
)

try:
    from holdfast.errors import InvalidRequestError
    from holdfast.testing import (
        HttpFaults,
        HttpRequest,
        Nth,
        http_faults,
        s3_operation,
        s3_operation_of,
    )
except ImportError as error:
    print(f"this Python has no holdfast[testing,s3]: {error}", file=sys.stderr)
    sys.exit(UNAVAILABLE)

_TICK_S = 0.2
"""Delay of the log, which has a request once it has ended."""

_ANY = "any"

_FAULT = re.compile(
    r"(?P<fault>lose-answer|slow-down|reset|delay=(?P<seconds>\d+(\.\d+)?))"
    r":(?P<operation>\w+)"
    r"(:(?P<when>(?P<first>[1-9]\d*)(-(?P<last>[1-9]\d*))?|every-(?P<step>[1-9]\d*)))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        fault: The fault, without the seconds.
        seconds: How long a delay takes.
        operation: S3 operation of the requests.
        first: Which of these is the first, counted from 1.
        times: For how many in a row; None for all of them from there on.
        step: For each so many-th of them.
    """

    fault: str
    seconds: float
    operation: str
    first: int
    times: int | None
    step: int

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Parse a fault. Raises `UsageError`."""
        match = _FAULT.fullmatch(text)
        if match is None:
            raise UsageError(f"not a fault: {text}")
        first = int(match["first"] or 1)
        last = int(match["last"] or first)
        if last < first:
            raise UsageError(f"ends before it begins: {text}")
        if match["operation"] != _ANY:
            try:
                s3_operation(match["operation"])
            except InvalidRequestError as error:
                raise UsageError(str(error)) from error
        return cls(
            fault=match["fault"].partition("=")[0],
            seconds=float(match["seconds"] or 0),
            operation=match["operation"],
            first=first,
            times=last - first + 1 if match["first"] else None,
            step=int(match["step"] or 1),
        )

    def add_to(self, faults: HttpFaults) -> None:
        """Plan it."""
        nth: Nth = "every" if self.times is None else self.first
        times = self.times or 1
        match self.fault:
            case "lose-answer":
                faults.lose_answer(self._matches(), nth, times=times)
            case "slow-down":
                faults.answer(503, self._matches(), nth, times=times)
            case "reset":
                faults.reset(self._matches(), nth, times=times)
            case _:
                faults.delay(lambda: time.sleep(self.seconds), self._matches(), nth, times=times)

    def _matches(self) -> Callable[[HttpRequest], bool]:
        """A match for its requests, which counts them: asked once for each request."""
        is_meant = _any if self.operation == _ANY else s3_operation(self.operation)
        numbers = itertools.count(1)
        return lambda request: is_meant(request) and next(numbers) % self.step == 0


def _any(_: HttpRequest) -> bool:
    return True


def start(target: str, faults: list[str]) -> dict[str, str]:
    """Start a proxy; returns the values that clients and the other commands need."""
    content = _check_faults(faults)
    directory = new_directory("faults")
    server = None
    try:
        _write(directory / "plan", content)
        with open(directory / "errors", "wb") as errors:
            server = subprocess.Popen(
                [sys.executable, __file__, "serve", str(directory), target],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        _write(directory / "pid", str(server.pid))
        deadline = time.monotonic() + MAX_START_S
        while not (directory / "endpoint").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                log_text = (directory / "errors").read_text(errors="replace").strip()
                sys.exit(log_text.splitlines()[-1] if log_text else "the proxy does not start")
            time.sleep(0.02)
    except BaseException:
        if server is not None:
            server.kill()  # its id may not be written down yet
            server.wait()
        stop(directory)
        raise
    return {"endpoint": (directory / "endpoint").read_text(), "directory": str(directory)}


def plan(directory: Path, faults: list[str]) -> None:
    """Replace the plan of a proxy for all later requests."""
    content = _check_faults(faults)
    try:
        pid = int((directory / "pid").read_text())
    except FileNotFoundError:
        sys.exit("no proxy was started in that directory")
    _write(directory / "plan", content)
    os.kill(pid, signal.SIGHUP)
    while (directory / "plan").exists():
        if not is_running(pid, directory):
            sys.exit("the proxy is no longer running")
        time.sleep(0.02)


def serve(directory: Path, target: str) -> None:
    """Be the proxy, until it is killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    with http_faults(target) as faults, open(directory / "log", "a", buffering=1) as log:
        _take_plan(directory, faults)
        _write(directory / "endpoint", faults.url)
        over: list[HttpRequest] = []
        while True:
            if signal.sigtimedwait({signal.SIGHUP}, _TICK_S):
                _take_plan(directory, faults)
            log.writelines(f"{_line(request)}\n" for request in over)
            # Old requests have ended, if they ever end, and are dropped, because the proxy may run for days.
            over = faults.requests[:]
            del faults.requests[: len(over)]


def _take_plan(directory: Path, faults: HttpFaults) -> None:
    faults.clear()
    for line in (directory / "plan").read_text().splitlines():
        Fault.parse(line).add_to(faults)
    (directory / "plan").unlink()  # shows that it was read


def _line(request: HttpRequest) -> str:
    status = "-" if request.status is None else str(request.status)
    performed = "done" if request.performed else "not done"
    return f"{status} {performed} {s3_operation_of(request)} {request.path}"


def _check_faults(faults: list[str]) -> str:
    for fault in faults:
        Fault.parse(fault)
    return "\n".join(faults)


def _write(path: Path, content: str) -> None:
    """Write a file that appears whole."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(content)
    new.replace(path)


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["start", target, *faults]:
            return start(target, faults)
        case ["plan", directory, *faults]:
            plan(directory_of(directory, "faults"), faults)
        case ["serve", directory, target]:
            serve(directory_of(directory, "faults"), target)
        case ["stop", directory]:
            stop(directory_of(directory, "faults"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)
