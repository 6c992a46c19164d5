"""The port to a store: what a storage needs of a file system, and nothing more.

`FileSystem` is what every store can do. `ExclusiveFileSystem` is for stores that can also create
a file only if its name is free, in one step: those alone keep two drivers apart. `LinkingFileSystem` is for
those that need no copy of a file that is on this machine's disk already.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable

BytesLike = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One entry of a directory.

    Attributes:
        uri: Normalized URI of the entry.
        size: Length in bytes; 0 for a directory.
        modified_ms: Last modification by the store's clock, milliseconds since 1970 UTC; not before a file
            got its name by `FileOutputStream`. 0 for a directory in stores that have no directories.
        is_directory: Whether it is a directory, or a common prefix of objects.
        is_link: Whether it leads to something elsewhere, which the other fields then describe; if
            that is nowhere, it is an empty file.
    """

    uri: str
    size: int
    modified_ms: int
    is_directory: bool
    is_link: bool = False


class FileOutputStream(Protocol):
    """A file in the making. Until `commit` has returned nobody may count on it.

    In a store that can publish it may show under its name before, unfinished: what is made this
    way has random names, told to nobody until then. In any other store it must not, because there
    `_metadata` is made this way too. One thread writes; `abort` may be called from another one.
    """

    def write(self, data: BytesLike, /) -> None:
        """Append the bytes. Raises `StorageUnavailableError`."""
        ...

    def sync(self) -> None:
        """Make what was written durable, where the store can do that before `commit`.

        Raises `StorageUnavailableError`.
        """
        ...

    def commit(self, *, durable_name: bool = True) -> None:
        """Make the file whole and durable under its name; call it once, last.

        Args:
            durable_name: Whether its name has to survive a power cut from now on. Else it does once
                a file is published in the same directory.

        Raises `CheckpointConflictError` if it sees that the name is taken,
        `StorageUnavailableError`, `OutcomeUnknownError`; after the first two nothing is left
        behind.
        """
        ...

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after `commit` or `abort`, and never raises."""
        ...


class FileSystem(Protocol):
    """A store of files under normalized URIs.

    Instances may be shared between threads. Any method may raise `StorageUnavailableError` after
    which nothing has changed, its subclass `StorageFullError`, or `InvalidRequestError` where
    permissions forbid the call. None of them repeats a failed call: `file_system_for` does.
    """

    def prepare_directory(self, uri: str, /) -> None:
        """Make files below `uri` possible. Creates directories where the store has such."""
        ...

    def create(self, uri: str, /) -> FileOutputStream:
        """Begin a file of unknown length under a name that was never used before.

        Raises `CheckpointNotFoundError` if there is no such directory, in stores that have such,
        and `CheckpointConflictError` if it sees that the name is taken.
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


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A file that was begun, and may never be finished.

    Attributes:
        uri: Normalized URI that it would have.
        upload_id: The store's name of it.
        started_ms: When it was begun by the store's clock, milliseconds since 1970 UTC.
    """

    uri: str
    upload_id: str
    started_ms: int


@runtime_checkable
class UploadingFileSystem(FileSystem, Protocol):
    """A store where a file that is never finished takes room, and is not listed."""

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        """The uploads begun in a directory or below it; none if the store won't say."""
        ...

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        """Abort uploads, as many as possible; uploads that don't exist count as aborted.

        Raises the first failure after all were tried.
        """
        ...


@runtime_checkable
class ExclusiveFileSystem(FileSystem, Protocol):
    """A store that tells two writers of one name apart: exactly one of them wins."""

    def publish(self, uri: str, data: bytes, /) -> None:
        """Store a small file in one atomic, durable step, only if the name is free.

        The names of all files that were committed in the same directory before are durable first.

        Raises `CheckpointConflictError` if it is taken, `OutcomeUnknownError` if the store
        did not say.
        """
        ...


@runtime_checkable
class LinkingFileSystem(FileSystem, Protocol):
    """A store on a disk of this machine, where a file can have a second name."""

    def link(self, path: str, uri: str, /) -> FileOutputStream:
        """Begin a file that has the bytes of another one, which nobody changes: they are not copied.

        Both count as modified now: a sweep goes by that, and must not find a new file old.
        Nothing can be written to it. Raises `InvalidRequestError` if the two are on different disks or the
        disk knows no such thing, `CheckpointNotFoundError` if there is no such file, and what `create` does.
        """
        ...
