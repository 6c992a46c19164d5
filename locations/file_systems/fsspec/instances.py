"""fsspec's own instances: found by URI, used by one thread at a time, forgotten when lost."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError, StorageFullError, StorageUnavailableError
from holdfast.locations.file_systems.fsspec.fsspec_errors import translated

# Whatever fsspec's configuration says: nothing but `prepare_directory` makes a directory.
_OPTIONS = {protocol: {"auto_mkdir": False} for protocol in ("file", "local", "smb")}

# fsspec's memory store is one for all threads and not safe for them.
_MEMORY_LOCK = threading.RLock()


def implementation(protocol: str) -> Any:
    """The class of fsspec for a protocol, or ours in its place.

    Raises:
        InvalidRequestError: fsspec doesn't know it, or a library is missing.
    """
    try:
        import fsspec  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "others need fsspec: pip install 'holdfast[fsspec]'"
        raise InvalidRequestError(message) from error
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        message = f"a library is missing for fsspec's {protocol}; install it ({error})"
        raise InvalidRequestError(message) from error
    except ValueError as error:
        message = f"fsspec knows no {protocol} either; look for a package that adds it"
        raise InvalidRequestError(message) from error
    if kind.__module__ == "fsspec.implementations.sftp":
        from holdfast.locations.file_systems.fsspec.sftp import Sftp  # noqa: PLC0415  # optional

        return Sftp
    return kind


@contextmanager
def reached(protocol: str, uri: str) -> Iterator[tuple[Any, str]]:
    """Give this thread's instance, locked, and its name of the URI; translate errors."""
    with translated(uri):
        store, root = _instance(protocol, uri)
    with guarded(store, uri):
        store.invalidate_cache()
        yield store, f"{root.rstrip('/')}{uripath.local_path(uri)}".rstrip("/") or root


@contextmanager
def guarded(store: Any, uri: str) -> Iterator[None]:
    """Use an instance alone; translate errors, and forget a connection that may be dead."""
    with _lock_of(store):
        try:
            with translated(uri):
                yield
        except StorageFullError:
            raise
        except StorageUnavailableError as error:
            _forget(store, error.__cause__)
            raise


def give_up(store: Any, file: Any) -> None:
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


def _instance(protocol: str, uri: str) -> tuple[Any, str]:
    """The instance, from fsspec's cache of them, and its name of the authority's root."""
    authority = uri.partition("://")[2].partition("/")[0]
    if authority.rpartition("@")[2].startswith("["):
        message = "fsspec can't read IPv6 addresses; use a host name, if need be from /etc/hosts"
        raise InvalidRequestError(message, uri)
    kind = implementation(protocol)
    # As url_to_fs does it, but that takes ::, ? and # in paths apart.
    root = f"{protocol}://{authority}/"
    options = kind._get_kwargs_from_urls(root) | _OPTIONS.get(protocol, {})  # noqa: SLF001  # not public
    try:
        store = kind(**options, use_listings_cache=False)
    except TypeError:  # not every class takes it
        store = kind(**options)
    return store, store._strip_protocol(root)  # noqa: SLF001  # not public


def _lock_of(store: Any) -> AbstractContextManager[object]:
    # Instances belong to a thread, but streams may go from one to another.
    if store.async_impl:
        return nullcontext()  # made for several threads
    if store.protocol == "memory":
        return _MEMORY_LOCK
    lock: AbstractContextManager[object]
    lock = store.__dict__.setdefault("_holdfast_lock", threading.RLock())
    return lock


def _forget(store: Any, cause: BaseException | None) -> None:
    """Take an instance out of fsspec's cache, so that the next call connects anew."""
    close = getattr(store, "close_unless_answered", None)  # SFTP's
    if close is not None and not close(cause):
        return  # other streams use the connection
    # The public way would forget the connections of other threads too.
    type(store)._cache.pop(store._fs_token, None)  # noqa: SLF001  # see above
