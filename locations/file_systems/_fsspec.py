"""Any other store, through fsspec: `sftp://`, or `fsspec+file://` for a scheme that is built in."""

import errno
import io
import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import _uris
from holdfast.locations.file_systems._port import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    FileSystem,
)

_SFTP = {"sftp", "ssh"}
_LOCAL = {"file", "local"}

# Object stores have prefixes, which can be neither made nor found missing.
_WITHOUT_DIRECTORIES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "obs"}

# Opening a file below a missing directory fails there by itself.
_REFUSES_WITHOUT_DIRECTORY = _SFTP | _LOCAL

_WITHOUT_CACHE_OPTION = {*_SFTP}
"""Protocols whose classes don't take fsspec's options for listing caches; grows."""

# Whatever fsspec's configuration says: nothing but `prepare_directory` makes a directory.
_OPTIONS = {protocol: {"auto_mkdir": False} for protocol in _LOCAL | {"smb"}}

# Nobody but the job's user reads state, where directories have permissions.
_DIRECTORY_OPTIONS = {protocol: {"mode": 0o700} for protocol in _SFTP | _LOCAL}

# Without it a server that vanished without a word is waited for forever.
_SFTP_SILENCE_S = 60.0

# Third-party files are only sure to take bytes, so this much is copied at a time.
_WRITE_BYTES = 4 << 20

_NOT_ALLOWED = {errno.EROFS, errno.ENAMETOOLONG}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# By name, because their libraries (paramiko, asyncssh) may not be there.
_NOT_LET_IN = {
    "AuthenticationException",
    "BadHostKeyException",
    "HostKeyNotVerifiable",
    "PermissionDenied",
}

_TIMES = [
    "mtime",
    "LastModified",
    "last_modified",
    "modified",
    "modificationTime",
    "modification_time",
    "last_write_time",
    "modify",
    "updated",
    "created",
    "creation_time",
]
"""What fsspec's implementations call the time of the last change, best first."""

# fsspec's memory store is one for all threads and not safe for them.
_MEMORY_LOCK = threading.RLock()


def fsspec_file_system(protocol: str) -> FileSystem:
    """The file system of an fsspec protocol.

    Raises:
        InvalidRequestError: fsspec doesn't know it, or a library is missing.
    """
    _require(protocol)
    return FsspecFileSystem(protocol)


class FsspecFileSystem:
    """A store behind fsspec, as good as fsspec is; for a single writer.

    Credentials come from fsspec's configuration (`FSSPEC_SFTP_PASSWORD`, its JSON files) or from
    where the store's library looks (SSH keys and agents). Each thread has its own connection, where
    fsspec's implementation isn't asynchronous, until the process ends; after an error that may
    have been the connection's, the next call makes a new one.

    What it can't promise:

    - Exclusive creation: fsspec has no such thing for all stores, so there is no `publish`, and a
      commit only looks whether the name is taken, then renames. Of two writers that do so at once,
      both may believe that they have won; only SFTP servers' renames refuse, most in one step.
    - Atomic commits: a rename is one on SFTP and local disks; on object stores, in fsspec's memory
      and others it is a copy, then a deletion, and a reader may see the file half way. The length
      is checked before and after.
    - Durable commits: nothing is synced but local files, and no directory is; else it is up to
      the server when bytes reach its disk.
    - On object stores, that a writer can't bring a deleted directory back: they have none.
    - On SFTP, that the server is the right one: fsspec accepts any host key.

    Args:
        protocol: fsspec's name of it, such as `sftp`. The URIs of calls may have another scheme.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def prepare_directory(self, uri: str, /) -> None:
        with self.reached(uri) as (store, path):
            if self._protocol in _WITHOUT_DIRECTORIES:
                return
            missing = _missing_directories(store, path, uri)
            options = _DIRECTORY_OPTIONS.get(self._protocol, {})
            for directory in reversed(missing):
                try:
                    store.mkdir(directory, create_parents=False, **options)
                except Exception:
                    # fsspec's implementations don't agree on what an existing one raises.
                    if _kind(store, directory) != "directory":
                        raise
            if missing and _kind(store, path) != "directory":
                message = f"fsspec's {self._protocol} does not make directories; use another store"
                raise InvalidRequestError(message, uri)

    def create(self, uri: str, /) -> FileOutputStream:
        return _FsspecOutputStream(self, uri)

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", _FsspecInputStream(self, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with self.reached(uri) as (store, path):
            return [
                FileStatus(
                    uri=_uris.join(uri, _name(entry)),
                    size=0 if entry["type"] == "directory" else entry.get("size") or 0,
                    modified_ms=_modified_ms(store, entry),
                    is_directory=entry["type"] == "directory",
                )
                for entry in _entries(store, path)
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        failures = []
        for uri in uris:
            try:
                with self.reached(uri) as (store, path):
                    _removed(store, path)
            except CheckpointError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def delete_empty_directory(self, uri: str, /) -> None:
        with self.reached(uri) as (store, path):
            # fsspec leaves open what rmdir does with what is in a directory.
            if self._protocol in _WITHOUT_DIRECTORIES or _entries(store, path):
                return
            try:
                store.rmdir(path)
            except FileNotFoundError:
                pass
            except Exception:
                if not _entries(store, path):
                    raise

    def delete_tree(self, uri: str, /) -> None:
        with self.reached(uri) as (store, path):
            try:
                is_link = _is_link(store, path)
            except (FileNotFoundError, NotADirectoryError):
                return
            if is_link:
                _removed(store, path)
                return
            kind = _kind(store, path)
            if kind not in (None, "directory"):
                raise InvalidRequestError("not possible here (it is a file)", uri)
            self._delete_below(store, path)

    def _delete_below(self, store: Any, path: str) -> None:
        # fsspec's own recursive deletion takes names with * for patterns.
        for entry in _entries(store, path):
            below = f"{path}/{_name(entry)}"
            if entry["type"] == "directory" and not entry.get("islink"):
                self._delete_below(store, below)
            else:
                _removed(store, below)
        if self._protocol not in _WITHOUT_DIRECTORIES:
            with suppress(FileNotFoundError):
                store.rmdir(path)

    @contextmanager
    def reached(self, uri: str) -> Iterator[tuple[Any, str]]:
        """Give this thread's fsspec instance, locked, and its name of the URI; translate errors."""
        with _translated(uri):
            store, root = self._instance(uri)
        with guarded(store, uri):
            _make_ready(store)
            store.invalidate_cache()
            yield store, f"{root.rstrip('/')}{_uris.local_path(uri)}".rstrip("/") or root

    def require_directory(self, store: Any, path: str) -> None:
        """Refuse a file below a missing directory where the store would not."""
        if self._protocol in _REFUSES_WITHOUT_DIRECTORY | _WITHOUT_DIRECTORIES:
            return
        directory = path.rpartition("/")[0]
        if _kind(store, directory) != "directory":
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)

    def _instance(self, uri: str) -> tuple[Any, str]:
        """The instance of fsspec, from its own cache, and its name of the authority's root."""
        _require(self._protocol)
        from fsspec.core import url_to_fs  # noqa: PLC0415  # optional

        # Without the path, of which fsspec would take ?, # and :: apart.
        authority = uri.partition("://")[2].partition("/")[0]
        root = f"{self._protocol}://{authority}/"
        options = _OPTIONS.get(self._protocol, {})
        if self._protocol not in _WITHOUT_CACHE_OPTION:
            try:
                return cast("tuple[Any, str]", url_to_fs(root, use_listings_cache=False, **options))
            except TypeError:
                _WITHOUT_CACHE_OPTION.add(self._protocol)
        return cast("tuple[Any, str]", url_to_fs(root, **options))


class _FsspecOutputStream:
    """A hidden file beside the target, which is renamed to it.

    Whether the name is taken is looked up right before; somebody who takes it in between is
    overwritten or, where the store's rename refuses that, wins.
    """

    def __init__(self, file_system: FsspecFileSystem, uri: str) -> None:
        self._file_system = file_system
        self._uri = uri
        hidden = f".{_uris.name(uri)}.{uuid.uuid4().hex}.inprogress"
        self._in_progress = _uris.join(_uris.parent(uri), hidden)
        with file_system.reached(uri) as (store, path):
            self._store = store
            self._path = path
            self._hidden_path = f"{path.rpartition('/')[0]}/{hidden}"
            file_system.require_directory(store, path)
            try:
                self._file = store.open(self._hidden_path, "wb")
            except FileNotFoundError:
                raise
            except Exception:
                with suppress(Exception):  # it may be there, when only the answer was lost
                    _removed(store, self._hidden_path)
                raise
        self._size = 0
        self._in_use = threading.Lock()
        self._is_broken = False
        self._is_complete = False
        self._has_name = False
        self._finished = False
        self._closed = False

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
        finally:
            self.abort()  # the hidden file has served, or is not to stay

    def _sync(self) -> None:
        self._file.flush()
        # paramiko's files have no such method, others have no descriptor to give
        with suppress(AttributeError, io.UnsupportedOperation):
            os.fsync(self._file.fileno())

    def _complete(self) -> None:
        with guarded(self._store, self._uri):
            self._sync()
            self._file.close()
            self._is_complete = True
            self._store.invalidate_cache()
            there = _size(self._store, self._hidden_path)
            if there is None and self._finished:
                raise StreamClosedError("stream was discarded", self._uri)
            if there is None:
                raise CheckpointNotFoundError("directory or hidden file was deleted", self._uri)
            if there not in (self._size, _UNKNOWN):
                message = f"store has {there} bytes of the {self._size} written"
                raise StorageUnavailableError(message, self._uri)
            if _kind(self._store, self._path) is not None:
                message = "file exists already; somebody else has written it"
                raise CheckpointConflictError(message, self._uri)

    def _rename(self) -> None:
        try:
            with guarded(self._store, self._uri):
                _rename(self._store, self._hidden_path, self._path)
        except CheckpointError as error:
            self._look_after(error)
            return
        try:
            with guarded(self._store, self._uri):
                self._store.invalidate_cache()
                there = _size(self._store, self._path)
        except CheckpointError as error:
            message = "file was renamed, but the store does not say whether it is there"
            raise OutcomeUnknownError(message, self._uri) from error
        if there is None:  # WebHDFS's answer to a rename that failed looks like success
            self._look_after(StorageUnavailableError("store did not rename the file", self._uri))
        elif there not in (self._size, _UNKNOWN):
            raise OutcomeUnknownError("another file is under that name now", self._uri)
        self._has_name = True

    def _look_after(self, failure: CheckpointError) -> None:
        """Find out what a failed rename has done; returns if it was done all the same."""
        try:
            with self._file_system.reached(self._uri) as (store, path):
                # Once the hidden file is gone, a rename that is still under way can't succeed.
                was_left = _kind(store, self._hidden_path) is not None
                was_left = was_left and _removed(store, self._hidden_path)
                there = _size(store, path)
        except CheckpointError as error:
            message = "rename failed, and so did looking whether it was done all the same"
            raise OutcomeUnknownError(message, self._uri) from error
        if not was_left and there == self._size:
            self._has_name = True
        elif there is None and not was_left and self._finished:
            raise StreamClosedError("stream was discarded", self._uri) from failure
        elif there is None:
            raise failure
        elif was_left and (
            isinstance(failure, CheckpointConflictError)
            or _is_answer(self._store, failure.__cause__)  # SFTP has no code for it
        ):
            message = "file exists already; somebody else has written it"
            raise CheckpointConflictError(message, self._uri) from failure
        else:
            message = "rename failed, and a file is there that may be ours or somebody else's"
            raise OutcomeUnknownError(message, self._uri) from failure

    def abort(self) -> None:
        # Without its hidden name a commit that is under way can't rename it, and whoever uses the
        # file closes it when done. Waits for no writer but one that this thread lent its own
        # connection, by creating the stream.
        self._finished = True
        if not self._closed_if_free():
            self._remove()

    @contextmanager
    def _using_file(self) -> Iterator[None]:
        try:
            with self._in_use:
                if self._finished:
                    raise StreamClosedError("stream is finished or discarded", self._uri)
                yield
        finally:
            if self._finished:
                self._closed_if_free()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """A file of which nobody knows how much was written must not be committed."""
        try:
            with guarded(self._store, self._uri):
                yield
        except BaseException:
            self._is_broken = True
            raise

    def _closed_if_free(self) -> bool:
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            if not self._closed:
                self._closed = True
                if not self._is_complete:
                    _discard(self._store, self._file)
                if not self._has_name:
                    self._remove()
        finally:
            self._in_use.release()
        return True

    def _remove(self) -> None:
        # By the connection of this thread: the writer's may be stuck.
        with suppress(CheckpointError):
            self._file_system.delete([self._in_progress])


class _FsspecInputStream(io.RawIOBase):
    """A file of fsspec as a raw stream, whose only errors are ours.

    Keeps position and size itself: paramiko says nothing on seek, takes an unknown size for 0 and
    a connection that ends for the end of the file.
    """

    def __init__(self, file_system: FsspecFileSystem, uri: str) -> None:
        self._uri = uri
        self._position = 0
        self._file: Any = None
        with file_system.reached(uri) as (store, path):
            self._store = store
            info = store.info(path)
            if info["type"] == "directory":
                raise InvalidRequestError("not possible here (it is a directory)", uri)
            self._file = store.open(path, "rb")
            if isinstance(self._file, io.BytesIO):
                # fsspec's memory gives out the stored object itself, with one position for all
                self._file = io.BytesIO(self._file.getvalue())
            size = info.get("size")
            if size is None:
                self._file.seek(0, io.SEEK_END)
                size = self._file.tell()
            self._size = int(size)
        self._file_position: int | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._require_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in base or base[whence] + offset < 0:
            raise InvalidRequestError(f"can't seek to {offset} from {whence}", self._uri)
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        self._require_open()
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._position)
        if wanted <= 0:
            return 0
        with guarded(self._store, self._uri):
            if self._file_position != self._position:
                self._file.seek(self._position)
            self._file_position = None
            data = self._file.read(wanted)
            if not data:
                message = f"file ended at byte {self._position} of {self._size}"
                raise StorageUnavailableError(message, self._uri)
        view[: len(data)] = data
        self._position += len(data)
        self._file_position = self._position
        return len(data)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            _discard(self._store, file)
        super().close()

    def _require_open(self) -> None:
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)


# fsspec's instances


def _require(protocol: str) -> None:
    """Import what the protocol needs."""
    try:
        import fsspec  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "others need fsspec: pip install 'holdfast[fsspec]'"
        raise InvalidRequestError(message) from error
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        message = f"a library is missing for fsspec's {protocol}; install it ({error})"
        raise InvalidRequestError(message) from error
    except ValueError as error:
        message = f"fsspec knows no {protocol} either; look for a package that adds it"
        raise InvalidRequestError(message) from error


@contextmanager
def guarded(store: Any, uri: str) -> Iterator[None]:
    """Use an fsspec instance alone; translate errors, and forget a connection that may be dead."""
    with _lock_of(store):
        try:
            with _translated(uri):
                yield
        except StorageFullError:
            raise
        except StorageUnavailableError as error:
            _forget(store, error.__cause__)
            raise


def _lock_of(store: Any) -> AbstractContextManager[object]:
    # Instances belong to a thread, but streams may go from one to another.
    if store.async_impl:
        return nullcontext()  # made for several threads
    if store.protocol == "memory":
        return _MEMORY_LOCK
    return cast(
        "AbstractContextManager[object]",
        store.__dict__.setdefault("_holdfast_lock", threading.RLock()),
    )


def _make_ready(store: Any) -> None:
    if _is_sftp(store) and "_holdfast_is_ready" not in store.__dict__:
        store.ftp.get_channel().settimeout(_SFTP_SILENCE_S)
        # paramiko leaves Nagle's algorithm on: 40 ms for every 32 KiB written
        store.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        store.__dict__["_holdfast_is_ready"] = True


def _forget(store: Any, cause: BaseException | None) -> None:
    """Take an instance out of fsspec's cache, so that the next call connects anew."""
    if _is_answer(store, cause):
        return  # other streams use the connection
    # Its public way would forget the connections of other threads too.
    cache = type(store)._cache  # noqa: SLF001
    token = store._fs_token  # noqa: SLF001
    if cache.get(token) is store:
        cache.pop(token, None)
    if _is_sftp(store):
        with suppress(Exception):
            store.client.close()


def _is_answer(store: Any, cause: BaseException | None) -> bool:
    """Whether an SFTP server has refused a call, for whatever reason, on a sound connection."""
    if not _is_sftp(store) or type(cause) is not OSError:
        return False
    channel, transport = store.ftp.get_channel(), store.client.get_transport()
    is_up = transport is not None and transport.is_active()
    return is_up and not (channel.closed or channel.eof_received)


def _is_sftp(store: Any) -> bool:
    return type(store).__module__ == "fsspec.implementations.sftp"


def _discard(store: Any, file: Any) -> None:
    """Close a file that nobody wants to be whole; never raises."""
    from fsspec.spec import AbstractBufferedFile  # noqa: PLC0415  # optional

    with suppress(Exception), _lock_of(store):
        if isinstance(file, AbstractBufferedFile) and file.writable():
            try:
                file.discard()
            finally:
                file.closed = True  # else the garbage collector uploads it
        else:
            file.close()


# Questions to an instance, and what its implementations disagree on

_UNKNOWN = -1
"""Size of a file of which the store does not say it."""


def _kind(store: Any, path: str) -> str | None:
    """What fsspec calls the type of it, or None if nothing is there."""
    try:
        return str(store.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def _size(store: Any, path: str) -> int | None:
    """Bytes of a file, or None if nothing is there."""
    try:
        size = store.info(path).get("size")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _UNKNOWN if size is None else int(size)


def _missing_directories(store: Any, path: str, uri: str) -> list[str]:
    """Those to be made for a directory, the innermost first."""
    missing: list[str] = []
    unclear: list[OSError] = []
    while path.strip("/"):
        try:
            kind = _kind(store, path)
        except OSError as error:  # SFTP has no code for a file in the way
            unclear.append(error)
            kind = None
        if kind == "directory":
            break
        if kind is not None:
            raise InvalidRequestError("not possible here (a file has that name)", uri)
        missing.append(path)
        path = path.rpartition("/")[0]
    if unclear:
        raise unclear[0]
    return missing


def _entries(store: Any, path: str) -> list[dict[str, Any]]:
    try:
        found = store.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        if _kind(store, path) in (None, "directory"):
            raise
        return []  # SFTP has no code for "not a directory"
    # A file, and a directory of some object stores, is listed as its own entry.
    return [entry for entry in found if entry["name"].strip("/") != path.strip("/")]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _is_link(store: Any, path: str) -> bool:
    if _is_sftp(store):  # fsspec follows it
        return stat.S_ISLNK(store.ftp.lstat(path).st_mode)
    return bool(store.info(path).get("islink"))


def _removed(store: Any, path: str) -> bool:
    """Delete a file; False if it wasn't there."""
    try:
        if _is_sftp(store):  # fsspec also deletes directories, and asks first what it is
            store.ftp.remove(path)
        else:
            store.rm_file(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if _kind(store, path) == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
        raise
    return True


def _rename(store: Any, old: str, new: str) -> None:
    from fsspec import AbstractFileSystem  # noqa: PLC0415  # optional

    if _is_sftp(store):
        # Unlike fsspec's mv it is part of the protocol, and refuses to overwrite: OpenSSH makes
        # a link, so that of two that race one fails.
        store.ftp.rename(old, new)
    elif getattr(store.mv, "__func__", None) is AbstractFileSystem.mv:
        # It does just this, but takes names with * for patterns.
        store.cp_file(old, new)
        store.rm_file(old)
    else:
        store.mv(old, new)


def _modified_ms(store: Any, entry: dict[str, Any]) -> int:
    """Last change by the store's clock; now, where it can't say, for who deletes what is old."""
    for key in _TIMES:
        modified_ms = _milliseconds(entry.get(key))
        if modified_ms is not None:
            return modified_ms
    modified_ms = None
    if entry["type"] != "directory":
        with suppress(NotImplementedError, FileNotFoundError):
            modified_ms = _milliseconds(store.modified(entry["name"]))
    return time.time_ns() // 1_000_000 if modified_ms is None else modified_ms


def _milliseconds(moment: object) -> int | None:
    """Milliseconds since 1970 UTC of any form in which fsspec gives a time."""
    if isinstance(moment, str):
        with suppress(ValueError):
            # FTP's is 20261231235959, with or without a fraction
            if moment[:14].isdecimal():
                moment = datetime.strptime(moment[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            else:
                moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    if isinstance(moment, int | float):
        # WebHDFS counts milliseconds; as seconds they would be after the year 5000.
        return int(moment if moment > 1e11 else moment * 1000)
    return None


# Errors


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Turn everybody's errors into ours."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # each library has its own
        raise _error_for(error, uri) from error


def _error_for(error: Exception, uri: str) -> CheckpointError:
    # Only what can't hold a secret is quoted; the rest is in the cause.
    text = getattr(error, "strerror", None) or type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError):
        return CheckpointConflictError("file exists already; somebody else has written it", uri)
    if (
        isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError)
        or number in _NOT_ALLOWED
    ):
        return InvalidRequestError(f"not possible here ({text})", uri)
    if number in _NO_ROOM:
        return StorageFullError(f"no room left ({text})", uri)
    if _was_refused(error):
        return InvalidRequestError(f"not let in; check credentials and host key ({text})", uri)
    if isinstance(error, TypeError | ValueError | NotImplementedError):
        message = f"fsspec can't do this ({text}); check its configuration of that protocol"
        return InvalidRequestError(message, uri)
    return StorageUnavailableError(f"store failed ({text})", uri)


def _was_refused(error: Exception) -> bool:
    """Whether it is about credentials, which trying again may lock."""
    text = str(error)
    if text == "No authentication methods available":
        return True
    # paramiko says the same class of a connection that is lost meanwhile
    is_lost = "transport shut down" in text or "timeout" in text
    return not is_lost and any(each.__name__ in _NOT_LET_IN for each in type(error).__mro__)
