"""Jobs and files to sweep, in a store with a manual clock."""

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial

import pytest
from contracts import checkpointed_jobs

from holdfast.locations import CompletedCheckpoint
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    FileStateHandle,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import SweepReport
from holdfast.testing import ManualClock

GRACE = 3600.0
"""Seconds of the store's clock, which only moves on demand."""


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    """The clock of `memory://`; each call takes a millisecond."""
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    yield clock
    unregister_file_system("memory")


def shared_of(checkpoint: CompletedCheckpoint) -> FileStateHandle:
    (shared,) = [
        stream
        for stream in checkpoint.metadata.streams()
        if isinstance(stream, FileStateHandle) and "/shared/" in stream.uri
    ]
    return shared


def put(uri: str, data: bytes = b"x") -> str:
    """Write a file that does not belong to a checkpoint; returns its URI."""
    file_system = file_system_for(uri)
    file_system.prepare_directory(uri.rpartition("/")[0])
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()
    return uri


def overwrite(uri: str, data: bytes) -> None:
    file_system_for(uri).delete([uri])
    put(uri, data)


def uris(report: SweepReport) -> set[str]:
    return {file.uri for file in report.files}


write_checkpoint = partial(checkpointed_jobs.write_checkpoint, shared=1)
"""Completes a checkpoint with an exclusive file, a shared one, and files of earlier ones."""


@pytest.fixture
def access(memory_directory: str) -> CheckpointStorageAccess:
    return checkpointed_jobs.job_in(memory_directory)


def age(directory: str, files: Iterable[str], seconds: float) -> None:
    """Set the modification times of files on disk, and of their directories, to the past."""
    then = time.time() - seconds
    for uri in files:
        path = uri.removeprefix("file://")
        os.utime(path, (then, then), follow_symlinks=False)
        os.utime(os.path.dirname(path), (then, then))
