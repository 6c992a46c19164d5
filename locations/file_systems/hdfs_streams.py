"""Files in HDFS: input from any position, and output that is complete once it is closed."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.hdfs_client import (
    HdfsClient,
    call_with_timeout,
    lost_data,
    map_errors,
    was_refused,
)
from holdfast.locations.file_systems.port import BytesLike, PositionedInputStream
from holdfast.locations.file_systems.retrying import ABORT_DEADLINE_S, Retrier, retry_deadline


class HdfsInputStream(PositionedInputStream):
    """A file that is read with one request to a DataNode as long as reads are sequential."""

    def __init__(self, reader: Any, uri: str) -> None:
        self._reader = reader
        self._uri = uri
        self._size = int(reader.size)
        self._chunks: Iterator[bytes] | None = None
        self._left = memoryview(b"")

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        before = self._position
        if super().seek(offset, whence) != before:
            self._forget()
        return self._position

    def _fill(self, view: memoryview) -> int:
        filled = 0
        try:
            with map_errors(self._uri):
                while filled < len(view):
                    part = self._piece()[: len(view) - filled]
                    if not part:
                        break
                    view[filled : filled + len(part)] = part
                    self._left = self._left[len(part) :]
                    filled += len(part)
        except BaseException:
            self._forget()  # pieces are ahead of the position
            raise
        return filled

    def _piece(self) -> memoryview:
        """Return the rest of the current piece, or the next piece."""
        if not self._left:
            if self._chunks is None:
                length = self._size - self._position
                self._chunks = self._reader.read_range_stream(self._position, length)
            self._left = memoryview(next(self._chunks, b""))
        return self._left

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        self._chunks = None
        self._left = memoryview(b"")


_FILE_MODE = 0o600

_HEAD_BYTES = 1 << 20
"""Bytes kept until DataNodes have them on disk, so that they can be sent to others; most files are shorter.
Hadoop's smallest block has the same size."""

_PIECE_BYTES = 4 << 20
"""hdfs-native copies each write, all at once."""


def _is_refused(error: BaseException) -> bool:
    return isinstance(error, StorageUnavailableError) and was_refused(error)


class HdfsOutputStream:
    """A file that is written in place, under a random name that is not passed on before it is closed.

    A writer fails if its directory is deleted: it does not create parents, and the NameNode has ended its lease.

    Args:
        uri: The URI in errors; that of the future file, if the path is a temporary one.
        path: The file's path.
        calls: The client for single calls.
        stream: The client that writes, with its timeouts.
        retrier: Retries the repeatable steps of a stream: its creation, its head, and its end.
        cleanup: Retries the deletion of an aborted file.
    """

    def __init__(
        self,
        uri: str,
        path: str,
        *,
        calls: HdfsClient,
        stream: HdfsClient,
        retrier: Retrier,
        cleanup: Retrier,
    ) -> None:
        self._is_finished = True  # no file to delete yet
        self._process = os.getpid()
        self._uri = uri
        self._path = path
        self._calls = calls
        self._stream = stream
        self._patience = stream.patience
        self._retrier = retrier
        self._cleanup = cleanup
        self._lock = threading.Lock()  # held for moments only
        self._is_writing = False
        self._head: bytearray | None = bytearray()  # until DataNodes have it
        self._length = 0
        self._synced_length = 0
        self._block_bytes = 0
        self._can_sync = True
        self._may_be_ours = False
        self._writer: Any = None
        try:
            retrier.call("create", self._create)
        except CheckpointError:
            if self._may_be_ours:
                self._delete()
            raise
        self._is_finished = False

    def write(self, data: BytesLike, /) -> None:
        left = memoryview(data).cast("B")
        with self._discard_on_error():
            if self._head is not None:
                room = _HEAD_BYTES - len(self._head)
                self._head += left[:room]
                left = left[room:]
                if not left:
                    return
                self._send_head()
            while left:
                piece = bytes(left[: self._room()])  # hdfs-native reads views byte by byte
                self._send(piece, self._patience.write_s)
                left = left[len(piece) :]

    def sync(self) -> None:
        with self._discard_on_error():
            self._sync_all()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # names are always durable
        with self._discard_on_error():
            try:
                self._sync_all()
                self._run_with_timeout(self._writer.close, self._patience.end_s)
            except StorageUnavailableError as error:
                is_full = isinstance(error, StorageFullError)
                if self._head is not None or is_full or lost_data(error):
                    raise
                self._recover(error)
            self._writer = None
        with self._lock:
            was_aborted, self._is_finished = self._is_finished, True
        if was_aborted:
            self._delete()
            raise StreamClosedError("stream was discarded", self._uri)

    def abort(self) -> None:
        if os.getpid() != self._process:
            return  # the file is the parent's
        with self._lock:
            was_finished, self._is_finished = self._is_finished, True
            is_free = not self._is_writing
        if not was_finished:
            self._delete()
            if is_free:  # otherwise the writing thread does it
                self._free(self._writer)

    def __del__(self) -> None:
        # When the interpreter exits, threads no longer answer.
        if not getattr(self, "_is_finished", True) and not sys.is_finalizing():
            self.abort()

    def _create(self) -> None:
        from hdfs_native import WriteOptions  # noqa: PLC0415  # optional

        options = WriteOptions(
            permission=_FILE_MODE, overwrite=self._may_be_ours, create_parent=False
        )
        try:
            # Not hdfs-native's own writer: when it is garbage-collected it closes the file, which
            # completes it, and waits for a NameNode that is down to do so.
            with map_errors(self._uri):
                self._writer = self._stream.run(lambda raw: raw.inner.create(self._path, options))
        except StorageUnavailableError as error:
            self._may_be_ours = self._may_be_ours or not was_refused(error)
            raise
        self._may_be_ours = True

    def _send_head(self) -> None:
        head = bytes(self._head or b"")
        if head:
            self._retrier.call("write", partial(self._begin, head))
        self._head = None

    def _begin(self, head: bytes) -> None:
        """Write the head to disks; after a failure, to those of other DataNodes.

        For the same file, the NameNode would return the same DataNodes, even if one of them is gone.
        """
        if self._is_finished:  # by another thread
            raise StreamClosedError("stream was discarded", self._uri)
        if self._writer is None:
            self._create()
        self._length = self._synced_length = 0
        try:
            self._send(head, self._patience.head_s)
            self._sync(self._patience.head_s)
        except StorageUnavailableError:
            writer, self._writer = self._writer, None
            with suppress(CheckpointError):
                self._delete_once()
                self._free(writer)
            raise

    def _room(self) -> int:
        """Return the number of bytes to send at once; a full block is synced before the next one starts."""
        if not self._block_bytes:
            status = self._retrier.call("status", self._status)
            self._block_bytes = int(status.blocksize)
        in_block = self._length % self._block_bytes
        if in_block == 0:  # a later sync would apply to the next block
            self._retrier.call("sync", self._sync, is_transient=_is_refused)
        return min(_PIECE_BYTES, self._block_bytes - in_block)

    def _status(self) -> Any:
        with map_errors(self._uri):
            return self._stream.run(lambda raw: raw.get_file_info(self._path))

    def _send(self, piece: bytes, seconds: float) -> None:
        self._run_with_timeout(lambda: self._writer.write(piece), seconds)
        self._length += len(piece)

    def _sync_all(self) -> None:
        if self._head is not None:
            self._send_head()
        self._sync()

    def _sync(self, seconds: float | None = None) -> None:
        """Make the DataNodes write to their disks; closing a file leaves its data in their memory."""
        if not self._can_sync or self._length == self._synced_length:
            return
        try:
            self._run_with_timeout(self._writer.hsync, seconds or self._patience.end_s)
        except CheckpointError as error:
            if "not supported for erasure-coded" not in str(error.__cause__):
                raise
            self._can_sync = False
        self._synced_length = self._length

    def _run_with_timeout(self, call: Any, seconds: float) -> None:
        with map_errors(self._uri):
            call_with_timeout(call, seconds)

    def _recover(self, error: StorageUnavailableError) -> None:
        """Make the NameNode close the file after a close with an unknown outcome.

        The DataNodes agree on a length. If it is not the full length, the commit fails.
        """
        try:
            length = self._retrier.call("commit", self._read_closed_length)
        except StorageUnavailableError:
            raise error from error.__cause__
        if length != self._length:
            message = (
                f"HDFS has closed the file with {length} of {self._length} bytes, "
                f"after {error.args[0]}"
            )
            raise StorageUnavailableError(message, self._uri) from error

    def _read_closed_length(self) -> int:
        if self._is_finished:
            raise StreamClosedError("stream was discarded", self._uri)
        try:
            with map_errors(self._uri):
                is_closed = self._calls.run(lambda raw: raw.recover_lease(self._path))
                status = self._calls.run(lambda raw: raw.get_file_info(self._path))
        except CheckpointConflictError as error:  # the NameNode waits for a DataNode's report
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri) from error
        if not is_closed:
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri)
        return int(status.length)

    @contextmanager
    def _discard_on_error(self) -> Iterator[None]:
        """Discard the file if this block fails: a piece may be missing, so it must not be committed."""
        with self._lock:
            if self._is_finished:
                raise StreamClosedError("stream is finished or discarded", self._uri)
            self._is_writing = True
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # raised below
            failure = error
        with self._lock:
            was_aborted = self._is_finished
            self._is_finished = was_aborted or failure is not None
            self._is_writing = False
        if failure is None and not was_aborted:
            return
        # Again after an abort: sending the head again may have re-created the file.
        self._delete()
        self._free(self._writer)
        if was_aborted:  # by another thread
            raise StreamClosedError("stream was discarded", self._uri) from failure
        if isinstance(failure, CheckpointNotFoundError):
            message = "file was deleted while it was being written, by another driver or a cleanup"
            raise CheckpointNotFoundError(message, self._uri) from failure
        if failure is not None:
            raise failure

    def _delete(self) -> None:
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            self._cleanup.call("delete", self._delete_once)

    def _delete_once(self) -> None:
        with suppress(CheckpointNotFoundError), map_errors(self._uri):
            self._calls.run(lambda raw: raw.delete(self._path), ABORT_DEADLINE_S)

    def _free(self, writer: Any) -> None:
        """Release the connections that the writer of a deleted file would keep.

        Closing it does not complete a file, because the NameNode has deleted it.
        """
        if writer is not None:
            with suppress(CheckpointError):
                self._run_with_timeout(writer.close, self._patience.free_s)
