"""fsspec's instances: found by URI, used by one thread at a time, dropped when disconnected."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError, StorageFullError, StorageUnavailableError
from holdfast.locations.file_systems.fsspec.fsspec_errors import map_errors

# Overrides fsspec's configuration: only `prepare_directory` creates directories.
_OPTIONS = {protocol: {"auto_mkdir": False} for protocol in ("file", "local", "smb")}

# All threads share fsspec's memory store, which is not thread-safe.
_MEMORY_LOCK = threading.RLock()


def implementation(protocol: str) -> Any:
    """Return the class of fsspec for a protocol, or our replacement.

    Raises:
        InvalidRequestError: fsspec doesn't support it, or a library is missing.
    """
    try:
        import fsspec  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "other schemes need fsspec: pip install 'holdfast[fsspec]'"
        raise InvalidRequestError(message) from error
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        message = f"fsspec's {protocol} needs a library that is not installed ({error})"
        raise InvalidRequestError(message) from error
    except ValueError as error:
        message = f"fsspec does not support {protocol} either; look for a package that adds it"
        raise InvalidRequestError(message) from error
    if kind.__module__ == "fsspec.implementations.sftp":
        from holdfast.locations.file_systems.fsspec.sftp import Sftp  # noqa: PLC0415  # optional

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
