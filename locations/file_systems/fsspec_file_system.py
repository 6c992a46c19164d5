"""Any other store, through fsspec: `sftp://`, or `fsspec+s3://` for a scheme that is built in."""

import io
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from holdfast.common import SYSTEM_CLOCK, Clock, collect_failures, raise_first, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems import fsspec_stores as stores
from holdfast.locations.file_systems.fsspec_stores import (
    discard_file,
    implementation,
    locked_store,
    use_store,
)
from holdfast.locations.file_systems.port import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    FileSystem,
    PositionedInputStream,
)

# Object stores have only prefixes, which are never created and never missing.
_WITHOUT_DIRECTORIES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "obs"}

# Directories have permissions, and opening a file below a missing one fails by itself.
_LIKE_POSIX = {"file", "local", "sftp", "ssh"}

# Third-party files accept nothing but bytes for sure, so data is copied in pieces of this size.
_WRITE_BYTES = 4 << 20


def fsspec_file_system(protocol: str) -> FileSystem:
    """Make the file system of an fsspec protocol.

    Raises:
        InvalidRequestError: fsspec doesn't support it, or a library is missing.
    """
    implementation(protocol)
    return FsspecFileSystem(protocol)


class FsspecFileSystem:
    """A store reached through fsspec, with the guarantees that fsspec gives; for a single writer.

    Credentials come from fsspec's configuration (`FSSPEC_SFTP_PASSWORD`, its JSON files) or from
    the store's library (SSH keys and agents). SFTP servers get them only if their host key is in
    `~/.ssh/known_hosts` or `/etc/ssh/ssh_known_hosts`, unless fsspec's configuration sets
    `host_key_policy`. If fsspec's implementation is not asynchronous, each thread keeps its own
    connection until the process ends; after an error of the connection, the next call makes a new one.

    Not guaranteed:

    - Exclusive creation: fsspec does not offer it for all stores, so `publish` is missing, and a
      commit checks that the name is free, then renames. If two writers do so at once, both may
      believe that they have won; only SFTP servers refuse the second rename, most of them atomically.
    - Atomic commits: a rename is atomic on SFTP and local disks. On object stores, in fsspec's memory
      and on other stores it is a copy and a deletion, and a reader may see an incomplete file. The
      length is checked before and after.
    - Durable commits: only local files are synced, and directories are not; elsewhere the server
      decides when bytes reach its disk.
    - Deleted directories: object stores have no directories, so a late writer can restore one.

    Args:
        protocol: fsspec's name of the protocol, such as `sftp`. URIs of calls may have another scheme.
        clock: The source of modification times where the store has none.
    """

    range_requests = 4  # each thread has its own connection

    def __init__(self, protocol: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._protocol = protocol
        self._clock = clock

    def prepare_directory(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            if self._protocol in _WITHOUT_DIRECTORIES:
                return
            missing = stores.missing_directories(store, path, uri)
            # Only the job's user may read state.
            options = {"mode": 0o700} if self._protocol in _LIKE_POSIX else {}
            for directory in missing:
                try:
                    store.mkdir(directory, create_parents=False, **options)
                except Exception:
                    # For an existing directory, fsspec's implementations raise different errors.
                    if stores.kind(store, directory) != "directory":
                        raise
            if missing and stores.kind(store, path) != "directory":
                message = f"fsspec's {self._protocol} can't create directories; use another store"
                raise InvalidRequestError(message, uri, kind="location")

    def create(self, uri: str, /) -> FileOutputStream:
        if self._protocol not in _LIKE_POSIX | _WITHOUT_DIRECTORIES:
            directory = uripath.parent(uri)
            with locked_store(self._protocol, directory) as (store, path):
                if stores.kind(store, path) != "directory":
                    raise CheckpointNotFoundError("no such directory", directory)
        return FsspecOutputStream(self._protocol, uri)

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", FsspecInputStream(self._protocol, uri))

    def read_range(self, uri: str, start: int, end: int, /) -> memoryview:
        with locked_store(self._protocol, uri) as (store, path):
            return memoryview(store.cat_file(path, start=start, end=end))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with locked_store(self._protocol, uri) as (store, path):
            return [
                FileStatus(
                    uri=uripath.join(uri, stores.name(entry)),
                    size=0 if entry["type"] == "directory" else entry.get("size") or 0,
                    modified_ms=stores.modified_ms(store, entry, self._clock),
                    is_directory=entry["type"] == "directory",
                    is_link=stores.is_link(entry),
                )
                for entry in stores.entries(store, path)
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        raise_first(collect_failures(self._delete_file, uris))

    def _delete_file(self, uri: str) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            stores.remove(store, path)

    def delete_empty_directory(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            # fsspec does not define what rmdir does with a directory that is not empty.
            if self._protocol in _WITHOUT_DIRECTORIES or stores.entries(store, path):
                return
            with suppress(FileNotFoundError):
                store.rmdir(path)

    def delete_tree(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            # File systems without the method do not support links.
            if hasattr(store, "islink") and store.islink(path):
                stores.remove(store, path)
                return
            kind = stores.kind(store, path)
            if kind not in (None, "directory"):
                raise InvalidRequestError("directory can't be deleted (it is a file)", uri)
            if kind is not None:
                self._delete_below(store, path)

    def _delete_below(self, store: Any, path: str) -> None:
        # fsspec's own recursive deletion treats names with * as patterns.
        for entry in stores.entries(store, path):
            below = f"{path}/{stores.name(entry)}"
            if entry["type"] == "directory" and not stores.is_link(entry):
                self._delete_below(store, below)
            else:
                stores.remove(store, below)
        if self._protocol not in _WITHOUT_DIRECTORIES:
            with suppress(FileNotFoundError):
                store.rmdir(path)


class FsspecInputStream(PositionedInputStream):
    """A file read through fsspec.

    Position and size are kept here, because paramiko returns nothing from seek, treats an unknown
    size as 0 and a closed connection as the end of the file.
    """

    def __init__(self, protocol: str, uri: str) -> None:
        self._uri = uri
        self._file: Any = None
        with locked_store(protocol, uri) as (store, path):
            self._store = store
            info = store.info(path)
            if info["type"] == "directory":
                raise InvalidRequestError("file can't be read (it is a directory)", uri)
            self._size = int(info["size"])
            self._file = store.open(path, "rb")
            if isinstance(self._file, io.BytesIO):
                # fsspec's memory returns the stored object itself, whose position all readers share
                self._file = io.BytesIO(self._file.getvalue())

    def _fill(self, view: memoryview) -> int:
        with use_store(self._store, self._uri):
            self._file.seek(self._position)
            data = self._file.read(len(view))
            if not data:
                message = f"file ended at byte {self._position} of {self._size}"
                raise StorageUnavailableError(message, self._uri)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            discard_file(self._store, file)
        super().close()


class FsspecOutputStream:
    """A file that gets its name by a rename, after a check that the name is free.

    A writer that takes the name in between is overwritten or, if the store's rename refuses that, wins.
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
        with locked_store(protocol, uri) as (store, path):
            self._store = store
            self._path = path
            self._hidden_path = f"{path.rpartition('/')[0]}/{hidden}"
            try:
                self._file: Any = store.open(self._hidden_path, "wb")
            except FileNotFoundError:
                raise
            except Exception:
                with suppress(Exception):  # the file may exist if only the answer was lost
                    stores.remove(store, self._hidden_path)
                raise

    def write(self, data: BytesLike, /) -> None:
        view = memoryview(data).cast("B")
        with self._use_file(), self._mark_broken_on_error():
            for begin in range(0, len(view), _WRITE_BYTES):
                self._file.write(bytes(view[begin : begin + _WRITE_BYTES]))
            self._size += len(view)

    def sync(self) -> None:
        with self._use_file(), self._mark_broken_on_error():
            self._sync()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # not supported by stores
        try:
            with self._use_file():
                if self._is_broken:
                    raise StorageUnavailableError("an earlier write to it failed", self._uri)
                self._complete()
                self._rename()
                self._is_hidden = False
        finally:
            self.abort()

    def abort(self) -> None:
        # Waits only for a writer that uses this thread's connection, on which the stream was
        # created. Without its hidden name, a running commit can't rename the file, and the
        # thread that uses the file closes it when done.
        if self._process != os.getpid():
            return  # a fork must not delete its parent's file
        self._is_finished = True
        if not self._remove_if_unlocked():
            self._remove()

    def _sync(self) -> None:
        self._file.flush()
        # paramiko's files have no such method, others have no descriptor to give
        with suppress(AttributeError, io.UnsupportedOperation):
            os.fsync(self._file.fileno())

    def _complete(self) -> None:
        with use_store(self._store, self._uri):
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
                message = f"store has only {there} of {self._size} bytes written"
                raise StorageUnavailableError(message, self._uri)
            if stores.kind(self._store, self._path) is not None:
                raise CheckpointConflictError.exists(self._uri)

    def _rename(self) -> None:
        try:
            with use_store(self._store, self._uri):
                stores.rename(self._store, self._hidden_path, self._path)
        except CheckpointError as error:
            self._check_failed_rename(error)
            return
        try:
            with use_store(self._store, self._uri):
                self._store.invalidate_cache()
                there = stores.size(self._store, self._path)
        except CheckpointError as error:
            message = "file was renamed, but the store does not confirm that it exists"
            raise OutcomeUnknownError(message, self._uri) from error
        if there is None:  # WebHDFS answers a failed rename as if it had succeeded
            self._check_failed_rename(
                StorageUnavailableError("store did not rename the file", self._uri)
            )
        elif there != self._size:
            raise OutcomeUnknownError("another file now has this name", self._uri)

    def _check_failed_rename(self, failure: CheckpointError) -> None:
        """Check the effect of a failed rename; returns if it succeeded despite the error."""
        try:
            with locked_store(self._protocol, self._uri) as (store, path):
                # Once the hidden file is deleted, a rename that is still running can't succeed.
                was_left = stores.kind(store, self._hidden_path) is not None
                was_left = was_left and stores.remove(store, self._hidden_path)
                there = stores.size(store, path)
        except CheckpointError as error:
            message = "rename failed, and its outcome could not be checked"
            raise OutcomeUnknownError(message, self._uri) from error
        if not was_left and there == self._size:
            return
        if there is None and not was_left and self._is_finished:
            raise StreamClosedError("stream was discarded", self._uri) from failure
        if there is None or (was_left and isinstance(failure, CheckpointConflictError)):
            raise failure
        message = "rename failed, and the existing file may be ours or another writer's"
        raise OutcomeUnknownError(message, self._uri) from failure

    @contextmanager
    def _use_file(self) -> Iterator[None]:
        try:
            with self._in_use:
                if self._is_finished:
                    raise StreamClosedError("stream is finished or discarded", self._uri)
                yield
        finally:
            if self._is_finished:
                self._remove_if_unlocked()

    @contextmanager
    def _mark_broken_on_error(self) -> Iterator[None]:
        """Mark the file as broken if this block fails: an unknown part was written, so it can't be committed."""
        try:
            with use_store(self._store, self._uri):
                yield
        except BaseException:
            self._is_broken = True
            raise

    def _remove_if_unlocked(self) -> bool:
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            file, self._file = self._file, None
            if file is not None:
                discard_file(self._store, file)
            if self._is_hidden:
                self._is_hidden = False
                self._remove()
        finally:
            self._in_use.release()
        return True

    def _remove(self) -> None:
        # On this thread's connection: the writer's may be stuck.
        with (
            suppress(CheckpointError),
            locked_store(self._protocol, self._hidden_uri) as (store, path),
        ):
            stores.remove(store, path)
