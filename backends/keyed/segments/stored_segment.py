"""A segment in storage, of which only the blocks are read that somebody asks for."""

from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.trailer import (
    SectionPlace,
    Trailer,
    decode_trailer,
    flaw_of_blocks,
)
from holdfast.backends.snapshot import location_of
from holdfast.common import read_into
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle

_TAIL_BYTES = 1 << 16
"""How many bytes at the end are read first: most trailers are within them."""


class StoredSegment:
    """One segment, where a checkpoint has it. Keeps nothing that was read but its trailer, and its stream until `close`.

    Bytes are verified by the segment's own checksums, whose blocks are smaller than those of its handle.

    Args:
        name: The segment's name.
        handle: Leads to its bytes.

    Raises:
        CheckpointNotFoundError: The file is gone.
        CheckpointCorruptedError: The bytes are no segment, or the trailer is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """

    def __init__(self, name: str, handle: StreamStateHandle) -> None:
        self.name = name
        self.location = location_of(handle) or f"segment {name}"
        self._handle = handle
        self._stream: BinaryIO | None = None
        if type(handle) is FileStateHandle:
            self._handle = msgspec.structs.replace(handle, checksum=None)
        try:
            self._trailer, self._end = self._read_trailer()
        except BaseException:
            self.close()
            raise

    def section(self, number: int) -> Section:
        """A section by its number. Raises `CheckpointCorruptedError` if there is none of that number."""
        return Section(self, self._place(number))

    def whole_section(self, number: int) -> Section:
        """A section that is read at once, and from memory from then on. Raises what `section` and reading it do."""
        place = self._place(number)
        start, length = place.place
        return Section(_Part(self, start, self.verified(start, length)), place)

    def verified(self, offset: int, length: int) -> pa.Buffer:
        """So many bytes. Raises `CheckpointCorruptedError` if a block that they lie in is damaged."""
        if not length:
            return pa.py_buffer(b"")
        size = self._trailer.block_bytes
        start = offset // size * size
        end = min(-(-(offset + length) // size) * size, self._end)
        data = self._read(start, max(0, end - start))
        view = memoryview(data)
        numbers = range(start // size, -(-end // size))
        blocks = (view[at - start : at - start + size] for at in range(start, end, size))
        flaw = flaw_of_blocks(self._trailer, numbers, blocks)
        if flaw is not None:
            raise CheckpointCorruptedError(f"segment {self.name}, {flaw}", self.location)
        return data.slice(offset - start, length)

    def expect(self, *, most: bool) -> None:
        """Nothing: what is asked for is read, and no more."""

    def close(self) -> None:
        """Close the stream; whoever reads on opens it again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def corrupted(self, message: str) -> CheckpointCorruptedError:
        """An error that names the segment."""
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)

    def _read_trailer(self) -> tuple[Trailer, int]:
        size = self._handle.size
        start = max(0, size - _TAIL_BYTES)
        tail = memoryview(self._read(start, size - start))

        def read(offset: int, length: int) -> memoryview:
            if offset < start:
                return memoryview(self._read(offset, length))
            return tail[offset - start : offset - start + length]

        return decode_trailer(size, read, self.location)

    def _place(self, number: int) -> SectionPlace:
        sections = self._trailer.sections
        if not 0 <= number < len(sections):
            raise self.corrupted(f"there are {len(sections)} sections, and no section {number}")
        return sections[number]

    def _read(self, offset: int, length: int) -> pa.Buffer:
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
class _Part:
    """Bytes of a segment that are in memory, from `start` on."""

    segment: StoredSegment
    start: int
    data: pa.Buffer

    def verified(self, offset: int, length: int) -> pa.Buffer:
        if offset < self.start or offset + length > self.start + self.data.size:
            return self.segment.verified(offset, length)
        return self.data.slice(offset - self.start, length)

    def expect(self, *, most: bool) -> None:
        """Nothing: it is in memory."""

    def corrupted(self, message: str) -> CheckpointCorruptedError:
        return self.segment.corrupted(message)
