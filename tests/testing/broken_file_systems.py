"""File systems with one bug each, and the suite on each of them; only test_suites.py runs it.

A class is named after its bug. The first has none.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, BinaryIO

import pytest

from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError, StreamClosedError
from holdfast.locations import FileSystemCheckpointStorage, checkpoint_storage
from holdfast.locations.adapters import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    MemoryFileSystem,
    file_system_for,
)
from holdfast.locations.file_systems import memory as store
from holdfast.locations.storages import (
    FileSystemCheckpointStorageAccess,
    FileSystemCheckpointStorageLocation,
)
from holdfast.testing import CheckpointStorageContract, ExclusiveFileSystemContract


class OnMemory(ExclusiveFileSystemContract):
    Adapter: type[Any] = MemoryFileSystem

    @pytest.fixture
    def file_system(self) -> Any:
        return self.Adapter()

    @pytest.fixture
    def directory(self, memory_directory: str) -> str:
        return memory_directory

    def files(self, directory: str) -> dict[str, bytes]:
        return {
            uri.removeprefix(f"{directory}/"): data
            for uri, (data, _) in list(store.FILES.items())
            if uri.startswith(f"{directory}/")
        }

    def put(self, uri: str, data: bytes) -> None:
        store.FILES[uri] = (data, 0)


class TestNothing(OnMemory):
    pass


# Two writers of one name


class TestPublishReplaces(OnMemory):
    class Adapter(MemoryFileSystem):
        def publish(self, uri: str, data: bytes, /) -> None:
            self.delete([uri])
            super().publish(uri, data)


class TestPublishChecksBeforeWriting(OnMemory):
    class Adapter(MemoryFileSystem):
        def publish(self, uri: str, data: bytes, /) -> None:
            if uri in store.FILES or uri in store.DIRECTORIES:
                raise CheckpointConflictError("exists already", uri)
            time.sleep(0.01)
            self.delete([uri])
            super().publish(uri, data)


class TestPublishAcceptsEqualBytes(OnMemory):
    class Adapter(MemoryFileSystem):
        def publish(self, uri: str, data: bytes, /) -> None:
            try:
                super().publish(uri, data)
            except CheckpointConflictError:
                if store.FILES.get(uri, (b"",))[0] != data:
                    raise


class TestPublishMissing(OnMemory):
    class Adapter:
        def __init__(self) -> None:
            inner = MemoryFileSystem()
            for call in ("prepare_directory", "create", "open", "list", "delete", "delete_tree"):
                setattr(self, call, getattr(inner, call))
            self.delete_empty_directory = inner.delete_empty_directory


# Files in progress


class Stream:
    """Collects bytes and publishes them under its name."""

    def __init__(self, uri: str) -> None:
        if uri.rpartition("/")[0] not in store.DIRECTORIES:
            raise CheckpointNotFoundError("no such directory", uri)
        self.uri = uri
        self.data = bytearray()
        self.finished = False

    def write(self, data: BytesLike, /) -> None:
        self.check()
        self.data += memoryview(data).cast("B")

    def sync(self) -> None:
        self.check()

    def commit(self, *, durable_name: bool = True) -> None:
        self.check()
        self.finished = True
        MemoryFileSystem().publish(self.uri, bytes(self.data))

    def abort(self) -> None:
        self.finished = True

    def check(self) -> None:
        if self.finished:
            raise StreamClosedError("finished", self.uri)


def adapter_with(stream: type[Any]) -> type[MemoryFileSystem]:
    """Return a file system that creates files by a class of streams."""

    class Adapter(MemoryFileSystem):
        def create(self, uri: str, /) -> FileOutputStream:
            created: FileOutputStream = stream(uri)
            return created

    return Adapter


class TestCommitReplaces(OnMemory):
    class BrokenStream(Stream):
        def commit(self, *, durable_name: bool = True) -> None:
            MemoryFileSystem().delete([self.uri])
            super().commit()

    Adapter = adapter_with(BrokenStream)


class TestCommitLosesTheEnd(OnMemory):
    class BrokenStream(Stream):
        def commit(self, *, durable_name: bool = True) -> None:
            del self.data[1 << 20 :]
            super().commit()

    Adapter = adapter_with(BrokenStream)


class TestCommitLosesSyncedBytes(OnMemory):
    class BrokenStream(Stream):
        def sync(self) -> None:
            super().sync()
            self.data.clear()

    Adapter = adapter_with(BrokenStream)


class TestSecondCommitSucceeds(OnMemory):
    class BrokenStream(Stream):
        def check(self) -> None:
            pass

        def commit(self, *, durable_name: bool = True) -> None:
            if not self.finished:
                super().commit()

    Adapter = adapter_with(BrokenStream)


class TestCommitIgnoresAbort(OnMemory):
    class BrokenStream(Stream):
        def commit(self, *, durable_name: bool = True) -> None:
            self.check()
            time.sleep(0)  # it may be aborted here
            MemoryFileSystem().publish(self.uri, bytes(self.data))
            self.check()
            self.finished = True

    Adapter = adapter_with(BrokenStream)


class TestCreateShowsName(OnMemory):
    class Adapter(MemoryFileSystem):
        def create(self, uri: str, /) -> FileOutputStream:
            stream = super().create(uri)
            store.FILES.setdefault(uri, (b"", 0))
            return stream


class TestSyncShowsFile(OnMemory):
    class BrokenStream(Stream):
        def sync(self) -> None:
            super().sync()
            store.FILES[self.uri] = (bytes(self.data), 0)

    Adapter = adapter_with(BrokenStream)


class TestSyncSucceedsAfterCommit(OnMemory):
    class BrokenStream(Stream):
        def sync(self) -> None:
            pass

    Adapter = adapter_with(BrokenStream)


class TestAbortLeavesFile(OnMemory):
    class BrokenStream(Stream):
        def abort(self) -> None:
            if not self.finished:
                self.finished = True
                store.FILES[f"{self.uri}.part"] = (bytes(self.data), 0)

    Adapter = adapter_with(BrokenStream)


class TestAbortDeletesCommittedFile(OnMemory):
    class BrokenStream(Stream):
        def abort(self) -> None:
            super().abort()
            MemoryFileSystem().delete([self.uri])

    Adapter = adapter_with(BrokenStream)


class TestWriteIgnoresAbort(OnMemory):
    class BrokenStream(Stream):
        def write(self, data: BytesLike, /) -> None:
            self.data += memoryview(data).cast("B")

    Adapter = adapter_with(BrokenStream)


class TestWriteKeepsBuffer(OnMemory):
    class BrokenStream(Stream):
        def __init__(self, uri: str) -> None:
            super().__init__(uri)
            self.parts: list[BytesLike] = []

        def write(self, data: BytesLike, /) -> None:
            self.check()
            self.parts.append(data)

        def commit(self, *, durable_name: bool = True) -> None:
            for part in self.parts:
                self.data += memoryview(part).cast("B")
            super().commit()

    Adapter = adapter_with(BrokenStream)


class TestFilesShareTemporaryName(OnMemory):
    class BrokenStream(Stream):
        shared = bytearray()

        def __init__(self, uri: str) -> None:
            super().__init__(uri)
            self.shared.clear()
            self.data = self.shared

    Adapter = adapter_with(BrokenStream)


# Directories


class TestListOmitsSizes(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            return [replace(entry, size=0) for entry in super().list(uri)]


class TestListGivesSeconds(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            return [
                replace(entry, modified_ms=entry.modified_ms // 1000) for entry in super().list(uri)
            ]


class TestListGivesNames(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            return [replace(entry, uri=entry.uri.rpartition("/")[2]) for entry in super().list(uri)]


class TestListRecurses(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            entries = list(super().list(uri))
            below = [self.list(entry.uri) for entry in entries if entry.is_directory]
            return [*entries, *(entry for entries in below for entry in entries)]


class TestListEndsAfterFirstPage(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            return list(super().list(uri))[:1000]


class TestListRequiresDirectory(OnMemory):
    class Adapter(MemoryFileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            if uri not in store.DIRECTORIES:
                raise CheckpointNotFoundError("no such directory", uri)
            return super().list(uri)


class TestDeleteFailsForMissingFiles(OnMemory):
    class Adapter(MemoryFileSystem):
        def delete(self, uris: Iterable[str], /) -> None:
            for uri in uris:
                del store.FILES[uri]


class TestDeleteStopsAtMissingFile(OnMemory):
    class Adapter(MemoryFileSystem):
        def delete(self, uris: Iterable[str], /) -> None:
            for uri in uris:
                if store.FILES.pop(uri, None) is None:
                    return


class TestDeleteExpandsPatterns(OnMemory):
    class Adapter(MemoryFileSystem):
        def delete(self, uris: Iterable[str], /) -> None:
            for uri in uris:
                prefix = uri.removesuffix("*")
                files = [file for file in store.FILES if file.startswith(prefix)]
                super().delete(files if uri.endswith("*") else [uri])


class TestDeleteTreeMatchesPrefix(OnMemory):
    class Adapter(MemoryFileSystem):
        def delete_tree(self, uri: str, /) -> None:
            for entries in (store.FILES, store.DIRECTORIES):
                for entry in [entry for entry in entries if entry.startswith(uri)]:
                    del entries[entry]


class TestDeleteEmptyDirectoryDeletesFiles(OnMemory):
    class Adapter(MemoryFileSystem):
        def delete_empty_directory(self, uri: str, /) -> None:
            self.delete_tree(uri)


class TestPrepareDirectoryCreatesOneLevel(OnMemory):
    class Adapter(MemoryFileSystem):
        def prepare_directory(self, uri: str, /) -> None:
            store.DIRECTORIES[uri] = 0


# Reading


class TestOpenRaisesFileNotFoundError(OnMemory):
    class Adapter(MemoryFileSystem):
        def open(self, uri: str, /) -> BinaryIO:
            try:
                return super().open(uri)
            except CheckpointNotFoundError as error:
                raise FileNotFoundError(uri) from error


class TestOpenSharesOnePosition(OnMemory):
    class Adapter(MemoryFileSystem):
        def __init__(self) -> None:
            super().__init__()
            self.opened: dict[str, BinaryIO] = {}
            self.lock = threading.Lock()

        def open(self, uri: str, /) -> BinaryIO:
            with self.lock:
                opened = self.opened.get(uri)
                if opened is None or opened.closed:
                    opened = self.opened[uri] = super().open(uri)
                return opened


# Storages


class OnFileSystem(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, memory_directory: str) -> FileSystemCheckpointStorage:
        storage = checkpoint_storage(memory_directory)
        assert isinstance(storage, FileSystemCheckpointStorage)
        return storage

    def files(self, storage: Any) -> set[str]:
        return {uri for uri in store.FILES if uri.startswith(f"{storage.directory}/job/chk-")}


class TestDisposeOnFailureDeletesAll(OnFileSystem):
    @pytest.fixture(autouse=True)
    def bug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def dispose(self: FileSystemCheckpointStorageLocation) -> None:
            file_system_for(self.external_pointer).delete_tree(self.external_pointer)

        monkeypatch.setattr(FileSystemCheckpointStorageLocation, "dispose_on_failure", dispose)


class TestDisposeOnFailureDeletesNothing(OnFileSystem):
    @pytest.fixture(autouse=True)
    def bug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            FileSystemCheckpointStorageLocation, "dispose_on_failure", lambda self: None
        )


class TestDisposeOnFailureLeavesSharedFiles(OnFileSystem):
    @pytest.fixture(autouse=True)
    def bug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = FileSystemCheckpointStorageLocation.dispose_on_failure

        def dispose(self: FileSystemCheckpointStorageLocation) -> None:
            self.publication.may_have_succeeded = True
            real(self)

        monkeypatch.setattr(FileSystemCheckpointStorageLocation, "dispose_on_failure", dispose)


class TestCheckpointsSortedAsText(OnFileSystem):
    @pytest.fixture(autouse=True)
    def bug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = FileSystemCheckpointStorageAccess.completed_checkpoints

        def sort_as_text(self: FileSystemCheckpointStorageAccess) -> dict[int, Any]:
            return dict(sorted(real(self).items(), key=lambda item: str(item[0])))

        monkeypatch.setattr(
            FileSystemCheckpointStorageAccess, "completed_checkpoints", sort_as_text
        )
