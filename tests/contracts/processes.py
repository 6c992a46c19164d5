"""New interpreters and forks that race, die or lack permissions."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
from contracts.patience import HANGS_S

of_many_threads = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def python(source: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an interpreter with pipes as its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(source: str, *arguments: str) -> str:
    """Run a script, which must succeed; returns its output."""
    with python(source, *arguments) as process:
        out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    return out.strip()


def run_in_fork(action: Callable[[], object]) -> int:
    """Run the action in a fork of this process; returns 0 for success, and a signal if it hangs."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)
        status = 1
        with suppress(BaseException):
            action()
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
