"""Processes of a job: events between them, and programs that end by SIGKILL."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from contracts.patience import RUN_HANGS_S, wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Signals:
    """Events that are files in their own directory: each is there whole or not at all."""

    directory: Path

    def give(self, name: str, text: str = "") -> bool:
        """Let an event happen. Return False if it had happened before."""
        self.directory.mkdir(exist_ok=True)
        hidden = self.directory / f".{name}-{os.getpid()}"
        hidden.write_text(text)
        try:
            os.link(hidden, self.directory / name)
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        return True

    def is_given(self, name: str) -> bool:
        return (self.directory / name).exists()

    def text(self, name: str) -> str:
        """Return the text of an event that has happened."""
        return (self.directory / name).read_text()

    def wait(self, *names: str) -> str:
        """Wait until all of them have happened, and return the text of the last."""
        wait_until(lambda: all(map(self.is_given, names)), f"{names} do not come")
        return self.text(names[-1])


def run_until_killed(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run Python with these arguments and the import path of this process until it is killed. Return its output."""
    status, output = _run(arguments, environment)
    assert status == -signal.SIGKILL, output[-5000:]
    return output


def run_until_done(*arguments: str) -> str:
    """Run Python with these arguments and the import path of this process; it must succeed. Return its output."""
    status, output = _run(arguments)
    assert status == 0, output[-5000:]
    return output


def _run(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    with tempfile.TemporaryFile() as log:  # a pipe would stay open in workers that outlive it
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=RUN_HANGS_S,
            check=False,
        )
        log.seek(0)
        return ended.returncode, log.read().decode(errors="replace")


def wait_until_blocked(
    running: Mapping[str, Future[None]], is_blocked: Callable[[str], bool]
) -> None:
    """Wait until each of the jobs, given by name, is where it is to die; one that ends instead is an error."""
    deadline = time.monotonic() + RUN_HANGS_S / 2
    while late := [name for name in running if not is_blocked(name)]:
        for name in late:
            if running[name].done() and not is_blocked(name):
                running[name].result()
                raise AssertionError(f"job {name} has ended")
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs don't get to where they are to die: {late}")
        time.sleep(0.05)
