"""A file system that counts its calls."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from holdfast.locations.file_systems import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileSystem,
    RetryPolicy,
)
from holdfast.testing.forwarding import (
    WITHOUT_RETRIES,
    Around,
    ForwardingFileSystem,
    ForwardingInputStream,
    ForwardingOutputStream,
    Mirror,
    register_scheme,
)


@dataclass(slots=True)
class Counts:
    """Counters of a directory's file system; failed calls count too.

    Attributes:
        directory: URI of the directory with counted calls.
        inner_directory: URI of the same directory without counting.
        calls: Number of calls by name: the methods of `FileSystem`, `publish`, those of
            `FileOutputStream`, and `read` for each read of an open file.
        bytes_written: Bytes passed to `write` and `publish`.
        bytes_read: Bytes returned by reads.
    """

    directory: str
    inner_directory: str
    calls: Counter[str] = field(default_factory=Counter)
    bytes_written: int = 0
    bytes_read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def clear(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self.calls.clear()
            self.bytes_written = self.bytes_read = 0

    def add(self, call: str = "", *, written: int = 0, read: int = 0) -> None:
        """Count a call, or bytes; called by the file system."""
        with self._lock:
            if call:
                self.calls[call] += 1
            self.bytes_written += written
            self.bytes_read += read


class CountingFileSystem(ForwardingFileSystem):
    """Forwards calls to another file system, and counts them.

    Args:
        inner: The other file system.
        counts: The counters, with both URIs of the directory.
    """

    def __init__(self, inner: FileSystem, counts: Counts) -> None:
        super().__init__(inner, Mirror(counts.directory, counts.inner_directory))
        self._counts = counts

    @contextmanager
    def around(self, call: str) -> Iterator[None]:
        self._counts.add(call)
        yield

    def writer(self, stream: FileOutputStream) -> FileOutputStream:
        return _CountingOutputStream(stream, self.calling, self._counts)

    def reader(self, stream: BinaryIO) -> BinaryIO:
        return cast("BinaryIO", _CountingInputStream(stream, self.calling, self._counts))


class CountingExclusiveFileSystem(CountingFileSystem):
    """Counts calls of a store that can publish."""

    inner: ExclusiveFileSystem

    def publish(self, uri: str, data: bytes, /) -> None:
        with self.calling("publish"):
            self.inner.publish(self.mirror.to_inner(uri), data)
        self._counts.add(written=len(data))


class _CountingOutputStream(ForwardingOutputStream):
    def __init__(self, inner: FileOutputStream, around: Around, counts: Counts) -> None:
        super().__init__(inner, around)
        self._counts = counts

    def write(self, data: BytesLike, /) -> None:
        super().write(data)
        self._counts.add(written=memoryview(data).nbytes)


class _CountingInputStream(ForwardingInputStream):
    def __init__(self, inner: BinaryIO, around: Around, counts: Counts) -> None:
        super().__init__(inner, around)
        self._counts = counts

    def read(self, size: int = -1, /) -> bytes:
        data = super().read(size)
        self._counts.add(read=len(data))
        return data

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        count = super().readinto(buffer)
        self._counts.add(read=count)
        return count


@contextmanager
def counting_file_system(
    directory: str, *, retries: RetryPolicy = WITHOUT_RETRIES
) -> Iterator[Counts]:
    """Register a scheme for a directory that counts calls until the block ends.

        with counting_file_system("memory:///x") as counts:
            checkpoint_storage(counts.directory)...
            assert counts.calls == {"publish": 1}

    Args:
        directory: Normalized URI of the directory.
        retries: How long failing calls are retried; not at all by default. Retries count.
    """
    mirror = Mirror.under_new_scheme("counting", directory)
    counts = Counts(mirror.directory, mirror.inner_directory)
    with register_scheme(
        mirror,
        lambda inner: CountingFileSystem(inner, counts),
        lambda inner: CountingExclusiveFileSystem(inner, counts),
        retries,
    ):
        yield counts
