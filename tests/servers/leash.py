"""Processes that end with the process that started them, for whatever reason it ends.

This file runs as a third process between the two. When its standard input ends, its parent has ended, after
an interrupt or by `kill -9`; then it kills its child. It has a separate session, so that no signal for the
tests reaches it.
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
def leash(
    command: Sequence[str | Path],
    *,
    directory: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[psutil.Process]:
    """Run a process for the block; afterwards neither it nor any process that it has started runs.

    Args:
        command: The program and its arguments.
        directory: Working directory.
        log: File for its output.
        environment: All of its variables; by default those of this process.
        options: Options of `subprocess.Popen` that JSON can represent.
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
            pid = holder.stdout.readline()
            if not pid or not psutil.pid_exists(int(pid)):
                message = f"{command[0]} does not start: {log.read_text(errors='replace')}"
                raise AssertionError(message)
            yield psutil.Process(int(pid))
        finally:
            holder.stdin.close()
            holder.wait()


def main(options: dict[str, Any]) -> None:
    """Start the process, and kill it as soon as the standard input ends."""
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
    os._exit(0)  # the other thread may still read


def _is_of(session: int, pid: int) -> bool:
    """Return whether a running process belongs to a session, which process groups don't leave."""
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
