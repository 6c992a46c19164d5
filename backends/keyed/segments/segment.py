"""A segment: in memory, in a mapped file, or in storage.

Opening a segment reads only its trailer. A block is verified before the first column in it is used: of a
`Segment` once, of a `StoredSegment`, which keeps no bytes, with every read.
"""

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Self

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.segments.block_cache import BlockCache
from holdfast.backends.keyed.segments.section import Section, SectionBytes
from holdfast.backends.keyed.segments.trailer import (
    SectionPlace,
    Trailer,
    decode_trailer,
    find_corrupt_block,
)
from holdfast.backends.snapshot import location_of
from holdfast.common import read_into
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.locations.checksums import Checksum
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointStateOutputStream

MAX_TAIL_BYTES = 1 << 20
"""Bytes at the end of a stored segment that the first request reads at most: of longer tails, directories come later."""

_TAIL = -1
"""The number of these bytes in the cache of blocks."""


class _SegmentBytes:
    """All bytes of a segment in memory or in a mapped file. Each block is verified once.

    Args:
        data: The bytes; their address must be a multiple of 8.
        location: Their file, for errors.
        written: The checksums of the bytes, if this process has just written them there.
        mapped: The mapping and status of their file.
    """

    def __init__(
        self,
        data: pa.Buffer,
        location: str,
        written: Checksum | None = None,
        mapped: tuple[mmap.mmap, os.stat_result] | tuple[None, None] = (None, None),
    ) -> None:
        self.buffer = data
        self.view = memoryview(data).cast("B")
        self.location = location
        self.written = written
        self.trailer, self.end = decode_trailer(
            len(self.view), lambda offset, length: self.view[offset : offset + length], location
        )
        # Reading back bytes that were just written would only read the system's cache.
        self._is_verified = np.full(len(self.trailer.blocks) // 4, written is not None)
        self._mapped: mmap.mmap | None
        self._status: os.stat_result | None
        self._mapped, self._status = mapped
        self._has_readahead = True

    def is_changed(self) -> bool:
        """Return whether the file was written to or replaced since it was mapped.

        The bytes of a deleted file remain, unless it was truncated.
        """
        if self._status is None:
            return False
        try:
            now = os.stat(self.location)
        except FileNotFoundError:
            return self._is_truncated()
        return _identity(now) != _identity(self._status)

    def accept_status(self) -> None:
        """Take the file for unchanged, because this process changed its status but not its bytes."""
        if self._status is not None:
            with suppress(FileNotFoundError):
                self._status = os.stat(self.location)

    def advise(self, *, sequential: bool) -> None:
        """Turn the system's readahead on or off: see `Segment.advise`."""
        if self._mapped is not None and sequential != self._has_readahead:
            self._mapped.madvise(mmap.MADV_NORMAL if sequential else mmap.MADV_RANDOM)
            self._has_readahead = sequential

    def find_corruption(self, offset: int, length: int) -> str | None:
        """Verify the blocks that contain these bytes; return a description of the first corrupt one, or None."""
        if not length:
            return None
        if self._is_truncated():
            return "file was truncated while in use"
        size = self.trailer.block_bytes
        first, end = offset // size, -(-(offset + length) // size)
        numbers = (first + (~self._is_verified[first:end]).nonzero()[0]).tolist()
        blocks = (
            self.view[number * size : min((number + 1) * size, self.end)] for number in numbers
        )
        corruption = find_corrupt_block(self.trailer, numbers, blocks)
        if corruption is None:
            self._is_verified[first:end] = True
        return corruption

    def _is_truncated(self) -> bool:
        """Return whether the file is shorter than its mapping: reading a missing page would kill the process."""
        return self._mapped is not None and self._mapped.size() < len(self.view)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return the fields that change with a file's content."""
    return status.st_ino, status.st_size, status.st_mtime_ns


class Segment:
    """A segment in memory or in a mapped file. Corrupt bytes are replaced by another copy, if there is one."""

    def __init__(self, source: _SegmentBytes, name: str) -> None:
        self.name = name
        self._source = source
        self._sections: dict[int, Section] = {}
        self._fetch: Callable[[str], Segment] | None = None

    @classmethod
    def open(cls, path: str, name: str, written: Checksum | None = None) -> Self:
        """Map a file; `written` has the checksums of its bytes, if this process has just written them there.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: The bytes are not a segment, or the trailer is corrupt.
            UnsupportedFormatError: A newer Holdfast wrote it.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("segment is gone", path) from error
        try:
            status = os.fstat(descriptor)
            if not status.st_size:
                raise CheckpointCorruptedError("segment is empty", path)
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return cls(_SegmentBytes(pa.py_buffer(mapped), path, written, (mapped, status)), name)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | pa.Buffer, name: str, location: str = "") -> Self:
        """Make a segment of bytes in memory, which are copied if their address is unsuitable. Raises as `open`."""
        buffer = pa.py_buffer(data)
        if buffer.address % 8:
            copy = pa.allocate_buffer(len(buffer))
            memoryview(copy).cast("B")[:] = memoryview(buffer).cast("B")
            buffer = copy
        return cls(_SegmentBytes(buffer, location or f"segment {name}"), name)

    @property
    def location(self) -> str:
        """The file, or a name for errors."""
        return self._source.location

    @property
    def size(self) -> int:
        return len(self._source.view)

    def section(self, number: int) -> Section:
        """Return a section by its number. Raises `CheckpointCorruptedError` if it doesn't exist."""
        section = self._sections.get(number)
        if section is None:
            place = section_place(self, self._source.trailer, number)
            section = self._sections[number] = Section(self, place)
        return section

    def fetch_if_corrupt(self, fetch: Callable[[str], "Segment"]) -> None:
        """Replace the bytes by those of another copy when a block is found to be corrupt.

        `fetch` gets a description of the corruption, and returns the same segment from storage.
        """
        self._fetch = fetch

    def is_changed(self) -> bool:
        return self._source.is_changed()

    def advise(self, *, sequential: bool) -> None:
        """Announce that most pages of a section will be read, or only some.

        For few pages readahead is turned off, since it would evict other pages if memory is short. For most
        pages the system decides: reading them in one go beforehand was slower.
        """
        self._source.advise(sequential=sequential)

    def write_to(self, stream: CheckpointStateOutputStream) -> None:
        """Write all bytes, verified, to a stream, which adopts the segment's file if it can. Raises as `open`."""
        written = self._source.written
        is_adopted = (
            written is not None
            and not self.is_changed()
            and stream.adopt(self.location, self.size, written)
        )
        if is_adopted:
            self._source.accept_status()
        else:
            stream.write(self._verify(0, self._source.end).view)

    def release(self) -> None:
        """Release the sections: their memory is freed when the last user of them ends."""
        self._sections = {}

    def read(self, offset: int, length: int) -> pa.Buffer:
        return self._verify(offset, length).buffer.slice(offset, length)

    def corrupted_error(self, message: str) -> CheckpointCorruptedError:
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)

    def _verify(self, offset: int, length: int) -> _SegmentBytes:
        """Verify bytes, and return the copy of the segment that they are intact in."""
        source = self._source
        corruption = source.find_corruption(offset, length)
        if corruption is not None and self._fetch is not None:
            source = self._source = self._fetch(corruption)._source  # noqa: SLF001  # its own class
            corruption = source.find_corruption(offset, length)
        if corruption is not None:
            raise self.corrupted_error(corruption)
        return source


class StoredSegment:
    """A segment in storage. Only requested blocks are read.

    It keeps its tail, and an open stream until `close`; the next read opens it again. Bytes are verified by the
    segment's own checksums, whose blocks are smaller than those of its handle. Raises as `Segment.open`.

    Args:
        name: The segment's name.
        handle: Its bytes.
        tail_bytes: Length of its tail.
        cache: Keeps verified blocks; None to read them each time.
    """

    def __init__(
        self,
        name: str,
        handle: StreamStateHandle,
        tail_bytes: int,
        cache: BlockCache | None = None,
    ) -> None:
        self.name = name
        self.location = location_of(handle) or f"segment {name}"
        self._handle = handle
        self._cache = cache
        self._stream: BinaryIO | None = None
        self._tail: pa.Buffer | None = None
        if type(handle) is FileStateHandle:
            self._handle = msgspec.structs.replace(handle, checksum=None)
        try:
            self._trailer, self._end = self._read_trailer(tail_bytes)
        except BaseException:
            self.close()
            raise

    def section(self, number: int) -> Section:
        """Return a section by its number. Raises `CheckpointCorruptedError` if it doesn't exist."""
        return Section(self, section_place(self, self._trailer, number))

    def load_section(self, number: int) -> Section:
        """Read a section into memory with one request. Raises as `section` and `read`."""
        place = section_place(self, self._trailer, number)
        start, length = place.place
        return Section(_LoadedBytes(self, start, self.read(start, length)), place)

    def read(self, offset: int, length: int) -> pa.Buffer:
        if not length:
            return pa.py_buffer(b"")
        size = self._trailer.block_bytes
        numbers = range(offset // size, -(-(offset + length) // size))
        cached = self._cache.get(self.name, numbers) if self._cache is not None else None
        data = self._read_blocks(numbers) if cached is None else _join(cached)
        return data.slice(offset - numbers.start * size, length)

    def _read_blocks(self, numbers: range) -> pa.Buffer:
        """Read and verify adjacent blocks."""
        size = self._trailer.block_bytes
        start, end = numbers.start * size, min(numbers.stop * size, self._end)
        data = self._read(start, max(0, end - start))
        view = memoryview(data)
        numbers = range(numbers.start, -(-end // size))
        blocks = (view[at - start : at - start + size] for at in range(start, end, size))
        corruption = find_corrupt_block(self._trailer, numbers, blocks)
        if corruption is not None:
            raise self.corrupted_error(corruption)
        if self._cache is not None:
            for number in numbers:
                at = (number - numbers.start) * size
                self._cache.put(self.name, number, pa.py_buffer(bytes(view[at : at + size])))
        return data

    def advise(self, *, sequential: bool) -> None:
        """Do nothing: only requested bytes are read."""

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def corrupted_error(self, message: str) -> CheckpointCorruptedError:
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)

    def _read_trailer(self, tail_bytes: int) -> tuple[Trailer, int]:
        size = self._handle.size
        self._tail_start = max(0, size - min(tail_bytes, MAX_TAIL_BYTES))
        tail = self._kept_tail()
        if tail is None:
            tail = self._read(self._tail_start, size - self._tail_start)
            if self._cache is None:
                self._tail = tail
            else:
                self._cache.put(self.name, _TAIL, tail)

        def read(offset: int, length: int) -> memoryview:
            return memoryview(self._read(offset, length))

        return decode_trailer(size, read, self.location)

    def _kept_tail(self) -> pa.Buffer | None:
        if self._cache is None:
            return self._tail
        cached = self._cache.get(self.name, [_TAIL])
        return None if cached is None else cached[0]

    def _read(self, offset: int, length: int) -> pa.Buffer:
        """Read bytes, from the tail if it has them."""
        if offset >= self._tail_start:
            tail = self._kept_tail()
            if tail is not None:
                return tail.slice(offset - self._tail_start, length)
        data = pa.allocate_buffer(length)
        if self._stream is None:
            self._stream = self._handle.open_input_stream()
        try:
            self._stream.seek(offset)
            read_into(self._stream, memoryview(data).cast("B"))
        except EOFError as error:
            message = f"file ends before {offset + length} bytes"
            raise CheckpointCorruptedError(message, self.location) from error
        return data


@dataclass(frozen=True, slots=True)
class _LoadedBytes:
    """Bytes of a stored segment, from `start` on, that are in memory."""

    segment: StoredSegment
    start: int
    data: pa.Buffer

    def read(self, offset: int, length: int) -> pa.Buffer:
        if offset < self.start or offset + length > self.start + self.data.size:
            return self.segment.read(offset, length)
        return self.data.slice(offset - self.start, length)

    def advise(self, *, sequential: bool) -> None:
        """Do nothing: the bytes are in memory."""

    def corrupted_error(self, message: str) -> CheckpointCorruptedError:
        return self.segment.corrupted_error(message)


def _join(blocks: list[pa.Buffer]) -> pa.Buffer:
    return blocks[0] if len(blocks) == 1 else pa.py_buffer(b"".join(blocks))


def section_place(segment: SectionBytes, trailer: Trailer, number: int) -> SectionPlace:
    sections = trailer.sections
    if not 0 <= number < len(sections):
        raise segment.corrupted_error(f"it has {len(sections)} sections, but no section {number}")
    return sections[number]
