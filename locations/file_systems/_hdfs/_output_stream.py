"""A file in HDFS that counts once it is closed."""

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
from holdfast.locations import _uris
from holdfast.locations.file_systems._hdfs._errors import lost_data, translated, was_answered
from holdfast.locations.file_systems._port import BytesLike
from holdfast.locations.file_systems._retries import ABORT_DEADLINE_S, Retrier, retry_deadline

_FILE_MODE = 0o600

_PIECE = 4 << 20
"""hdfs-native copies what it is given, all at once."""

_FIRST_PIECE = 4 << 10
"""Less than a packet: none of it is on its way when the first block can't be had."""

_SMALLEST_BLOCK = 1 << 20
"""Hadoop's dfs.namenode.fs-limits.min-block-size, bytes; whose block ends earlier is not asked."""


class HdfsOutputStream:
    """Written in place: its name is random, and told to nobody before it is closed.

    A writer whose directory was deleted fails: it makes no parents, and the NameNode has ended its
    lease.

    Args:
        uri: Its normalized URI.
        calls: The client that makes single calls.
        stream: The client that writes, which waits for a NameNode that is down.
        retrier: Repeats what a stream can repeat: its creation, its first block, and its end.
    """

    def __init__(self, uri: str, *, calls: Any, stream: Any, retrier: Retrier) -> None:
        self._is_finished = True  # there is nothing to delete yet
        self._uri = uri
        self._path = _uris.local_path(uri)
        self._calls = calls
        self._retrier = retrier
        self._lock = threading.Lock()
        self._length = 0
        self._block_bytes = 0
        self._can_sync = True
        self._stream = stream
        self._writer: Any = None
        self._may_be_ours = False
        retrier.call("create", self._create)
        self._is_finished = False

    def write(self, data: BytesLike, /) -> None:
        left = memoryview(data).cast("B")
        with self._writing():
            while left:
                room = self._room()
                if isinstance(data, bytes) and len(left) == len(data) <= room:
                    piece = data
                else:  # views it would take byte by byte
                    piece = bytes(left[:room])
                if self._length == 0:
                    self._retrier.call("write", partial(self._begin, piece))
                else:
                    self._send(piece)
                self._length += len(piece)
                left = left[len(piece) :]

    def sync(self) -> None:
        with self._writing():
            self._sync()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # every name lasts
        with self._writing():
            try:
                with translated(self._uri):
                    self._sync()
                    self._writer.close()
            except StorageUnavailableError as error:
                if isinstance(error, StorageFullError) or lost_data(error):
                    raise
                self._recover()
        with self._lock:
            was_aborted, self._is_finished = self._is_finished, True
        if was_aborted:
            self._delete()
            raise StreamClosedError("stream was discarded", self._uri)

    def abort(self) -> None:
        with self._lock:
            was_finished, self._is_finished = self._is_finished, True
        if not was_finished:
            self._delete()

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
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
                self._writer = self._stream.inner.create(self._path, options)
        except StorageUnavailableError as error:
            self._may_be_ours = self._may_be_ours or not was_answered(error)
            raise
        self._may_be_ours = True

    def _begin(self, piece: bytes) -> None:
        """Have a first block with these bytes, on other DataNodes each time that it fails.

        For the same file the NameNode gives the same ones again, even if one of them is gone.
        """
        if self._is_finished:  # meanwhile, by another thread
            raise StreamClosedError("stream was discarded", self._uri)
        if self._writer is None:
            self._create()
        try:
            self._send(piece)
        except StorageUnavailableError:
            self._writer = None
            raise

    def _room(self) -> int:
        """Bytes that may be sent at once; a block that is full is on disks before the next one."""
        if self._length == 0:
            return _FIRST_PIECE
        if self._length < _SMALLEST_BLOCK:
            return _SMALLEST_BLOCK - self._length
        if not self._block_bytes:
            self._block_bytes = int(self._calls.get_file_info(self._path).blocksize)
        in_block = self._length % self._block_bytes
        if in_block == 0:
            self._sync()
        return min(_PIECE, self._block_bytes - in_block)

    def _send(self, piece: bytes) -> None:
        with translated(self._uri):
            self._writer.write(piece)

    def _sync(self) -> None:
        """Have the DataNodes write to their disks; closing alone leaves it in their memories."""
        if not self._can_sync or self._length == 0:
            return
        try:
            self._writer.hsync()
        except Exception as error:
            if "not supported for erasure-coded" not in str(error):
                raise
            self._can_sync = False

    def _recover(self) -> None:
        """Have the NameNode close the file, whose writer doesn't know whether it is.

        All bytes have been acknowledged, so that the DataNodes agree on its length.
        """
        length = self._retrier.call("commit", self._closed_length)
        if length != self._length:
            message = f"HDFS has closed the file with {length} of {self._length} bytes"
            raise StorageUnavailableError(message, self._uri)

    def _closed_length(self) -> int:
        if self._is_finished:
            raise StreamClosedError("stream was discarded", self._uri)
        try:
            with translated(self._uri):
                is_closed = self._calls.recover_lease(self._path)
                length = int(self._calls.get_file_info(self._path).length)
        except CheckpointConflictError as error:  # it waits for a DataNode's report
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri) from error
        if not is_closed:
            raise StorageUnavailableError("HDFS has not closed the file yet", self._uri)
        return length

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What is missing a piece must not be committed."""
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._uri)
        try:
            with translated(self._uri):
                yield
        except BaseException as error:
            if self._is_finished:  # by another thread, which may have deleted it before it was made
                self._delete()
                raise StreamClosedError("stream was discarded", self._uri) from error
            self.abort()
            if isinstance(error, CheckpointNotFoundError):
                message = "file was deleted while it was written, by another driver or a cleanup"
                raise CheckpointNotFoundError(message, self._uri) from error
            raise

    def _delete(self) -> None:
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            self._retrier.call("delete", self._delete_once)

    def _delete_once(self) -> None:
        with translated(self._uri):
            self._calls.delete(self._path)
