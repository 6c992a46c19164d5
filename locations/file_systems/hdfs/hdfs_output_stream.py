"""A file in HDFS that counts once it is closed."""

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
from holdfast.locations.file_systems.hdfs.bounded_calls import bounded
from holdfast.locations.file_systems.hdfs.hdfs_client import HdfsClient
from holdfast.locations.file_systems.hdfs.hdfs_errors import lost_data, translated, was_refused
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.retries import ABORT_DEADLINE_S, Retrier, retry_deadline

_FILE_MODE = 0o600

_HEAD_BYTES = 1 << 20
"""What is kept until DataNodes have it on their disks, so that it can be sent to others; all of most
files. Hadoop's least block has as many bytes."""

_PIECE_BYTES = 4 << 20
"""hdfs-native copies what it is given, all at once."""


def _is_refused(error: BaseException) -> bool:
    return isinstance(error, StorageUnavailableError) and was_refused(error)


class HdfsOutputStream:
    """A file that is written in place: its name is random, and told to nobody before it is closed.

    A writer whose directory was deleted fails: it makes no parents, and the NameNode has ended its
    lease.

    Args:
        uri: The file's normalized URI, for errors.
        path: The file's path.
        calls: The client that makes single calls.
        stream: The client that writes, and says how long that may take.
        retrier: Repeats what a stream can repeat: its creation, its head, and its end.
        cleanup: Repeats the deletion of a file that is given up.
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
        self._is_finished = True  # there is nothing to delete yet
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
        with self._writing():
            if self._head is not None:
                room = _HEAD_BYTES - len(self._head)
                self._head += left[:room]
                left = left[room:]
                if not left:
                    return
                self._send_head()
            while left:
                piece = bytes(left[: self._room()])  # views it would take byte by byte
                self._send(piece, self._patience.write_s)
                left = left[len(piece) :]

    def sync(self) -> None:
        with self._writing():
            self._sync_all()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # every name lasts
        with self._writing():
            try:
                self._sync_all()
                self._bounded(self._writer.close, self._patience.end_s)
            except StorageUnavailableError as error:
                if self._head is not None or isinstance(error, StorageFullError):
                    raise
                if lost_data(error):
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
            return  # it is the parent's
        with self._lock:
            was_finished, self._is_finished = self._is_finished, True
            is_free = not self._is_writing
        if not was_finished:
            self._delete()
            if is_free:  # else the one who writes does it
                self._free(self._writer)

    def __del__(self) -> None:
        # At the end of the interpreter no thread answers any more.
        if not getattr(self, "_is_finished", True) and not sys.is_finalizing():
            self.abort()

    def _create(self) -> None:
        from hdfs_native import WriteOptions  # noqa: PLC0415  # optional

        options = WriteOptions(
            permission=_FILE_MODE, overwrite=self._may_be_ours, create_parent=False
        )
        try:
            # Not hdfs-native's own writer, which closes the file, and so makes it whole, when it is
            # collected as garbage; and waits for a NameNode that is down to do so.
            with translated(self._uri):
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
        """Bring the head to disks; to those of other DataNodes each time that it fails.

        For the same file the NameNode gives the same ones again, even if one of them is gone.
        """
        if self._is_finished:  # meanwhile, by another thread
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
        """Bytes that may be sent at once; a block that is full is on disks before the next one."""
        if not self._block_bytes:
            status = self._retrier.call("status", self._status)
            self._block_bytes = int(status.blocksize)
        in_block = self._length % self._block_bytes
        if in_block == 0:  # later it would be another block that is synced
            self._retrier.call("sync", self._sync, is_transient=_is_refused)
        return min(_PIECE_BYTES, self._block_bytes - in_block)

    def _status(self) -> Any:
        with translated(self._uri):
            return self._stream.run(lambda raw: raw.get_file_info(self._path))

    def _send(self, piece: bytes, seconds: float) -> None:
        self._bounded(lambda: self._writer.write(piece), seconds)
        self._length += len(piece)

    def _sync_all(self) -> None:
        if self._head is not None:
            self._send_head()
        self._sync()

    def _sync(self, seconds: float | None = None) -> None:
        """Have the DataNodes write to their disks; closing alone leaves it in their memories."""
        if not self._can_sync or self._length == self._synced_length:
            return
        try:
            self._bounded(self._writer.hsync, self._patience.end_s if seconds is None else seconds)
        except CheckpointError as error:
            if "not supported for erasure-coded" not in str(error.__cause__):
                raise
            self._can_sync = False
        self._synced_length = self._length

    def _bounded(self, call: Any, seconds: float) -> None:
        with translated(self._uri):
            bounded(call, seconds)

    def _recover(self, error: StorageUnavailableError) -> None:
        """Have the NameNode close the file, whose writer doesn't know whether it is.

        The DataNodes agree on what they have; it is all, or the file does not count.
        """
        try:
            length = self._retrier.call("commit", self._closed_length)
        except StorageUnavailableError:
            raise error from error.__cause__
        if length != self._length:
            message = (
                f"HDFS has closed the file with {length} of {self._length} bytes, "
                f"after {error.args[0]}"
            )
            raise StorageUnavailableError(message, self._uri) from error

    def _closed_length(self) -> int:
        if self._is_finished:
            raise StreamClosedError("stream was discarded", self._uri)
        try:
            with translated(self._uri):
                is_closed = self._calls.run(lambda raw: raw.recover_lease(self._path))
                status = self._calls.run(lambda raw: raw.get_file_info(self._path))
        except CheckpointConflictError as error:  # it waits for a DataNode's report
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri) from error
        if not is_closed:
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri)
        return int(status.length)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write in this block; after a failure the file may miss a piece, and is not committed any more."""
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
        # Again, if it was aborted: a head that was sent anew may have made it once more.
        self._delete()
        self._free(self._writer)
        if was_aborted:  # by another thread
            raise StreamClosedError("stream was discarded", self._uri) from failure
        if isinstance(failure, CheckpointNotFoundError):
            message = "file was deleted while it was written, by another driver or a cleanup"
            raise CheckpointNotFoundError(message, self._uri) from failure
        if failure is not None:
            raise failure

    def _delete(self) -> None:
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            self._cleanup.call("delete", self._delete_once)

    def _delete_once(self) -> None:
        with suppress(CheckpointNotFoundError), translated(self._uri):
            self._calls.run(lambda raw: raw.delete(self._path), ABORT_DEADLINE_S)

    def _free(self, writer: Any) -> None:
        """Let go of the connections of a file that was deleted, which a writer keeps otherwise.

        Closing it makes nothing whole then: the NameNode knows no such file.
        """
        if writer is not None:
            with suppress(CheckpointError):
                self._bounded(writer.close, self._patience.free_s)
