"""A store of objects whose state files are spread, and jobs that write into it."""

import uuid
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest
from contracts.values import EXCLUSIVE, read

from holdfast.common import uripath
from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    FileOutputStream,
    FileStateHandle,
    FileStatus,
    MemoryFileSystem,
    PendingUpload,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import memory as store
from holdfast.locations.storages import entropy
from holdfast.testing import ManualClock, metadata_of

SHARED = CheckpointedStateScope.SHARED
GRACE = 3600.0
RANDOM = "0123456789abcdef" * 2


class ObjectStore(MemoryFileSystem):
    """Files in memory without directories to prepare, and uploads that may never be finished."""

    uploads: ClassVar[list[PendingUpload]] = []
    listed: ClassVar[list[str]] = []

    def create(self, uri: str, /) -> FileOutputStream:
        self.prepare_directory(uripath.parent(uri))
        return super().create(uri)

    def publish(self, uri: str, data: bytes, /) -> None:
        self.prepare_directory(uripath.parent(uri))
        super().publish(uri, data)

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        self.listed.append(uri)
        return super().list(uri)

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        return [upload for upload in self.uploads if upload.uri.startswith(f"{uri.rstrip('/')}/")]

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        for upload in uploads:
            self.uploads.remove(upload)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[str]:
    """URI of an empty bucket."""
    monkeypatch.setattr(ObjectStore, "uploads", [])
    monkeypatch.setattr(ObjectStore, "listed", [])
    register_file_system("objects", lambda: ObjectStore(clock))
    bucket = f"objects://{uuid.uuid4().hex}"
    yield bucket
    MemoryFileSystem().delete_tree(bucket)
    unregister_file_system("objects")


def files_in(bucket: str) -> set[str]:
    """Paths of all files in a bucket."""
    return {uri.removeprefix(f"{bucket}/") for uri in store._FILES if uri.startswith(f"{bucket}/")}


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory,
        inline_threshold=0,
        savepoint_directory=f"{entropy.without_marker(directory)}/savepoints",
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


@pytest.fixture
def directory(bucket: str) -> str:
    return f"{bucket}/holdfast/_entropy_"


@pytest.fixture
def access(directory: str) -> CheckpointStorageAccess:
    return job_in(directory)


def write(
    location: CheckpointStorageLocation, scope: CheckpointedStateScope = EXCLUSIVE
) -> FileStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(b"state")
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess, checkpoint_id: int, *reused: FileStateHandle, files: int = 3
) -> CompletedCheckpoint:
    """A checkpoint with exclusive files, and those of others."""
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    streams = (*(write(location) for _ in range(files)), *reused)
    metadata = metadata_of(*streams, checkpoint_id=checkpoint_id)
    return complete_checkpoint(location, metadata)


def files_of(checkpoint: CompletedCheckpoint) -> list[FileStateHandle]:
    return [
        stream for stream in checkpoint.metadata.streams() if isinstance(stream, FileStateHandle)
    ]


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    loaded = load_checkpoint(checkpoint.location)
    assert loaded.metadata == checkpoint.metadata
    for stream in loaded.metadata.streams():
        assert read(stream) == b"state"
