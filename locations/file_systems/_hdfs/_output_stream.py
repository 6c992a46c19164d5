"""A file in HDFS that counts once it is closed."""

import threading
from contextlib import suppress
from typing import Any

from holdfast.errors import CheckpointError, StreamClosedError
from holdfast.locations import _uris
from holdfast.locations.file_systems._hdfs._errors import translated
from holdfast.locations.file_systems._port import BytesLike

FILE_MODE = 0o600


class HdfsOutputStream:
    """Written in place: its name is random, and told to nobody before it is closed.

    A writer whose directory was deleted fails: it makes no parents, and the NameNode has ended its
    lease.
    """

    def __init__(self, client: Any, uri: str) -> None:
        from hdfs_native import WriteOptions  # noqa: PLC0415  # optional

        self._client = client
        self._uri = uri
        self._path = _uris.local_path(uri)
        self._lock = threading.Lock()
        self._is_finished = False
        options = WriteOptions(permission=FILE_MODE, overwrite=False, create_parent=False)
        with translated(uri):
            self._writer = client.create(self._path, options)

    def write(self, data: BytesLike, /) -> None:
        self._check_unfinished()
        with translated(self._uri):
            self._writer.write(data)

    def sync(self) -> None:
        self._check_unfinished()
        with translated(self._uri):
            self._writer.hsync()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # every name lasts
        self._check_unfinished()
        try:
            with translated(self._uri):
                self._writer.hsync()
                self._writer.close()
        except BaseException:
            self.abort()
            raise
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

    def _delete(self) -> None:
        with suppress(CheckpointError), translated(self._uri):
            self._client.delete(self._path)

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._uri)
