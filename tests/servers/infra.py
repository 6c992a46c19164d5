"""Calls the commands of `infra/`, with the Python of the tests."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_INFRA = Path(__file__).parents[2] / "infra"

_UNAVAILABLE = 3
"""What `start` exits with where there can be no such server."""


@contextmanager
def started(kind: str, *arguments: str) -> Iterator[dict[str, str]]:
    """What a server of `infra/<kind>` says to those who use it; it is stopped behind the block.

    Where there can be none, the test is skipped and says why.
    """
    start = call(kind, "start", *arguments)
    if start.returncode == _UNAVAILABLE:
        pytest.skip(start.stderr.strip().splitlines()[-1])
    assert start.returncode == 0, start.stderr
    known = dict(word.split("=", 1) for word in shlex.split(start.stdout))
    directory = known["directory"]  # callers may take it out
    try:
        yield known
    finally:
        run(kind, "stop", directory)


def run(kind: str, command: str, *arguments: str) -> None:
    """Call a command that must not fail."""
    done = call(kind, command, *arguments)
    assert done.returncode == 0, f"{command} {' '.join(arguments)}: {done.stderr}{done.stdout}"


def call(kind: str, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call a command, and say what came of it."""
    return subprocess.run(
        [_INFRA / kind / command, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
