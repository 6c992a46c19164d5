"""The interface of a store: the operations that a storage needs of a file system.

Every store implements `FileSystem`. An `ExclusiveFileSystem` can also create a file atomically only if its name
is free; only such stores keep two drivers apart. A `RangedFileSystem` reads a part of a file with one request. A
`CopyingFileSystem` can copy a file without moving its bytes through this host, and a `LinkingFileSystem` can add a file of
this machine's disk without copying it.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable

from holdfast.errors import InvalidRequestError, StreamClosedError

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
        is_link: Whether it is a link. The other fields then describe its target, or an empty file
            if the target does not exist.
    """

    uri: str
    size: int
    modified_ms: int
    is_directory: bool
    is_link: bool = False


class FileOutputStream(Protocol):
    """A file in progress. No one may rely on it until `commit` has returned.

    In a store that can publish, an unfinished file may already be visible under its name: such files have random names,
    which are passed on after the commit. In any other store it must not be visible, because `_metadata` is written this
    way there. One thread writes; `abort` may be called from another one.
    """

    def write(self, data: BytesLike, /) -> None:
        """Append the bytes. Raises `StorageUnavailableError`."""
        ...

    def sync(self) -> None:
        """Make the bytes written so far durable, if the store can do that before `commit`.

        Raises `StorageUnavailableError`.
        """
        ...

    def commit(self, *, durable_name: bool = True) -> None:
        """Make the complete file durable under its name; called once, last.

        Args:
            durable_name: Whether the name must survive a power failure from now on. If not, it does
                once a file is published in the same directory.

        Raises `CheckpointConflictError` if it finds that the name is taken,
        `StorageUnavailableError`, `OutcomeUnknownError`; after the first two no file remains.
        """
        ...

    def abort(self) -> None:
        """Delete the unfinished file. Does nothing after `commit` or `abort`, and never raises."""
        ...


class FileSystem(Protocol):
    """A store of files under normalized URIs.

    Instances may be shared between threads. Any method may raise `StorageUnavailableError` or its
    subclass `StorageFullError`, after which nothing has changed, or `InvalidRequestError` if
    permissions forbid the call. No method retries a failed call: `file_system_for` does.
    """

    def prepare_directory(self, uri: str, /) -> None:
        """Prepare a directory for new files, and create it if the store has directories."""
        ...

    def create(self, uri: str, /) -> FileOutputStream:
        """Start a file of unknown length under a name that was never used before.

        Raises `CheckpointNotFoundError` if the store has directories and this one does not exist,
        and `CheckpointConflictError` if it finds that the name is taken.
        """
        ...

    def open(self, uri: str, /) -> BinaryIO:
        """Open for reading, seekable and unbuffered. Raises `CheckpointNotFoundError`."""
        ...

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        """Return the entries of a directory in no particular order; a missing one has no entries."""
        ...

    def delete(self, uris: Iterable[str], /) -> None:
        """Delete as many of the files as possible; missing ones count as deleted.

        Raises the first failure after all were tried.
        """
        ...

    def delete_empty_directory(self, uri: str, /) -> None:
        """Delete a directory if it is empty; a missing one counts as deleted."""
        ...

    def delete_tree(self, uri: str, /) -> None:
        """Delete a directory with everything in it; a missing one counts as deleted."""
        ...


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A file whose upload was started and may never be finished.

    Attributes:
        uri: Normalized URI of the future file.
        upload_id: The store's id of the upload.
        started_ms: Start by the store's clock, milliseconds since 1970 UTC.
    """

    uri: str
    upload_id: str
    started_ms: int


@runtime_checkable
class UploadingFileSystem(FileSystem, Protocol):
    """A store where unfinished uploads use space and are not listed as files."""

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        """Return the pending uploads in a directory and below; empty if the store refuses to list them."""
        ...

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        """Abort as many of the uploads as possible; missing ones count as aborted.

        Raises the first failure after all were tried.
        """
        ...


@runtime_checkable
class ExclusiveFileSystem(FileSystem, Protocol):
    """A store where exactly one of several concurrent writers of the same name succeeds."""

    def publish(self, uri: str, data: bytes, /) -> None:
        """Store a small file in one atomic, durable step if its name is free.

        The names of all files committed in the same directory before become durable first.

        Raises `CheckpointConflictError` if the name is taken, `OutcomeUnknownError` if the store did not answer.
        """
        ...


@runtime_checkable
class CopyingFileSystem(FileSystem, Protocol):
    """A store that copies a file by itself, so that its bytes are not moved through this host."""

    def copy(self, source: str, uri: str, /) -> None:
        """Copy an immutable file of the same store, durably, to a name that was never used before.

        May be repeated. After any error, a file of that name may exist, and is deleted by the caller.

        Raises `CheckpointNotFoundError` if the source does not exist, and `InvalidRequestError` if the store can't copy
        it, for example because it is too large.
        """
        ...


@runtime_checkable
class RangedFileSystem(FileSystem, Protocol):
    """A store that reads a part of a file with one request, without opening the file first.

    Attributes:
        range_requests: Number of parts that are read at a time, at most.
    """

    range_requests: int

    def read_range(self, uri: str, start: int, end: int, /) -> memoryview:
        """Return the bytes from `start` up to `end`; fewer if the file ends before.

        Raises `CheckpointNotFoundError`.
        """
        ...


@runtime_checkable
class LinkingFileSystem(FileSystem, Protocol):
    """A store on a disk of this machine, where a file can have a second name."""

    def link(self, path: str, uri: str, /) -> FileOutputStream:
        """Start a file that shares the bytes of an immutable one instead of copying them.

        Both names count as modified now, so that a sweep does not take the new file for an old one. The file can't be
        written to. Raises `InvalidRequestError` if the two are on different disks or the disk does not support links,
        `CheckpointNotFoundError` if the file does not exist, and the errors of `create`.
        """
        ...


class PositionedInputStream(io.RawIOBase):
    """A stream with a known size, whose `seek` only sets the position of the next read.

    A subclass sets `_uri` and `_size`, and implements `_fill`.
    """

    _uri: str
    _size: int
    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise InvalidRequestError(f"position {base + offset} is negative", self._uri)
        self._position = base + offset
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        count = self._fill(view) if view else 0
        self._position += count
        return count

    def _fill(self, view: memoryview) -> int:
        """Read bytes from the position on into a buffer that ends within the file; returns their number, at least 1."""
        raise NotImplementedError
