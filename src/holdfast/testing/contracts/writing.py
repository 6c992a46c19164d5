"""Helpers of suites: two ways to write a file, and threads that race."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import CheckpointConflictError
from holdfast.locations.file_systems import ExclusiveFileSystem, FileSystem

Write = Callable[[ExclusiveFileSystem, str, bytes], None]
"""Stores bytes under a URI."""


def create_and_commit(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()


def publish(file_system: ExclusiveFileSystem, uri: str, data: bytes) -> None:
    file_system.publish(uri, data)


both_writes = pytest.mark.parametrize("write", [create_and_commit, publish])
"""Runs a test with each of the two as its argument `write`."""


RACERS = 8


def race(attempt: Callable[[int], object]) -> list[bool]:
    """Run an attempt in all racers at once; returns for each whether it won, that is, met no conflict."""
    start = threading.Barrier(RACERS)

    def wins(racer: int) -> bool:
        start.wait()
        try:
            attempt(racer)
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(wins, range(RACERS)))
