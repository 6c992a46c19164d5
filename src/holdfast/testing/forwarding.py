"""The same directory under another scheme, so that a test can stand in between."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.file_systems import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    FileSystem,
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)

WITHOUT_RETRIES = RetryPolicy(deadline_s=0)

CALLS = (
    "prepare_directory",
    "create",
    "publish",
    "open",
    "list",
    "delete",
    "delete_empty_directory",
    "delete_tree",
    "write",
    "sync",
    "commit",
    "abort",
    "read",
)
"""Names of what is called: methods of a file system, of a file in the making, and reads."""

_NUMBERS = itertools.count(1)

Around = Callable[[str], AbstractContextManager[object]]
"""Returns the context manager that is entered around each call of that name."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A directory under two URIs that differ in their schemes.

    Attributes:
        directory: The URI in front, which leads through the test's file system.
        behind: The URI behind, which leads to the store itself.
    """

    directory: str
    behind: str

    @classmethod
    def under_new_scheme(cls, kind: str, directory: str) -> "Mirror":
        """Draw a scheme that begins with `kind`, new in this process."""
        _, separator, rest = directory.rstrip("/").partition("://")
        if not separator:
            message = "directory has no scheme; write file:///path for a local one"
            raise InvalidRequestError(message, directory)
        return cls(f"{kind}-{next(_NUMBERS)}://{rest}", directory.rstrip("/"))

    @property
    def scheme(self) -> str:
        """The scheme of the URI in front."""
        return self.directory.partition("://")[0]

    def to_behind(self, uri: str) -> str:
        """The URI behind, for a URI in front."""
        return _swapped(uri, self.directory, self.behind)

    def to_front(self, uri: str) -> str:
        """The URI in front, for a URI behind."""
        return _swapped(uri, self.behind, self.directory)

    @contextmanager
    def renaming_errors(self) -> Iterator[None]:
        """Let errors name the URI that the caller knows."""
        try:
            yield
        except CheckpointError as error:
            if error.location:
                error.location = self.to_front(error.location)
                error.args = (error.args[0], error.location, error.kind)
            raise


def _swapped(uri: str, before: str, after: str) -> str:
    """The URI with the scheme of one directory instead of that of another."""
    old, new = (f"{directory.partition('://')[0]}://" for directory in (before, after))
    return new + uri.removeprefix(old) if uri.startswith(old) else uri


@contextmanager
def registered(
    mirror: Mirror, factory: Callable[[FileSystem], FileSystem], retries: RetryPolicy
) -> Iterator[None]:
    """Reach the directory through the scheme in front until the block is left.

    Args:
        mirror: The directory.
        factory: Puts something in front of the store's own adapter, which repeats nothing.
        retries: When calls that fail are given up, in front of both.
    """
    inner = file_system_for(mirror.behind).inner
    register_file_system(mirror.scheme, lambda: factory(inner), retries=retries)
    try:
        yield
    finally:
        unregister_file_system(mirror.scheme)


class ForwardingFileSystem:
    """Passes calls on to the file system behind it.

    Args:
        inner: The file system behind.
        mirror: The two URIs; they may be the same.
    """

    def __init__(self, inner: FileSystem, mirror: Mirror) -> None:
        self.inner = inner
        self.mirror = mirror

    def around(self, call: str) -> AbstractContextManager[object]:
        """The context manager that is entered around each call."""
        raise NotImplementedError(call)

    def writer(self, stream: FileOutputStream) -> FileOutputStream:
        """Wraps a file that is written."""
        return ForwardingOutputStream(stream, self.calling)

    def reader(self, stream: BinaryIO) -> BinaryIO:
        """Wraps a file that is read."""
        return cast("BinaryIO", ForwardingInputStream(stream, self.calling))

    @contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """One call: enters `around` it, and renames its errors to this scheme."""
        with self.around(call), self.mirror.renaming_errors():
            yield

    def prepare_directory(self, uri: str, /) -> None:
        with self.calling("prepare_directory"):
            self.inner.prepare_directory(self.mirror.to_behind(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        with self.calling("create"):
            return self.writer(self.inner.create(self.mirror.to_behind(uri)))

    def open(self, uri: str, /) -> BinaryIO:
        with self.calling("open"):
            return self.reader(self.inner.open(self.mirror.to_behind(uri)))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with self.calling("list"):
            return [
                replace(entry, uri=self.mirror.to_front(entry.uri))
                for entry in self.inner.list(self.mirror.to_behind(uri))
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        with self.calling("delete"):
            self.inner.delete([self.mirror.to_behind(uri) for uri in uris])

    def delete_empty_directory(self, uri: str, /) -> None:
        with self.calling("delete_empty_directory"):
            self.inner.delete_empty_directory(self.mirror.to_behind(uri))

    def delete_tree(self, uri: str, /) -> None:
        with self.calling("delete_tree"):
            self.inner.delete_tree(self.mirror.to_behind(uri))


class ForwardingOutputStream:
    """Passes calls on to a file in the making."""

    def __init__(self, inner: FileOutputStream, around: Around) -> None:
        self._inner = inner
        self._around = around

    def write(self, data: BytesLike, /) -> None:
        with self._around("write"):
            self._inner.write(data)

    def sync(self) -> None:
        with self._around("sync"):
            self._inner.sync()

    def commit(self, *, durable_name: bool = True) -> None:
        with self._around("commit"):
            self._inner.commit(durable_name=durable_name)

    def abort(self) -> None:
        with self._around("abort"):
            self._inner.abort()


class ForwardingInputStream(io.RawIOBase):
    """Passes reads on to an open file; each is one call, however much it asks for."""

    def __init__(self, inner: BinaryIO, around: Around) -> None:
        self._inner = inner
        self._around = around

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def read(self, size: int = -1, /) -> bytes:
        with self._around("read"):
            return self._inner.read(size)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        with self._around("read"):
            # Every raw stream has it.
            return int(self._inner.readinto(buffer))  # type: ignore[attr-defined]

    def close(self) -> None:
        self._inner.close()
        super().close()
