"""Local disks and mounts such as NFS: durable writes by fsync, exclusive creation by link."""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from holdfast.common import (
    FULL_ERRNOS,
    ContextPool,
    collect_failures,
    raise_first,
    shortage_of,
    uripath,
)
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import BytesLike, FileOutputStream, FileStatus

# Only the job's user may read state, because it contains rows of the stream.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700

# A retry can't succeed: a file where a directory should be, a long name.
_DENIED_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNUSABLE_ERRNOS = {
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
}

_UNLINK_THREADS = 4
_MIN_PARALLEL_DELETES = 64

_MISSING_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}

_NO_LINK_ERRNOS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalFileSystem:
    """`file://`. A published file is written under a temporary name, synced, and linked to its name."""

    def __init__(self) -> None:
        # Directories whose own names are on disk, so that each is synced once.
        self._durable: set[str] = set()

    def prepare_directory(self, uri: str, /) -> None:
        path = uripath.local_path(uri)
        with _ErrorMapping(uri, "create directory"):
            missing, above = [], path
            while not os.path.isdir(above):
                missing.append(above)
                above = os.path.dirname(above)
            for directory in reversed(missing):
                with suppress(FileExistsError):
                    os.mkdir(directory, _DIRECTORY_MODE)
                self._durable.discard(directory)
            if not os.path.isdir(path):
                raise InvalidRequestError(
                    "can't create directory: a file has its name", uri, kind="location"
                )
            if not os.access(path, os.W_OK | os.X_OK):
                raise InvalidRequestError("directory is not writable", uri, kind="refused")
            self._sync_ancestors(path)

    def _sync_ancestors(self, path: str) -> None:
        # Existing directories too: the process that made them may have been killed before it synced.
        upper = os.path.dirname(path)
        _sync_directory(upper)
        while upper not in self._durable and upper != "/":
            above = os.path.dirname(upper)
            with suppress(PermissionError):  # then another user created it
                _sync_directory(above)
            self._durable.add(upper)
            upper = above

    def create(self, uri: str, /) -> FileOutputStream:
        return _LocalOutputStream(uri)

    def link(self, path: str, uri: str, /) -> FileOutputStream:
        return _LocalOutputStream(uri, linked_to=path)

    def publish(self, uri: str, data: bytes, /) -> None:
        path = uripath.local_path(uri)
        directory, name = os.path.split(path)
        in_progress = os.path.join(directory, uripath.hidden_name(name))
        try:
            with _ErrorMapping(uri, "create file"):
                descriptor = _create(in_progress)
                try:
                    _write(descriptor, data)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                if _has_other_files(directory):
                    _sync_directory(directory)  # the files that the data refers to come first
                _link(in_progress, path, uri)
        finally:
            with suppress(OSError):
                os.unlink(in_progress)
        _sync_name(path, uri)

    def open(self, uri: str, /) -> BinaryIO:
        path = uripath.local_path(uri)
        with _ErrorMapping(uri, "open file"):
            try:
                return open(path, "rb", buffering=0, opener=_open_file)
            except OSError as error:
                if error.errno in _MISSING_ERRNOS and os.path.islink(path):
                    # Not missing: the link once had a target.
                    message = "file is a link without a target"
                    raise CheckpointCorruptedError(message, uri) from error
                raise

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        statuses = []
        with _ErrorMapping(uri, "list directory"), suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(uripath.local_path(uri)) as entries:
                for entry in entries:
                    status = _status_of(entry)
                    if status is None:
                        continue
                    is_directory = stat.S_ISDIR(status.st_mode)
                    has_bytes = not (is_directory or stat.S_ISLNK(status.st_mode))
                    statuses.append(
                        FileStatus(
                            uri=uripath.join(uri, entry.name),
                            size=status.st_size if has_bytes else 0,
                            modified_ms=status.st_mtime_ns // 1_000_000,
                            is_directory=is_directory,
                            is_link=entry.is_symlink(),
                        )
                    )
        return statuses

    def delete(self, uris: Iterable[str], /) -> None:
        files = list(uris)
        failures = _unlink_all(files)
        # A deleted name must not reappear after a power failure without its content. Missing names too:
        # the process that deleted them may have failed before it synced.
        failures += collect_failures(_sync_if_exists, dict.fromkeys(map(uripath.parent, files)))
        raise_first(failures)

    def delete_empty_directory(self, uri: str, /) -> None:
        with _ErrorMapping(uri, "delete directory"):
            try:
                os.rmdir(uripath.local_path(uri))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def delete_tree(self, uri: str, /) -> None:
        path = uripath.local_path(uri)
        with _ErrorMapping(uri, "delete directory"):
            if os.path.islink(path):
                _remove(os.unlink, path)
                return
            # Unlike shutil.rmtree, this continues if another process deletes an entry concurrently.
            for parent, directories, files in os.walk(
                path, topdown=False, onerror=_raise_unless_missing
            ):
                below = uri + parent.removeprefix(path)
                raise_first(_unlink_all([uripath.join(below, name) for name in files]))
                for name in directories:
                    inner = os.path.join(parent, name)
                    _remove(os.unlink if os.path.islink(inner) else os.rmdir, inner)
            _remove(os.rmdir, path)


class _LocalOutputStream:
    """A file that has its final name from the start; O_EXCL keeps other writers out.

    Optimized for thousands of small files: few calls per file. With `linked_to` it is an existing file that gets this
    name as well.
    """

    def __init__(self, uri: str, linked_to: str | None = None) -> None:
        self._uri = uri
        self._path = uripath.local_path(uri)
        self._is_linked = linked_to is not None
        with _ErrorMapping(uri, "create file"):
            if linked_to is None:
                self._descriptor = _create(self._path)
            else:
                self._descriptor = _create_link(linked_to, self._path)
        self._deciding = threading.Lock()  # between `commit` and `abort`
        self._in_use = threading.Lock()
        self._process = os.getpid()
        self._finished = False
        self._closed = False

    def write(self, data: BytesLike, /) -> None:
        try:
            with self._in_use, _ErrorMapping(self._uri, "write file"):
                self._check_unfinished()
                _write(self._descriptor, data)
        except BaseException:
            self.abort()  # an incomplete file must not be committed
            raise
        self._close_if_finished()

    def sync(self) -> None:
        try:
            with self._in_use, _ErrorMapping(self._uri, "sync file"):
                self._check_unfinished()
                os.fsync(self._descriptor)
        except BaseException:
            self.abort()  # the next sync would report success
            raise
        self._close_if_finished()

    def commit(self, *, durable_name: bool = True) -> None:
        try:
            self.sync()
            with self._deciding:
                self._check_unfinished()
                self._check_still_there()
                self._finished = True
        except BaseException:
            self.abort()
            raise
        self._close_if_finished()
        if durable_name:
            _sync_name(self._path, self._uri)

    def abort(self) -> None:
        # Does not wait: a thread that uses the descriptor closes it when done.
        with self._deciding:
            if not self._finished:
                self._finished = True
                if self._process == os.getpid():  # a fork must not delete its parent's file
                    with suppress(OSError):
                        os.unlink(self._path)
        self._close_if_finished()

    def _check_unfinished(self) -> None:
        if self._finished:
            raise StreamClosedError("stream is finished or discarded", self._uri)

    def _check_still_there(self) -> None:
        status = os.fstat(self._descriptor)
        is_there = status.st_nlink > 0
        if self._is_linked:  # it has another name, which the link count includes
            try:
                is_there = os.path.samestat(status, os.stat(self._path))
            except FileNotFoundError:
                is_there = False
        if not is_there:
            raise StorageUnavailableError("file was deleted while it was being written", self._uri)

    def _close_if_finished(self) -> None:
        if self._finished and not self._closed and self._in_use.acquire(blocking=False):
            try:
                if not self._closed:
                    self._closed = True
                    with suppress(OSError):  # the data was synced before
                        os.close(self._descriptor)
            finally:
                self._in_use.release()


def _create(path: str) -> int:
    """Open a new file; fails if it exists."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)


def _create_link(file: str, path: str) -> int:
    """Give an existing file one more name and open it; fails if the name is taken."""
    try:
        # A link keeps the time of the last write, and a sweep would mistake the new file for an old one.
        os.utime(file)
        os.link(file, path)
    except OSError as error:
        if error.errno in {*_NO_LINK_ERRNOS, errno.EXDEV}:
            message = f"file can't be linked here ({error.strerror})"
            raise InvalidRequestError(message, path) from error
        raise
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise


def _open_file(path: str, flags: int) -> int:
    """Open a regular file; opening a pipe would block forever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # no effect on regular files
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` itself refuses a directory
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", path)


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry's target, of the link itself if the target is missing, or None if it is gone."""
    for follows_links in (True, False):
        try:
            return entry.stat(follow_symlinks=follows_links)
        except OSError as error:
            if error.errno not in _MISSING_ERRNOS:
                raise
    return None


def _write(descriptor: int, data: BytesLike) -> None:
    written = os.write(descriptor, data)
    left = memoryview(data).cast("B")[written:]
    while left:
        left = left[os.write(descriptor, left) :]


def _has_other_files(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return any(not entry.name.startswith(".") for entry in entries)


def _link(in_progress: str, path: str, uri: str) -> None:
    """Give a finished file its name. A link, unlike a rename, fails if the name is taken."""
    try:
        os.link(in_progress, path)
    except FileExistsError:
        # NFS may retry a link whose answer was lost, and then finds our own.
        if not _is_same(in_progress, path):
            # It may be our own file, of an attempt whose name is not durable yet.
            _sync_name(path, uri)
            raise
    except OSError as error:
        if error.errno in _NO_LINK_ERRNOS:
            message = "file system does not support hard links, which exclusive commits need"
            raise InvalidRequestError(message, uri, kind="location") from error
        raise


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:  # the other writer has deleted it since
        return False


def _sync_name(path: str, uri: str) -> None:
    """Make the name of an existing file durable."""
    try:
        _sync_directory(os.path.dirname(path))
    except OSError as error:
        message = f"file was written, but its directory could not be synced ({error.strerror})"
        raise OutcomeUnknownError(message, uri) from error


def _unlink_all(uris: Sequence[str]) -> list[CheckpointError]:
    """Delete files, many of them in parallel, which is faster."""
    if len(uris) < _MIN_PARALLEL_DELETES:
        return collect_failures(_unlink, uris)
    parts = [uris[first::_UNLINK_THREADS] for first in range(_UNLINK_THREADS)]
    with ContextPool(_UNLINK_THREADS, thread_name_prefix="holdfast-unlink") as pool:
        failed = pool.map(partial(collect_failures, _unlink), parts)
        return [failure for failures in failed for failure in failures]


def _unlink(uri: str) -> None:
    with _ErrorMapping(uri, "delete file"), suppress(FileNotFoundError):
        os.unlink(uripath.local_path(uri))


def _sync_if_exists(directory: str) -> None:
    with (
        _ErrorMapping(directory, "sync directory"),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        _sync_directory(uripath.local_path(directory))


def _remove(remove: Callable[[str], None], path: str) -> None:
    with suppress(FileNotFoundError):
        remove(path)


def _raise_unless_missing(error: OSError) -> None:
    """Raise errors that os.walk would ignore, unless the directory is missing."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _ErrorMapping:
    """Translates errors of the operating system; a class, because a generator is slower."""

    __slots__ = ("_action", "_uri")

    def __init__(self, uri: str, action: str) -> None:
        self._uri = uri
        self._action = action

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object, /
    ) -> None:
        if isinstance(error, OSError):
            raise _error_for(error, self._uri, self._action) from error


def _error_for(error: OSError, uri: str, action: str) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError):
        return CheckpointConflictError.exists(uri)
    text = error.strerror
    if error.errno in _DENIED_ERRNOS:
        message = f"can't {action}: operation is not permitted ({text})"
        return InvalidRequestError(message, uri, kind="refused")
    if error.errno in _UNUSABLE_ERRNOS:
        return InvalidRequestError(
            f"can't {action}: path can't be used ({text})", uri, kind="location"
        )
    if error.errno in FULL_ERRNOS:
        return StorageFullError(f"can't {action}: no space left ({text})", uri)
    message = f"can't {action}: local disk failed ({text})"
    return shortage_of(error, uri) or StorageUnavailableError(message, uri)
