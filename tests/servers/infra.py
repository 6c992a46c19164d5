"""Commands of `infra/`, called with the Python of the tests."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

_INFRA = Path(__file__).parents[2] / "infra"

UNAVAILABLE = 3
"""Status of `start` where such a server can't run."""


@contextmanager
def running(kind: str, *arguments: str) -> Iterator[dict[str, str]]:
    """Run a server of `infra/<kind>`; yields the values that its clients need.

    It is stopped after the block, and also if this process ends within the block for any reason. If it
    can't run, the test is skipped with the reason.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [_INFRA / kind / "hold", *arguments],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # else an interrupt of the tests would reach it too
        ) as holder,
    ):
        assert holder.stdin
        assert holder.stdout
        try:
            values = "".join(takewhile(str.strip, holder.stdout))
            if values:
                yield dict(word.split("=", 1) for word in shlex.split(values))
        finally:
            holder.stdin.close()
            status = holder.wait()
        if status:
            errors.seek(0)
            complaint = errors.read()
            if status == UNAVAILABLE:
                pytest.skip(complaint.strip().splitlines()[-1])
            pytest.fail(complaint)


def run(kind: str, command: str, *arguments: str) -> None:
    """Call a command, which must succeed."""
    done = call(kind, command, *arguments)
    assert done.returncode == 0, f"{command} {' '.join(arguments)}: {done.stderr}{done.stdout}"


def call(kind: str, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call a command, and return its result."""
    return subprocess.run(
        [_INFRA / kind / command, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}
