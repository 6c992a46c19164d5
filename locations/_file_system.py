"""The port to a store: what a storage needs of a file system, and nothing more."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from holdfast.errors import InvalidRequestError
from holdfast.locations import _uris

BytesLike = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One entry of a directory.

    Attributes:
        uri: Normalized URI of the entry.
        size: Length in bytes; 0 for a directory.
        modified_ms: Last modification by the store's clock, milliseconds since 1970 UTC.
        is_directory: Whether it is a directory, or a common prefix of objects.
    """

    uri: str
    size: int
    modified_ms: int
    is_directory: bool


class FileOutputStream(Protocol):
    """A file in the making. Its name is free for readers until `commit` has returned.

    One thread writes; `abort` may be called from another one.
    """

    def write(self, data: BytesLike, /) -> None:
        """Append the bytes. Raises `StorageUnavailableError`."""
        ...

    def commit(self) -> None:
        """Make the file appear under its name, whole and durable; call it once, last.

        Raises `CheckpointConflictError` if the name is taken, `StorageUnavailableError`,
        `OutcomeUnknownError`; after the first two nothing is left behind.
        """
        ...

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after `commit` or `abort`, and never raises."""
        ...


class FileSystem(Protocol):
    """A store of files under normalized URIs.

    Writes name their precondition, so that of two racing writers one learns that it lost.
    Instances may be shared between threads and hold nothing that can't be pickled: executors
    get copies. Any method may raise `StorageUnavailableError`, or `InvalidRequestError` where
    permissions forbid the call.
    """

    def prepare_directory(self, uri: str, /) -> None:
        """Make files below `uri` possible. Creates directories where the store has such."""
        ...

    def create(self, uri: str, /) -> FileOutputStream:
        """Begin a file of unknown length under a name that was never used before."""
        ...

    def publish(self, uri: str, data: bytes, /) -> None:
        """Store a small file in one atomic, durable step, only if the name is free.

        Raises `CheckpointConflictError` if it is taken, `OutcomeUnknownError` if the store
        did not say.
        """
        ...

    def open(self, uri: str, /) -> BinaryIO:
        """Open for reading, seekable and unbuffered. Raises `CheckpointNotFoundError`."""
        ...

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        """The entries of a directory in no particular order; none if there is no directory."""
        ...

    def delete(self, uris: Iterable[str], /) -> None:
        """Delete files, as many as possible; missing ones count as deleted.

        Raises the first failure after all were tried.
        """
        ...

    def delete_empty_directory(self, uri: str, /) -> None:
        """Delete a directory unless something is in it; a missing one counts as deleted."""
        ...

    def delete_tree(self, uri: str, /) -> None:
        """Delete a directory and all below it; a missing one counts as deleted."""
        ...


_FACTORIES: dict[str, Callable[[], FileSystem]] = {}


def register_file_system(scheme: str, factory: Callable[[], FileSystem]) -> None:
    """Say how to reach the URIs of a scheme, in this process; replaces what was registered."""
    _FACTORIES[scheme.lower()] = factory


def file_system_for(uri: str) -> FileSystem:
    """The file system of a normalized URI.

    Raises:
        InvalidRequestError: No file system is registered for its scheme.
    """
    factory = _FACTORIES.get(_uris.scheme(uri))
    if factory is None:
        known = ", ".join(sorted(f"{scheme}://" for scheme in _FACTORIES))
        message = f"no file system for {_uris.scheme(uri)}://; this version knows {known}"
        raise InvalidRequestError(message, uri)
    return factory()
