"""State written twice: to storage, and to a copy on the disk of the host."""

import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import StorageFullError, StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import (
    MAX_INLINE_THRESHOLD_BYTES,
    CheckpointStateOutputStream,
    DiscardingStream,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

IN_PROGRESS = ".inprogress"
"""The suffix of files in progress."""


class DuplicatingOutputStream(CheckpointStateOutputStream):
    """A state stream that also leaves a local copy, if its bytes become a file.

    An error of the stream is raised, and discards the copy. An error of the copy is logged and ends only the copy.
    `keep` is called with the handle of the file, to keep the copy.

    Source:
        Flink, DuplicatingCheckpointOutputStream. Its buffer is not needed, because both streams have their own.
    """

    def __init__(
        self,
        stream: CheckpointStateOutputStream,
        copy: "LocalOutputStream",
        keep: Callable[[FileStateHandle], object],
    ) -> None:
        self._stream = stream
        self._copy: LocalOutputStream | None = copy  # None when it has ended
        self._keep = keep

    def write(self, data: BytesLike, /) -> int:
        written = self._call_stream(lambda: self._stream.write(data))
        copy = self._copy
        if copy is not None:
            self._call_copy(lambda: copy.write(data))
        return written

    def flush(self) -> None:
        self._call_stream(self._stream.flush)

    def flush_to_file(self) -> None:
        self._call_stream(self._stream.flush_to_file)

    def sync(self) -> None:
        self._call_stream(self._stream.sync)

    def tell(self) -> int:
        return self._stream.tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        self._finished = True
        handle = self._call_stream(self._stream.close_and_get_handle)
        if isinstance(handle, FileStateHandle) and self._copy is not None:
            self._call_copy(lambda: self._keep(handle))
        self._end_copy()
        return handle

    def close(self) -> None:
        self._finished = True
        try:
            self._stream.close()
        finally:
            self._end_copy()

    def _call_stream(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except BaseException:
            self._end_copy()
            raise

    def _call_copy(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the stream does not need the copy
            _log.warning("there will be no local copy of state: %s", error)
            self._end_copy()
        except BaseException:
            self._end_copy()
            raise

    def _end_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()  # no effect if it is kept


class LocalOutputStream(DiscardingStream):
    """Writes a file that is deleted unless it is finished. It is never synced: after a power cut it is not needed.

    The file is created when there are more bytes than a handle may contain; its directory, too, if necessary.
    """

    def __init__(self, directory: str, *, max_bytes: int) -> None:
        self.path = os.path.join(directory, f"{uuid.uuid4().hex}{IN_PROGRESS}")
        self._directory = directory
        self._max_bytes = max_bytes
        self._size = 0
        self._buffer = bytearray()
        self._descriptor: int | None = None

    def write(self, data: BytesLike, /) -> int:
        """Append the bytes. Raises `OSError`, `StorageFullError`, `StreamClosedError`."""
        self._check_open()
        view = memoryview(data).cast("B")
        if self._size + len(view) > self._max_bytes:
            message = f"state of more than {self._max_bytes} bytes exceeds the limit for copies"
            raise StorageFullError(message)
        if len(self._buffer) + len(view) > MAX_INLINE_THRESHOLD_BYTES:
            self._write_buffer()
            self._write_file(view)
        else:
            self._buffer += view
        self._size += len(view)
        return len(view)

    def finish(self) -> None:
        """Keep the file, at `path`. Raises as `write` does."""
        self._check_open()
        self._write_buffer()
        self._finished = True
        self._close_descriptor()

    def close(self) -> None:
        """Delete the file, unless it is finished. Never raises."""
        if not self._finished:
            self._finished = True
            self._buffer = bytearray()
            if self._descriptor is not None:
                self._close_descriptor()
                unlink(self.path)

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("the copy is finished or discarded")

    def _write_buffer(self) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        self._write_file(memoryview(buffer))

    def _write_file(self, view: memoryview) -> None:
        if self._descriptor is None:
            self._descriptor = self._create()
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            make_directory(self._directory)
            return os.open(self.path, flags, 0o600)

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def make_directory(directory: str) -> None:
    """Create a directory and its parent, readable only by the user. Raises `OSError`."""
    for path in (os.path.dirname(directory), directory):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)


def unlink(path: str) -> None:
    """Delete a file, if that is possible."""
    with suppress(OSError):
        os.unlink(path)
