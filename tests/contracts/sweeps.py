"""Jobs and files that tests sweep, in a store whose clock they move."""

import os
import time
import uuid
from collections.abc import Iterable, Iterator

import pytest
from contracts.values import EXCLUSIVE, read

from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    SweepReport,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    FileStateHandle,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.testing import ManualClock, metadata_of

SHARED = CheckpointedStateScope.SHARED
GRACE = 3600.0
"""Seconds, of the store's clock; which moves when it is told to."""


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    """The clock of `memory://`; each look at it takes a millisecond."""
    clock = ManualClock(tick_ms=1)
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    yield clock
    unregister_file_system("memory")


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, savepoint_directory=f"{directory}/savepoints"
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


def write(
    location: CheckpointStorageLocation,
    data: bytes = b"state",
    scope: CheckpointedStateScope = EXCLUSIVE,
) -> FileStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess, checkpoint_id: int, *shared: FileStateHandle
) -> CompletedCheckpoint:
    """A checkpoint with an exclusive file, a shared one, and those of others."""
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    streams = (write(location), write(location, b"shared", SHARED), *shared)
    metadata = metadata_of(*streams, checkpoint_id=checkpoint_id, commit_token=uuid.uuid4().hex)
    return complete_checkpoint(location, metadata)


def shared_of(checkpoint: CompletedCheckpoint) -> FileStateHandle:
    (shared,) = [
        stream
        for stream in checkpoint.metadata.streams()
        if isinstance(stream, FileStateHandle) and "/shared/" in stream.uri
    ]
    return shared


def files_below(directory: str) -> set[str]:
    """Every file below a directory, by URI."""
    files = set()
    for entry in file_system_for(directory).list(directory):
        files |= files_below(entry.uri) if entry.is_directory else {entry.uri}
    return files


def directories_below(directory: str) -> set[str]:
    directories = set()
    for entry in file_system_for(directory).list(directory):
        if entry.is_directory:
            directories |= {entry.uri} | directories_below(entry.uri)
    return directories


def put(uri: str, data: bytes = b"x") -> str:
    """A file that nobody of us wrote."""
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


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    """It is found, and all its files are what was written."""
    loaded = load_checkpoint(checkpoint.location)
    assert loaded.metadata == checkpoint.metadata
    for stream in loaded.metadata.streams():
        assert len(read(stream)) == stream.size


def uris(report: SweepReport) -> set[str]:
    return {file.uri for file in report.files}


@pytest.fixture
def access(memory_directory: str) -> CheckpointStorageAccess:
    return job_in(memory_directory)


def age(directory: str, files: Iterable[str], seconds: float) -> None:
    """Let files on disk have been written long ago, and the directories that they are in."""
    then = time.time() - seconds
    for uri in files:
        path = uri.removeprefix("file://")
        os.utime(path, (then, then), follow_symlinks=False)
        os.utime(os.path.dirname(path), (then, then))
