"""An object store with entropy in the names of state files, and jobs that write to it."""

import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import pytest
from contracts import checkpointed_jobs

from holdfast.common import uripath
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    FileOutputStream,
    FileStatus,
    MemoryFileSystem,
    PendingUpload,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import memory as store
from holdfast.testing import ManualClock

GRACE = 3600.0
RANDOM = "0123456789abcdef" * 2


class ObjectStore(MemoryFileSystem):
    """Files in memory; directories need no preparation, and uploads may be unfinished."""

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
    """Return the paths of all files in a bucket."""
    return {uri.removeprefix(f"{bucket}/") for uri in store.FILES if uri.startswith(f"{bucket}/")}


write_checkpoint = partial(checkpointed_jobs.write_checkpoint, files=3)
"""Completes a checkpoint with exclusive files, and files of earlier ones."""


@pytest.fixture
def directory(bucket: str) -> str:
    return f"{bucket}/holdfast/_entropy_"


@pytest.fixture
def access(directory: str) -> CheckpointStorageAccess:
    return checkpointed_jobs.job_in(directory)
