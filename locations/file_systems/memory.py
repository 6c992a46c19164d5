"""`memory://`: files in the memory of this process, for tests and for jobs without persistence."""

import io
import threading
from collections.abc import Iterable
from typing import BinaryIO

from holdfast.common import SYSTEM_CLOCK, Clock, ProcessLock, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import BytesLike, FileOutputStream, FileStatus

# One store per process, so that a URI is the same file wherever it is resolved.
LOCK = ProcessLock()
FILES: dict[str, tuple[bytes, int]] = {}
"""Content and modification time by URI; all times are in milliseconds since 1970 UTC."""

DIRECTORIES: dict[str, int] = {}
"""Modification time by URI."""


class MemoryFileSystem:
    """A store in memory that behaves like a disk: a file needs an existing directory."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._now_ms = clock.now_ms

    def prepare_directory(self, uri: str, /) -> None:
        with LOCK.current:
            path = uripath.local_path(uri)
            root = uri.removesuffix(path)
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                directory = "/".join((root, *parts[:depth]))
                if directory in FILES:
                    message = "can't create directory: a file has its name"
                    raise InvalidRequestError(message, uri, kind="location")
                DIRECTORIES.setdefault(directory, self._now_ms())

    def create(self, uri: str, /) -> FileOutputStream:
        return _MemoryOutputStream(self, uri)

    def publish(self, uri: str, data: bytes, /) -> None:
        with LOCK.current:
            _require_directory(uri)
            if uri in FILES or uri in DIRECTORIES:
                raise CheckpointConflictError.exists(uri)
            now_ms = self._now_ms()
            FILES[uri] = (bytes(data), now_ms)
            DIRECTORIES[uripath.parent(uri)] = now_ms

    def open(self, uri: str, /) -> BinaryIO:
        with LOCK.current:
            if uri not in FILES:
                raise CheckpointNotFoundError("no such file or directory", uri)
            return io.BytesIO(FILES[uri][0])

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with LOCK.current:
            files = [
                FileStatus(file, len(data), modified_ms, is_directory=False)
                for file, (data, modified_ms) in FILES.items()
                if uripath.parent(file) == uri
            ]
            directories = [
                FileStatus(directory, 0, changed_ms, is_directory=True)
                for directory, changed_ms in DIRECTORIES.items()
                if uripath.parent(directory) == uri
            ]
        return files + directories

    def delete(self, uris: Iterable[str], /) -> None:
        with LOCK.current:
            for uri in uris:
                FILES.pop(uri, None)

    def delete_empty_directory(self, uri: str, /) -> None:
        with LOCK.current:
            if not any(uripath.parent(entry) == uri for entry in (*FILES, *DIRECTORIES)):
                DIRECTORIES.pop(uri, None)

    def delete_tree(self, uri: str, /) -> None:
        with LOCK.current:
            below = uri.rstrip("/") + "/"
            for file in [file for file in FILES if file.startswith(below)]:
                del FILES[file]
            for directory in [each for each in DIRECTORIES if f"{each}/".startswith(below)]:
                del DIRECTORIES[directory]


class _MemoryOutputStream:
    def __init__(self, file_system: MemoryFileSystem, uri: str) -> None:
        with LOCK.current:
            _require_directory(uri)
        self._file_system = file_system
        self._uri = uri
        self._data: bytearray | None = bytearray()
        self._lock = threading.Lock()

    def write(self, data: BytesLike, /) -> None:
        with self._lock:
            self._require_unfinished().extend(memoryview(data).cast("B"))

    def sync(self) -> None:
        with self._lock:
            self._require_unfinished()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # nothing lasts here
        with self._lock:
            data = bytes(self._require_unfinished())
            self._data = None
        self._file_system.publish(self._uri, data)

    def abort(self) -> None:
        with self._lock:
            self._data = None

    def _require_unfinished(self) -> bytearray:
        if self._data is None:
            raise StreamClosedError("stream is finished or discarded", self._uri)
        return self._data


def _require_directory(uri: str) -> None:
    if uripath.parent(uri) not in DIRECTORIES:
        raise CheckpointNotFoundError("no such file or directory", uri)
