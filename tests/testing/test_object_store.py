"""An object store, which has no directories, passes the suite too."""

import io
import time
import uuid
from collections.abc import Iterable
from typing import BinaryIO

import pytest

from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError, StreamClosedError
from holdfast.locations.adapters import BytesLike, ExclusiveFileSystem, FileOutputStream, FileStatus
from holdfast.testing import ExclusiveFileSystemContract

Objects = dict[str, tuple[bytes, int]]


class ObjectStore:
    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def prepare_directory(self, uri: str, /) -> None:
        pass

    def create(self, uri: str, /) -> FileOutputStream:
        return Upload(self, uri)

    def publish(self, uri: str, data: bytes, /) -> None:
        mine = (bytes(data), time.time_ns() // 1_000_000)
        if self.objects.setdefault(uri, mine) is not mine:
            raise CheckpointConflictError("the object exists", uri)

    def open(self, uri: str, /) -> BinaryIO:
        if uri not in self.objects:
            raise CheckpointNotFoundError("no such object", uri)
        return io.BytesIO(self.objects[uri][0])

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        prefixes = set()
        for name, (data, modified_ms) in list(self.objects.items()):
            if name.startswith(f"{uri}/"):
                first, separator, _ = name.removeprefix(f"{uri}/").partition("/")
                if separator:
                    prefixes.add(f"{uri}/{first}")
                else:
                    yield FileStatus(name, len(data), modified_ms, is_directory=False)
        for prefix in prefixes:
            yield FileStatus(prefix, 0, 0, is_directory=True)

    def delete(self, uris: Iterable[str], /) -> None:
        for uri in uris:
            self.objects.pop(uri, None)

    def delete_empty_directory(self, uri: str, /) -> None:
        pass

    def delete_tree(self, uri: str, /) -> None:
        self.delete([name for name in self.objects if name.startswith(f"{uri}/")])


class Upload:
    def __init__(self, store: ObjectStore, uri: str) -> None:
        self.store = store
        self.uri = uri
        self.parts: list[bytes] | None = []

    def write(self, data: BytesLike, /) -> None:
        self.open_parts().append(bytes(data))

    def sync(self) -> None:
        self.open_parts()

    def commit(self, *, durable_name: bool = True) -> None:
        parts = self.open_parts()
        self.parts = None
        self.store.publish(self.uri, b"".join(parts))

    def abort(self) -> None:
        self.parts = None

    def open_parts(self) -> list[bytes]:
        parts = self.parts
        if parts is None:
            raise StreamClosedError("finished", self.uri)
        return parts


class TestObjectStore(ExclusiveFileSystemContract):
    has_directories = False

    @pytest.fixture
    def objects(self) -> Objects:
        return {}

    @pytest.fixture
    def file_system(self, objects: Objects) -> ExclusiveFileSystem:
        return ObjectStore(objects)

    @pytest.fixture
    def directory(self, objects: Objects) -> str:
        self.objects_now = objects
        return f"objects://bucket/{uuid.uuid4().hex}"

    def files(self, directory: str) -> dict[str, bytes]:
        return {
            uri.removeprefix(f"{directory}/"): data for uri, (data, _) in self.objects_now.items()
        }

    def put(self, uri: str, data: bytes) -> None:
        self.objects_now[uri] = (data, 0)
