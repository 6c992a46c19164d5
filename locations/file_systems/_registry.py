"""Which file system is behind a URI."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import InvalidRequestError
from holdfast.locations import _uris
from holdfast.locations.file_systems._fsspec import fsspec_file_system
from holdfast.locations.file_systems._local import LocalFileSystem
from holdfast.locations.file_systems._memory import MemoryFileSystem
from holdfast.locations.file_systems._port import ExclusiveFileSystem, FileSystem
from holdfast.locations.file_systems._retries import RetryPolicy
from holdfast.locations.file_systems._retrying import (
    RetryingExclusiveFileSystem,
    RetryingFileSystem,
)
from holdfast.locations.file_systems._s3 import S3FileSystem, S3Settings

_DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class _S3:
    settings: S3Settings

    def __call__(self) -> FileSystem:
        return S3FileSystem(self.settings)


_BUILT_IN: dict[str, tuple[Callable[[], FileSystem], RetryPolicy]] = {
    "file": (LocalFileSystem, _DEFAULT_POLICY),
    "memory": (MemoryFileSystem, _DEFAULT_POLICY),
    "s3": (_S3(S3Settings()), _DEFAULT_POLICY),
    "s3a": (_S3(S3Settings()), _DEFAULT_POLICY),
}

_LOCK = threading.Lock()
_FACTORIES = dict(_BUILT_IN)
_OPENED: dict[str, RetryingFileSystem] = {}


def register_file_system(
    scheme: str, factory: Callable[[], FileSystem], *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Say how to reach the URIs of a scheme, in this process; replaces what was registered.

    Args:
        scheme: The part of a URI before `://`, in any case.
        factory: Makes the adapter, once. One that can also `publish` is an `ExclusiveFileSystem`;
            any other is for a single writer.
        retries: When calls that fail are given up.
    """
    with _LOCK:
        _FACTORIES[scheme.lower()] = (factory, retries)
        _OPENED.pop(scheme.lower(), None)


def use_s3(settings: S3Settings) -> None:
    """Reach `s3://` and `s3a://` by these settings from now on, in this process.

    A scheme for which somebody has registered an adapter of his own is left to it.
    """
    for scheme in ("s3", "s3a"):
        known = _FACTORIES[scheme][0]
        if isinstance(known, _S3) and known.settings != settings:
            register_file_system(scheme, _S3(settings))


def unregister_file_system(scheme: str) -> None:
    """Forget a scheme that was registered; a built-in one is itself again."""
    scheme = scheme.lower()
    with _LOCK:
        _FACTORIES.pop(scheme, None)
        _OPENED.pop(scheme, None)
        if scheme in _BUILT_IN:
            _FACTORIES[scheme] = _BUILT_IN[scheme]


def file_system_for(uri: str) -> RetryingFileSystem:
    """The file system of a normalized URI; it repeats what fails, as its policy says.

    Schemes that nobody registered are looked for in fsspec, as are those with `fsspec+` in front.

    Raises:
        InvalidRequestError: No file system is known for its scheme, or a library that it needs
            is missing.
    """
    scheme = _uris.scheme(uri)
    opened = _OPENED.get(scheme)
    if opened is None:
        made = _open(scheme, uri)  # not under the lock: it may import, and ask for other schemes
        with _LOCK:
            opened = _OPENED.setdefault(scheme, made)
    return opened


def _open(scheme: str, uri: str) -> RetryingFileSystem:
    if scheme in _FACTORIES:
        factory, policy = _FACTORIES[scheme]
        inner = factory()
    else:
        known = ", ".join(sorted(f"{scheme}://" for scheme in _FACTORIES))
        try:
            inner = fsspec_file_system(scheme.removeprefix("fsspec+"))
        except InvalidRequestError as error:
            message = f"no file system for {scheme}://; built in: {known}; {error}"
            raise InvalidRequestError(message, uri) from error
        policy = _DEFAULT_POLICY
    if isinstance(inner, ExclusiveFileSystem):
        return RetryingExclusiveFileSystem(inner, policy)
    return RetryingFileSystem(inner, policy)
