"""Writing through fsspec: a hidden file beside the target, which is renamed to it."""

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.fsspec import stores
from holdfast.locations.file_systems.fsspec.instances import give_up, guarded, reached
from holdfast.locations.file_systems.port import BytesLike

# Third-party files are only sure to take bytes, so this much is copied at a time.
_WRITE_BYTES = 4 << 20


class FsspecOutputStream:
    """A file that gets its name by a rename, after a look whether the name is free.

    Somebody who takes it in between is overwritten or, where the store's rename refuses that, wins.
    """

    def __init__(self, protocol: str, uri: str) -> None:
        self._protocol = protocol
        self._uri = uri
        hidden = uripath.hidden_name(uripath.name(uri))
        self._hidden_uri = uripath.join(uripath.parent(uri), hidden)
        self._size = 0
        self._process = os.getpid()
        self._in_use = threading.Lock()
        self._is_broken = False
        self._is_finished = False
        self._is_hidden = True
        with reached(protocol, uri) as (store, path):
            self._store = store
            self._path = path
            self._hidden_path = f"{path.rpartition('/')[0]}/{hidden}"
            try:
                self._file: Any = store.open(self._hidden_path, "wb")
            except FileNotFoundError:
                raise
            except Exception:
                with suppress(Exception):  # it may be there, when only the answer was lost
                    stores.remove(store, self._hidden_path)
                raise

    def write(self, data: BytesLike, /) -> None:
        view = memoryview(data).cast("B")
        with self._using_file(), self._breaking():
            for begin in range(0, len(view), _WRITE_BYTES):
                self._file.write(bytes(view[begin : begin + _WRITE_BYTES]))
            self._size += len(view)

    def sync(self) -> None:
        with self._using_file(), self._breaking():
            self._sync()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # no store says
        try:
            with self._using_file():
                if self._is_broken:
                    raise StorageUnavailableError("an earlier write to it failed", self._uri)
                self._complete()
                self._rename()
                self._is_hidden = False
        finally:
            self.abort()

    def abort(self) -> None:
        # Waits for no writer but one that this thread lent its own connection, by creating the
        # stream. Without its hidden name a commit that is under way can't rename the file, and
        # whoever uses it closes it when done.
        if self._process != os.getpid():
            return  # a fork must not take its parent's file away
        self._is_finished = True
        if not self._cleaned_up_if_free():
            self._remove()

    def _sync(self) -> None:
        self._file.flush()
        # paramiko's files have no such method, others have no descriptor to give
        with suppress(AttributeError, io.UnsupportedOperation):
            os.fsync(self._file.fileno())

    def _complete(self) -> None:
        with guarded(self._store, self._uri):
            self._sync()
            self._file.close()
            self._file = None
            self._store.invalidate_cache()
            there = stores.size(self._store, self._hidden_path)
            if there is None and self._is_finished:
                raise StreamClosedError("stream was discarded", self._uri)
            if there is None:
                raise CheckpointNotFoundError("directory or hidden file was deleted", self._uri)
            if there != self._size:
                message = f"store has {there} bytes of the {self._size} written"
                raise StorageUnavailableError(message, self._uri)
            if stores.kind(self._store, self._path) is not None:
                raise CheckpointConflictError.exists(self._uri)

    def _rename(self) -> None:
        try:
            with guarded(self._store, self._uri):
                stores.rename(self._store, self._hidden_path, self._path)
        except CheckpointError as error:
            self._look_after(error)
            return
        try:
            with guarded(self._store, self._uri):
                self._store.invalidate_cache()
                there = stores.size(self._store, self._path)
        except CheckpointError as error:
            message = "file was renamed, but the store does not say whether it is there"
            raise OutcomeUnknownError(message, self._uri) from error
        if there is None:  # WebHDFS's answer to a rename that failed looks like success
            self._look_after(StorageUnavailableError("store did not rename the file", self._uri))
        elif there != self._size:
            raise OutcomeUnknownError("another file is under that name now", self._uri)

    def _look_after(self, failure: CheckpointError) -> None:
        """Find out what a failed rename has done; returns if it was done all the same."""
        try:
            with reached(self._protocol, self._uri) as (store, path):
                # Once the hidden file is gone, a rename that is still under way can't succeed.
                was_left = stores.kind(store, self._hidden_path) is not None
                was_left = was_left and stores.remove(store, self._hidden_path)
                there = stores.size(store, path)
        except CheckpointError as error:
            message = "rename failed, and so did looking whether it was done all the same"
            raise OutcomeUnknownError(message, self._uri) from error
        if not was_left and there == self._size:
            return
        if there is None and not was_left and self._is_finished:
            raise StreamClosedError("stream was discarded", self._uri) from failure
        if there is None or (was_left and isinstance(failure, CheckpointConflictError)):
            raise failure
        message = "rename failed, and a file is there that may be ours or somebody else's"
        raise OutcomeUnknownError(message, self._uri) from failure

    @contextmanager
    def _using_file(self) -> Iterator[None]:
        try:
            with self._in_use:
                if self._is_finished:
                    raise StreamClosedError("stream is finished or discarded", self._uri)
                yield
        finally:
            if self._is_finished:
                self._cleaned_up_if_free()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Write in this block; after a failure nobody knows how much was written, and it can't be committed."""
        try:
            with guarded(self._store, self._uri):
                yield
        except BaseException:
            self._is_broken = True
            raise

    def _cleaned_up_if_free(self) -> bool:
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            file, self._file = self._file, None
            if file is not None:
                give_up(self._store, file)
            if self._is_hidden:
                self._is_hidden = False
                self._remove()
        finally:
            self._in_use.release()
        return True

    def _remove(self) -> None:
        # By the connection of this thread: the writer's may be stuck.
        with (
            suppress(CheckpointError),
            reached(self._protocol, self._hidden_uri) as (store, path),
        ):
            stores.remove(store, path)
