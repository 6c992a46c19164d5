"""A directory under another scheme, so that a test can intercept its calls."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.file_systems import (
    BytesLike,
    ExclusiveFileSystem,
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
"""Names of calls: methods of a file system, of a file in progress, and reads."""

_NUMBERS = itertools.count(1)

Around = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager that is entered around each call with a name."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A directory under two URIs with different schemes.

    Attributes:
        directory: Its URI in the test's file system.
        inner_directory: Its URI in the store itself.
    """

    directory: str
    inner_directory: str

    @classmethod
    def under_new_scheme(cls, kind: str, directory: str) -> "Mirror":
        """Return a mirror with a new scheme in this process, which starts with `kind`."""
        _, separator, rest = directory.rstrip("/").partition("://")
        if not separator:
            message = "directory has no scheme; write file:///path for a local one"
            raise InvalidRequestError(message, directory)
        return cls(f"{kind}-{next(_NUMBERS)}://{rest}", directory.rstrip("/"))

    @property
    def scheme(self) -> str:
        """Scheme of the test's file system."""
        return self.directory.partition("://")[0]

    def to_inner(self, uri: str) -> str:
        """Convert a URI of the test's file system to one of the store."""
        return _replace_prefix(uri, self.directory, self.inner_directory)

    def to_outer(self, uri: str) -> str:
        """Convert a URI of the store to one of the test's file system."""
        return _replace_prefix(uri, self.inner_directory, self.directory)

    @contextmanager
    def rename_errors(self) -> Iterator[None]:
        """Rename URIs in errors to those of the test's file system."""
        try:
            yield
        except CheckpointError as error:
            if error.location:
                error.location = self.to_outer(error.location)
                error.args = (error.args[0], error.location, error.kind)
            raise


def _replace_prefix(uri: str, before: str, after: str) -> str:
    """Replace the prefix of a URI."""
    old, new = (f"{directory.partition('://')[0]}://" for directory in (before, after))
    return new + uri.removeprefix(old) if uri.startswith(old) else uri


@contextmanager
def register_scheme(
    mirror: Mirror,
    wrap: Callable[[FileSystem], FileSystem],
    wrap_exclusive: Callable[[ExclusiveFileSystem], FileSystem],
    retries: RetryPolicy,
) -> Iterator[None]:
    """Register the test's scheme until the block ends.

    Args:
        mirror: The directory.
        wrap: Wraps the store's adapter, which does not retry.
        wrap_exclusive: Wraps the adapter of a store that can create a file only if it does not exist.
        retries: How long failing calls of the wrapper are retried.
    """
    inner = file_system_for(mirror.inner_directory).inner

    def wrapper() -> FileSystem:
        return wrap_exclusive(inner) if isinstance(inner, ExclusiveFileSystem) else wrap(inner)

    register_file_system(mirror.scheme, wrapper, retries=retries)
    try:
        yield
    finally:
        unregister_file_system(mirror.scheme)


class ForwardingFileSystem:
    """Forwards calls to another file system.

    Args:
        inner: The other file system.
        mirror: The two URIs; they may be the same.
    """

    def __init__(self, inner: FileSystem, mirror: Mirror) -> None:
        self.inner = inner
        self.mirror = mirror

    def around(self, call: str) -> AbstractContextManager[object]:
        """Return the context manager that is entered around each call."""
        raise NotImplementedError(call)

    def writer(self, stream: FileOutputStream) -> FileOutputStream:
        """Wrap a file for writing."""
        return ForwardingOutputStream(stream, self.calling)

    def reader(self, stream: BinaryIO) -> BinaryIO:
        """Wrap a file for reading."""
        return cast("BinaryIO", ForwardingInputStream(stream, self.calling))

    @contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """Enter `around` for one call, and rename URIs in its errors."""
        with self.around(call), self.mirror.rename_errors():
            yield

    def prepare_directory(self, uri: str, /) -> None:
        with self.calling("prepare_directory"):
            self.inner.prepare_directory(self.mirror.to_inner(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        with self.calling("create"):
            return self.writer(self.inner.create(self.mirror.to_inner(uri)))

    def open(self, uri: str, /) -> BinaryIO:
        with self.calling("open"):
            return self.reader(self.inner.open(self.mirror.to_inner(uri)))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with self.calling("list"):
            return [
                replace(entry, uri=self.mirror.to_outer(entry.uri))
                for entry in self.inner.list(self.mirror.to_inner(uri))
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        with self.calling("delete"):
            self.inner.delete([self.mirror.to_inner(uri) for uri in uris])

    def delete_empty_directory(self, uri: str, /) -> None:
        with self.calling("delete_empty_directory"):
            self.inner.delete_empty_directory(self.mirror.to_inner(uri))

    def delete_tree(self, uri: str, /) -> None:
        with self.calling("delete_tree"):
            self.inner.delete_tree(self.mirror.to_inner(uri))


class ForwardingOutputStream:
    """Forwards calls to a file in progress."""

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
    """Forwards reads to an open file; each read is one call, whatever its size."""

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
