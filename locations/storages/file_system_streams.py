"""Streams of state and metadata into files."""

import io
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamClosedError,
)
from holdfast.locations.checksums import Checksum, ChecksumBuilder, checksum_of
from holdfast.locations.file_systems import (
    ABORT_DEADLINE_S,
    BytesLike,
    CopyingFileSystem,
    FileOutputStream,
    LinkingFileSystem,
    file_system_for,
    publish,
    retry_deadline,
)
from holdfast.locations.handles import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.storages.completed import FileSystemCompletedCheckpointStorageLocation
from holdfast.locations.storages.contract import (
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
)
from holdfast.locations.storages.layout import METADATA_FILE, inject_entropy

_log = logging.getLogger(__name__)


class FileSystemCheckpointStateOutputStream(CheckpointStateOutputStream):
    """State that is in its handle while it is small, and in a file otherwise.

    Args:
        path_prefix: URI to which a random name is appended; its directory must exist. The marker
            in it is replaced by the start of that name. None if state must not become a file.
        inline_threshold: Maximum number of bytes in the handle; 0 makes every state a file.
        buffer_bytes: Maximum number of buffered bytes, at least `inline_threshold`.
        durable_name: Whether the file's name must be made durable, because no file will be published in its directory.

    Source:
        Flink, FsCheckpointStreamFactory.FsCheckpointStateOutputStream and
        MemCheckpointStreamFactory.MemoryCheckpointOutputStream. Differences: the success call closes an empty
        stream, too; the handle has a checksum; a buffer without room for the next bytes is written as it
        is instead of being filled up first; the first byte beyond the limit of memory fails, not the success call.
    """

    def __init__(
        self,
        path_prefix: str | None,
        *,
        inline_threshold: int,
        buffer_bytes: int = 0,
        durable_name: bool = False,
    ) -> None:
        self._path_prefix = path_prefix
        self._durable_name = durable_name
        self._uri = ""
        self._inline_threshold = inline_threshold
        self._buffer_bytes = max(buffer_bytes, inline_threshold)
        self._buffer = io.BytesIO()
        self._file: FileOutputStream | None = None
        self._file_bytes = 0
        self._checksum = ChecksumBuilder()
        self._adopted: Checksum | None = None
        self._lock = threading.Lock()  # held for moments only: `close` never waits for the store
        self._discarded = False

    def write(self, data: BytesLike, /) -> int:
        self._check_open()
        view = memoryview(data).cast("B")
        if self._buffer.tell() + len(view) > self._buffer_bytes:
            if self._path_prefix is None:
                message = (
                    f"state has more than {self._inline_threshold} bytes, the maximum of memory storage; use a "
                    "checkpoint directory"
                )
                raise InvalidRequestError(message, kind="setting")
            self.flush_to_file()
        if len(view) >= self._buffer_bytes and self._path_prefix is not None:
            with self._closed_on_failure():
                self._write_file(view)
        else:
            self._buffer.write(view)
        return len(view)

    def adopt(self, path: str, size: int, checksum: Checksum, /) -> bool:
        self._check_open()
        if self.tell() or size <= self._inline_threshold or self._path_prefix is None:
            return False
        uri = self._new_uri()
        file_system = file_system_for(uri).inner
        if not isinstance(file_system, LinkingFileSystem):
            return False
        try:
            file = file_system.link(path, uri)
        except CheckpointError:  # if the directory is the cause, writing fails, too
            return False
        self._begin(uri, file)
        self._file_bytes = size
        self._adopted = checksum
        return True

    def adopt_stored(self, source: FileStateHandle, /) -> bool:
        self._check_open()
        if self.tell() or source.size <= self._inline_threshold or self._path_prefix is None:
            return False
        uri = self._new_uri()
        store = file_system_for(uri)
        inner = store.inner
        if source.checksum is None or file_system_for(source.uri) is not store:
            return False
        if isinstance(inner, LinkingFileSystem):
            return self.adopt(uripath.local_path(source.uri), source.size, source.checksum)
        if not isinstance(inner, CopyingFileSystem):
            return False
        copy = _StoredCopy(uri)
        self._begin(uri, copy)
        try:
            store.retrier.call("copy", lambda: inner.copy(source.uri, uri))
            self._check_open()  # another thread may have closed the stream before the file was there
        except CheckpointError as error:
            _log.warning("a file is not copied by the store, so its bytes are written: %s", error)
            with self._lock:
                self._file, self._uri = None, ""
            copy.abort()
            return False
        except BaseException:
            self.close()
            raise
        self._file_bytes = source.size
        self._adopted = source.checksum
        return True

    def flush(self) -> None:
        self._check_open()
        if self.tell() > self._inline_threshold:
            self.flush_to_file()

    def flush_to_file(self) -> None:
        self._check_open()
        if self._path_prefix is None:
            return
        with self._closed_on_failure():
            buffered, self._buffer = self._buffer, io.BytesIO()
            self._write_file(buffered.getvalue())

    def sync(self) -> None:
        self._check_open()
        if self._file is not None:
            with self._closed_on_failure():
                self._file.sync()

    def tell(self) -> int:
        return self._file_bytes + self._buffer.tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        with self._lock:
            self._check_open()
            self._finished = True
            rest, self._buffer = self._buffer.getvalue(), io.BytesIO()
        if self._file is None and len(rest) <= self._inline_threshold:
            return ByteStreamStateHandle(rest) if rest else None
        try:
            self._write_file(rest)
            if self._file is not None:
                self._file.commit(durable_name=self._durable_name)
        finally:
            self.close()  # deletes a file that was not committed, and only such a one
        checksum = self._adopted or self._checksum.finish()
        return FileStateHandle(self._uri, self._file_bytes, checksum)

    def close(self) -> None:
        with self._lock:
            self._finished = self._discarded = True
            self._buffer = io.BytesIO()
            file = self._file
        if file is not None:
            file.abort()

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """Write in this block; after a failure the stream is closed: the length of the file is unknown."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _write_file(self, data: BytesLike) -> None:
        if not data:
            return
        if self._file is None:
            uri = self._new_uri()
            self._begin(uri, file_system_for(uri).create(uri))
        assert self._file is not None
        self._file.write(data)
        self._checksum.update(data)
        self._file_bytes += len(data)

    def _new_uri(self) -> str:
        name = os.urandom(16).hex()
        return inject_entropy(f"{self._path_prefix}{name}", name)

    def _begin(self, uri: str, file: FileOutputStream) -> None:
        with self._lock:
            discarded, self._file, self._uri = self._discarded, file, uri
        if discarded:  # by another thread, which saw no file
            file.abort()

    def _check_open(self) -> None:
        if self._finished:
            message = "state stream is closed or discarded already"
            raise StreamClosedError(message, self._uri or self._path_prefix or "")


class _StoredCopy:
    """A file that the store has copied, or is copying."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._is_committed = False

    def write(self, _data: BytesLike, /) -> None:
        raise StreamClosedError("a copy in the store can't be written to", self._uri)

    def sync(self) -> None:
        """Do nothing: a copy is durable."""

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # names are always durable
        self._is_committed = True

    def abort(self) -> None:
        if not self._is_committed:
            with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
                file_system_for(self._uri).delete([self._uri])


@dataclass(slots=True)
class Publication:
    """A pending location's knowledge about its `_metadata`.

    Attributes:
        is_under_way: Whether the store was asked to publish it and has not reported the outcome: it may still
            do so, even long after an interrupt.
        may_have_succeeded: Whether another driver may have found it and resumed from it, even if it is deleted now.
    """

    is_under_way: bool = False
    may_have_succeeded: bool = False

    @contextmanager
    def note_request(self) -> Iterator[None]:
        """Note that this block asks the store to publish."""
        could_before = self.may_have_succeeded
        self.is_under_way = self.may_have_succeeded = True
        try:
            yield
        except OutcomeUnknownError:
            raise
        except CheckpointError as error:
            self.is_under_way = False
            # It may conflict with itself, published by a request whose answer was lost.
            is_conflict = isinstance(error, CheckpointConflictError)
            self.may_have_succeeded = could_before or is_conflict
            raise
        self.is_under_way = False


class FileSystemCheckpointMetadataOutputStream(CheckpointMetadataOutputStream):
    """The `_metadata` file of a directory: buffered, because it is small, and published in one exclusive step."""

    def __init__(self, directory: str, *, single_writer: bool, publication: Publication) -> None:
        self._uri = uripath.join(directory, METADATA_FILE)
        self._single_writer = single_writer
        self._publication = publication
        self._content = bytearray()
        self._lock = threading.Lock()

    def write(self, data: BytesLike, /) -> int:
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            self._content += view
        return len(view)

    def close_and_finalize_checkpoint(self) -> FileSystemCompletedCheckpointStorageLocation:
        with self._lock:
            self._check_open()
            self._finished = True
            content, self._content = bytes(self._content), bytearray()
        # The commit token in the metadata makes these bytes different from those of any other driver.
        with self._publication.note_request():
            publish(self._uri, content, single_writer=self._single_writer)
        handle = FileStateHandle(self._uri, len(content), checksum_of(content))
        return FileSystemCompletedCheckpointStorageLocation(uripath.parent(self._uri), handle)

    def close(self) -> None:
        with self._lock:
            self._finished = True
            self._content = bytearray()

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("metadata stream is closed or discarded already")
