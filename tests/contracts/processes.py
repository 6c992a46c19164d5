"""Fresh interpreters that race, die or have no rights."""

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
    """Start an interpreter; it talks through its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(source: str, *arguments: str) -> str:
    """What a script prints; it has to succeed."""
    with python(source, *arguments) as process:
        out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    return out.strip()


def forked(action: Callable[[], object]) -> int:
    """How a fork of this process ends that does it: 0 if it is done, killed if it hangs."""
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
