"""A file system that fails on demand."""

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from holdfast.errors import StorageFullError
from holdfast.locations.file_systems import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileSystem,
    RetryPolicy,
)
from holdfast.testing.faults import Faults
from holdfast.testing.forwarding import (
    WITHOUT_RETRIES,
    ForwardingFileSystem,
    ForwardingOutputStream,
    Mirror,
    register_scheme,
)


class FaultyFileSystem(ForwardingFileSystem):
    """Forwards calls to another file system, with planned faults.

    Args:
        inner: The other file system.
        faults: The planned faults, with both URIs of the directory.
    """

    def __init__(self, inner: FileSystem, faults: Faults) -> None:
        super().__init__(inner, Mirror(faults.directory, faults.inner_directory))
        self.faults = faults

    def around(self, call: str) -> AbstractContextManager[object]:
        return self.faults.around(call)

    def create(self, uri: str, /) -> FileOutputStream:
        def begin() -> FileOutputStream:
            with self.mirror.rename_errors():
                return self.inner.create(self.mirror.to_inner(uri))

        stream: FileOutputStream | None = None
        try:
            with self.faults.around("create"):
                stream = begin()
        except BaseException:
            if stream is not None:  # the answer was lost
                self.faults.adopt(stream)
            raise
        return _FaultyOutputStream(stream, begin, self)

    def open(self, uri: str, /) -> BinaryIO:
        opened: BinaryIO | None = None
        try:
            with self.faults.around("open") as planned:
                with self.mirror.rename_errors():
                    opened = self.inner.open(self.mirror.to_inner(uri))
                if planned.kept_bytes is not None or planned.flipped_bits:
                    opened = _damage(opened, planned.kept_bytes, planned.flipped_bits)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        return self.reader(opened)


class FaultyExclusiveFileSystem(FaultyFileSystem):
    """Applies faults to a store that can publish."""

    inner: ExclusiveFileSystem

    def publish(self, uri: str, data: bytes, /) -> None:
        with self.faults.around("publish") as planned:
            self.faults.take_room(len(data))
            with self.mirror.rename_errors():
                self.inner.publish(self.mirror.to_inner(uri), planned.cut(data))


class _FaultyOutputStream(ForwardingOutputStream):
    """A file in progress.

    Args:
        inner: The file of the other file system.
        begin: Starts the file again.
        file_system: The file system of the file.
    """

    def __init__(
        self,
        inner: FileOutputStream,
        begin: Callable[[], FileOutputStream],
        file_system: FaultyFileSystem,
    ) -> None:
        super().__init__(inner, file_system.calling)
        self._begin = begin
        self._faults = file_system.faults
        self._renaming_errors = file_system.mirror.rename_errors
        self._written = bytearray()

    def write(self, data: BytesLike, /) -> None:
        with self._faults.around("write") as planned:
            content = bytes(memoryview(data).cast("B"))
            try:
                self._faults.take_room(len(content))
            except StorageFullError:
                self._inner.abort()
                raise
            kept = planned.cut(content)
            with self._renaming_errors():
                self._inner.write(kept)
            self._written += kept

    def commit(self, *, durable_name: bool = True) -> None:
        with self._faults.around("commit") as planned:
            if planned.kept_bytes is not None:
                # The inner file already has more bytes; it never becomes visible.
                self._inner.abort()
                self._inner = self._begin()
                self._inner.write(planned.cut(bytes(self._written)))
            with self._renaming_errors():
                self._inner.commit(durable_name=durable_name)


def _damage(
    stream: BinaryIO, kept_bytes: int | None, flipped_bits: list[tuple[int, int]]
) -> BinaryIO:
    """Return the file's bytes, truncated and with flipped bits."""
    with stream:
        content = bytearray(stream.read())
    if kept_bytes is not None:
        del content[kept_bytes:]
    for offset, bit in flipped_bits:
        if offset < len(content):
            content[offset] ^= 1 << bit
    return io.BytesIO(content)


@contextmanager
def faulty_file_system(
    directory: str, *, retries: RetryPolicy = WITHOUT_RETRIES
) -> Iterator[Faults]:
    """Register a scheme for a directory that fails on demand until the block ends.

        with faulty_file_system("memory:///x") as faults:
            storage = checkpoint_storage(faults.directory)
            faults.lose_answer("publish")
            ...

    Several can be used at a time. Calls are forwarded to the store's adapter without retries.

    Args:
        directory: Normalized URI of the directory.
        retries: How long failing calls are retried; not at all by default, so that each fault is visible.
    """
    mirror = Mirror.under_new_scheme("faulty", directory)
    faults = Faults(mirror.directory, mirror.inner_directory)

    def factory(inner: FileSystem) -> FileSystem:
        if isinstance(inner, ExclusiveFileSystem):
            return FaultyExclusiveFileSystem(inner, faults)
        return FaultyFileSystem(inner, faults)

    with register_scheme(mirror, factory, retries):
        try:
            yield faults
        finally:
            faults.close()
