"""fsspec's instances, used by one thread at a time and dropped when disconnected: requests, entries, errors."""

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

from holdfast.common import FULL_ERRNOS, Clock, shortage_of, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

# Overrides fsspec's configuration: only `prepare_directory` creates directories.
_OPTIONS = {protocol: {"auto_mkdir": False} for protocol in ("file", "local", "smb")}

_REFUSED_ERRNOS = {errno.EROFS, errno.ENAMETOOLONG}

# By name, because their libraries (paramiko, asyncssh) may not be installed.
_UNAUTHORIZED = {
    "AuthenticationException",
    "BadHostKeyException",
    "HostKeyNotVerifiable",
    "PermissionDenied",
}

# All threads share fsspec's memory store, which is not thread-safe.
_MEMORY_LOCK = threading.RLock()


def implementation(protocol: str) -> Any:
    """Return the class of fsspec for a protocol, or our replacement. Raises as `fsspec_file_system` does."""
    try:
        import fsspec  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "other schemes need fsspec: pip install 'holdfast[fsspec]'"
        raise InvalidRequestError(message, kind="missing-package") from error
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        message = f"fsspec's {protocol} needs a library that is not installed ({error})"
        raise InvalidRequestError(message, kind="missing-package") from error
    except ValueError as error:
        message = f"fsspec does not support {protocol} either; look for a package that adds it"
        raise InvalidRequestError(message, kind="location") from error
    if kind.__module__ == "fsspec.implementations.sftp":
        from holdfast.locations.file_systems.sftp import Sftp  # noqa: PLC0415  # optional

        return Sftp
    return kind


@contextmanager
def locked_store(protocol: str, uri: str) -> Iterator[tuple[Any, str]]:
    """Lock this thread's instance, yield it with its path for the URI, and translate errors."""
    with map_errors(uri):
        store, root = _instance(protocol, uri)
    with use_store(store, uri):
        store.invalidate_cache()
        yield store, f"{root.rstrip('/')}{uripath.local_path(uri)}".rstrip("/") or root


@contextmanager
def use_store(store: Any, uri: str) -> Iterator[None]:
    """Lock an instance, translate errors, and drop a connection that may be dead."""
    with _lock_of(store):
        try:
            with map_errors(uri):
                yield
        except StorageFullError:
            raise
        except StorageUnavailableError as error:
            _forget(store, error.__cause__)
            raise


def discard_file(store: Any, file: Any) -> None:
    """Close a file without completing it; never raises."""
    from fsspec.spec import AbstractBufferedFile  # noqa: PLC0415  # optional

    with suppress(Exception), _lock_of(store):
        if isinstance(file, AbstractBufferedFile) and file.writable():
            try:
                file.discard()
            finally:
                file.closed = True  # else the garbage collector uploads it
        else:
            file.close()


def _instance(protocol: str, uri: str) -> tuple[Any, str]:
    """Return the instance from fsspec's cache, and its path of the authority's root."""
    authority = uri.partition("://")[2].partition("/")[0]
    if authority.rpartition("@")[2].startswith("["):
        message = (
            "fsspec does not support IPv6 addresses; use a host name, for example from /etc/hosts"
        )
        raise InvalidRequestError(message, uri)
    kind = implementation(protocol)
    # Like url_to_fs, which however splits paths at ::, ? and #.
    root = f"{protocol}://{authority}/"
    options = kind._get_kwargs_from_urls(root) | _OPTIONS.get(protocol, {})  # noqa: SLF001  # not public
    try:
        store = kind(**options, use_listings_cache=False)
    except TypeError:  # not every class accepts it
        store = kind(**options)
    return store, store._strip_protocol(root)  # noqa: SLF001  # not public


def _lock_of(store: Any) -> AbstractContextManager[object]:
    # Instances belong to a thread, but streams may move between threads.
    if store.async_impl:
        return nullcontext()  # thread-safe
    if store.protocol == "memory":
        return _MEMORY_LOCK
    lock: AbstractContextManager[object]
    lock = store.__dict__.setdefault("_holdfast_lock", threading.RLock())
    return lock


def _forget(store: Any, cause: BaseException | None) -> None:
    """Remove an instance from fsspec's cache, so that the next call reconnects."""
    close = getattr(store, "close_unless_answered", None)  # SFTP's
    if close is not None and not close(cause):
        return  # other streams use the connection
    # The public method would also drop the connections of other threads.
    type(store)._cache.pop(store._fs_token, None)  # noqa: SLF001  # see above


def kind(store: Any, path: str) -> str | None:
    """Return fsspec's type of a file or directory, or None if it does not exist."""
    try:
        return str(store.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def size(store: Any, path: str) -> int | None:
    """Return the size of a file in bytes, or None if it does not exist."""
    try:
        return int(store.info(path)["size"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def entries(store: Any, path: str) -> list[dict[str, Any]]:
    """Return fsspec's entries of a directory; a missing one has no entries."""
    try:
        listed = store.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A file, and a directory on some object stores, is listed as its own entry.
    return [entry for entry in listed if entry["name"].strip("/") != path.strip("/")]


def name(entry: dict[str, Any]) -> str:
    """Return the last part of an entry's path."""
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def is_link(entry: dict[str, Any]) -> bool:
    """Return whether an entry is a link."""
    return bool(entry.get("islink")) or entry["type"] == "link"


def missing_directories(store: Any, path: str, uri: str) -> list[str]:
    """Return the missing directories of a path, the outermost first."""
    missing: list[str] = []
    while path.strip("/"):
        known_kind = kind(store, path)
        if known_kind == "directory":
            break
        if known_kind is not None:
            raise InvalidRequestError(
                "can't create directory: a file has its name", uri, kind="location"
            )
        missing.insert(0, path)
        path = path.rpartition("/")[0]
    return missing


def remove(store: Any, path: str) -> bool:
    """Delete a file; returns False if it does not exist."""
    try:
        store.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def rename(store: Any, old: str, new: str) -> None:
    """Rename a file, which is a copy and a deletion in many stores."""
    from fsspec import AbstractFileSystem  # noqa: PLC0415  # optional

    if getattr(store.mv, "__func__", None) is AbstractFileSystem.mv:
        # fsspec's method does the same, but treats names with * as patterns.
        store.cp_file(old, new)
        store.rm_file(old)
    else:
        store.mv(old, new)


_KEYS = [
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
"""Names of the modification time in fsspec's implementations, the best first."""


def modified_ms(store: Any, entry: dict[str, Any], clock: Clock) -> int:
    """Return an entry's modification time by the store's clock.

    Without one it is the present, so that a cleanup of old files spares it.
    """
    for key in _KEYS:
        changed_ms = milliseconds(entry.get(key))
        if changed_ms is not None:
            return changed_ms
    changed_ms = None
    if entry["type"] != "directory":
        with suppress(NotImplementedError, FileNotFoundError):
            changed_ms = milliseconds(store.modified(entry["name"]))
    return clock.now_ms() if changed_ms is None else changed_ms


def milliseconds(moment: object) -> int | None:
    """Convert any form of a time in fsspec to milliseconds since 1970 UTC."""
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
        # WebHDFS uses milliseconds; as seconds they would be after the year 5000.
        return int(moment if moment > 1e11 else moment * 1000)
    return None


@contextmanager
def map_errors(uri: str) -> Iterator[None]:
    """Translate errors of fsspec and of the libraries below it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # each library has its own classes
        raise _error_for(error, uri) from error


def _error_for(error: Exception, uri: str) -> CheckpointError:
    # Only text that can't contain a secret is quoted; the rest is in the cause.
    text = getattr(error, "strerror", None) or type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError):
        return CheckpointConflictError.exists(uri)
    if isinstance(error, PermissionError):
        return InvalidRequestError(f"operation is not permitted ({text})", uri, kind="refused")
    if isinstance(error, NotADirectoryError | IsADirectoryError) or number in _REFUSED_ERRNOS:
        return InvalidRequestError(f"path can't be used ({text})", uri, kind="location")
    if number in FULL_ERRNOS:
        return StorageFullError(f"no space left ({text})", uri)
    if _was_refused(error):
        message = f"access denied; check credentials and host key ({text})"
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, TypeError | ValueError | NotImplementedError):
        message = (
            f"fsspec can't perform the request ({text}); check its configuration of the protocol"
        )
        return InvalidRequestError(message, uri, kind="connection")
    return shortage_of(error, uri) or StorageUnavailableError(f"store failed ({text})", uri)


def _was_refused(error: Exception) -> bool:
    """Return whether an error is about credentials; retries could lock an account."""
    text = str(error)
    if text == "No authentication methods available":
        return True
    # paramiko uses the same class for a connection that is lost during authentication
    is_lost = "transport shut down" in text or "timeout" in text
    return not is_lost and any(each.__name__ in _UNAUTHORIZED for each in type(error).__mro__)
