"""The two ways to write a file."""

from collections.abc import Callable

import pytest

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
