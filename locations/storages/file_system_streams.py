"""State and metadata streams that end up in files."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    OutcomeUnknownError,
    StreamClosedError,
)
from holdfast.locations.file_systems import (
    BytesLike,
    FileOutputStream,
    LinkingFileSystem,
    file_system_for,
    publish,
)
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    Checksum,
    ChecksumBuilder,
    FileStateHandle,
    StreamStateHandle,
    checksum_of,
)
from holdfast.locations.storages.contract import METADATA_FILE
from holdfast.locations.storages.discarded_unless_kept import DiscardedUnlessKept
from holdfast.locations.storages.entropy import spread
from holdfast.locations.storages.file_system_completed import (
    FileSystemCompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.gathered_metadata import GatheredMetadataOutputStream


class FileSystemCheckpointStateOutputStream(DiscardedUnlessKept):
    """State that stays in its handle while it is small, and else becomes a file.

    Args:
        path_prefix: URI to which a random name is appended; its directory must exist. The marker
            in it is replaced by the beginning of that name.
        inline_threshold: Most bytes that travel in the handle; 0 makes every state a file.
        buffer_bytes: Bytes held back before they are written, at least `inline_threshold`.
        durable_name: Whether no file will be published in the same directory that would make the
            name durable.

    Source:
        Flink, FsCheckpointStreamFactory.FsCheckpointStateOutputStream. Ours differs: an empty
        stream is closed by its success call too, the handle has a checksum, and a buffer that the
        next bytes don't fit into is written as it is, instead of being filled up first.
    """

    def __init__(
        self, path_prefix: str, *, inline_threshold: int, buffer_bytes: int, durable_name: bool
    ) -> None:
        self._path_prefix = path_prefix
        self._durable_name = durable_name
        self._uri = ""  # of no use to state that stays small
        self._inline_threshold = inline_threshold
        self._buffer_bytes = max(buffer_bytes, inline_threshold)
        self._buffer = bytearray()
        self._file: FileOutputStream | None = None
        self._file_bytes = 0
        self._checksum = ChecksumBuilder()
        self._adopted: Checksum | None = None
        self._lock = threading.Lock()  # held for moments only: `close` never waits for the store
        self._discarded = False

    def write(self, data: BytesLike, /) -> int:
        self._check_open()
        view = memoryview(data).cast("B")
        if len(self._buffer) + len(view) > self._buffer_bytes:
            self.flush_to_file()
        if len(view) >= self._buffer_bytes:
            with self._closed_on_failure():
                self._write_file(view)
        else:
            self._buffer += view
        return len(view)

    def adopt(self, path: str, size: int, checksum: Checksum, /) -> bool:
        self._check_open()
        if self.tell() or size <= self._inline_threshold:
            return False
        uri = self._new_uri()
        file_system = file_system_for(uri).inner
        if not isinstance(file_system, LinkingFileSystem):
            return False
        try:
            file = file_system.link(path, uri)
        except CheckpointError:  # if the directory is what fails, writing says so
            return False
        self._begin(uri, file)
        self._file_bytes = size
        self._adopted = checksum
        return True

    def flush(self) -> None:
        self._check_open()
        if self.tell() > self._inline_threshold:
            self.flush_to_file()

    def flush_to_file(self) -> None:
        self._check_open()
        with self._closed_on_failure():
            held, self._buffer = self._buffer, bytearray()
            self._write_file(held)

    def sync(self) -> None:
        self._check_open()
        if self._file is not None:
            with self._closed_on_failure():
                self._file.sync()

    def tell(self) -> int:
        return self._file_bytes + len(self._buffer)

    def close_and_get_handle(self) -> StreamStateHandle | None:
        with self._lock:
            self._check_open()
            self._finished = True
            rest, self._buffer = self._buffer, bytearray()
        if self._file is None and len(rest) <= self._inline_threshold:
            return ByteStreamStateHandle(bytes(rest)) if rest else None
        try:
            self._write_file(rest)
            if self._file is not None:
                self._file.commit(durable_name=self._durable_name)
        finally:
            # Leaves nothing of a file that was not committed, and one that was alone.
            self.close()
        checksum = self._adopted or self._checksum.finish()
        return FileStateHandle(self._uri, self._file_bytes, checksum)

    def close(self) -> None:
        with self._lock:
            self._finished = self._discarded = True
            self._buffer = bytearray()
            file = self._file
        if file is not None:
            file.abort()

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """Write in this block; the stream is closed after a failure: nobody knows how much is in the file."""
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
        return spread(self._path_prefix, name) + name

    def _begin(self, uri: str, file: FileOutputStream) -> None:
        with self._lock:
            discarded, self._file, self._uri = self._discarded, file, uri
        if discarded:  # by another thread, which saw no file
            file.abort()

    def _check_open(self) -> None:
        if self._finished:
            message = "state stream is closed or discarded already"
            raise StreamClosedError(message, self._uri or self._path_prefix)


@dataclass(slots=True)
class Publication:
    """The knowledge of a pending location about its `_metadata`.

    Attributes:
        is_under_way: Whether the store was asked to publish it, and has not said what came of that:
            it may yet do so, also long after an interrupt.
        may_have_succeeded: Whether somebody may have found it published, and gone on from it, even if it is
            gone by now.
    """

    is_under_way: bool = False
    may_have_succeeded: bool = False

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Note in this block that the store was asked to publish."""
        could_before = self.may_have_succeeded
        self.is_under_way = self.may_have_succeeded = True
        try:
            yield
        except OutcomeUnknownError:
            raise
        except CheckpointError as error:
            self.is_under_way = False  # surely not done, or over by now
            # What it conflicts with can be itself, published by a request whose answer was lost.
            is_conflict = isinstance(error, CheckpointConflictError)
            self.may_have_succeeded = could_before or is_conflict
            raise
        self.is_under_way = False


class FileSystemCheckpointMetadataOutputStream(
    GatheredMetadataOutputStream[FileSystemCompletedCheckpointStorageLocation]
):
    """The `_metadata` file of a directory, published in one exclusive step."""

    def __init__(
        self, directory: str, *, single_writer: bool, publication: Publication | None = None
    ) -> None:
        super().__init__()
        self._uri = uripath.join(directory, METADATA_FILE)
        self._single_writer = single_writer
        self._publication = publication or Publication()

    def _publish(self, content: bytes) -> FileSystemCompletedCheckpointStorageLocation:
        # The commit token in the metadata makes our bytes different from anybody else's.
        with self._publication.begun():
            publish(self._uri, content, single_writer=self._single_writer)
        handle = FileStateHandle(self._uri, len(content), checksum_of(content))
        return FileSystemCompletedCheckpointStorageLocation(uripath.parent(self._uri), handle)
