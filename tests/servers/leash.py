"""Processes that don't outlive the one that has started them, however it ends.

Between the two stands a third: this file as a program. The end of its standard input tells it that who
has started it is gone, be it by an interrupt or by `kill -9`; then it kills what it has started. It has
a session of its own, so that no signal for the tests reaches it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil


@contextmanager
def leashed(
    command: Sequence[str | Path],
    *,
    directory: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[psutil.Process]:
    """A process for the block; behind it neither it nor anything that it has started runs.

    Args:
        command: The program and its arguments.
        directory: Where it works.
        log: What it says.
        environment: All of its variables; by default those of this process.
        options: More of `subprocess.Popen`, which JSON can express.
    """
    started = {"args": [str(word) for word in command], "cwd": str(directory), **options}
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(started)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        ) as holder,
    ):
        assert holder.stdin
        assert holder.stdout
        try:
            said = holder.stdout.readline()
            if not said or not psutil.pid_exists(int(said)):
                message = f"{command[0]} does not start: {log.read_text(errors='replace')}"
                raise AssertionError(message)
            yield psutil.Process(int(said))
        finally:
            holder.stdin.close()
            holder.wait()


def main(options: dict[str, Any]) -> None:
    """Start it, and kill it as soon as nobody holds the other end of the standard input."""
    process = subprocess.Popen(
        **options, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )

    def kill_at_the_end() -> None:
        sys.stdin.buffer.read()
        process.kill()

    threading.Thread(target=kill_at_the_end, daemon=True).start()
    with suppress(BrokenPipeError):  # then it has ended already
        print(process.pid, flush=True)
    process.wait()
    while left := [pid for pid in psutil.pids() if _is_of(process.pid, pid)]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    os._exit(0)  # the other thread may read still


def _is_of(session: int, pid: int) -> bool:
    """Whether a process of a session runs; groups of their own don't lead out of one."""
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
