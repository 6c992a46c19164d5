"""A segment that is read where it lies: in memory, or in a file that is mapped.

Nothing is read when a segment is opened but its trailer. A block is verified when the first column that lies
in it is touched, and then never again by the same `Segment`.
"""

import mmap
import os
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.trailer import decode_trailer, flaw_of_blocks
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.locations.handles import Checksum
from holdfast.locations.storages import AdoptingOutputStream, CheckpointStateOutputStream


class Segment:
    """One segment.

    Args:
        data: All bytes; where they begin is a multiple of 8.
        name: Its name.
        location: Where the bytes came from, for errors.
        written: What the bytes add up to, if this process has just written them there.

    Raises:
        CheckpointCorruptedError: The bytes are no segment, or the trailer is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """

    def __init__(
        self, data: pa.Buffer, name: str, location: str = "", written: Checksum | None = None
    ) -> None:
        self.name = name
        self.location = location or f"segment {name}"
        self.buffer = data
        self._bytes = memoryview(data).cast("B")
        self._trailer, self._end = decode_trailer(
            len(self._bytes),
            lambda offset, length: self._bytes[offset : offset + length],
            self.location,
        )
        self._written = written
        # What was just written is not read back, which would only read what the system has in memory.
        self._is_verified = np.full(len(self._trailer.blocks) // 4, written is not None)
        self._sections: dict[int, Section] = {}
        self._mapped: mmap.mmap | None = None
        self._is_read_around = True

    @classmethod
    def open(cls, path: str, name: str, written: Checksum | None = None) -> Self:
        """Map a file. Raises `CheckpointNotFoundError`, and what the class does."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("segment is gone", path) from error
        try:
            if not os.fstat(descriptor).st_size:
                raise CheckpointCorruptedError("segment is empty", path)
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        segment = cls(pa.py_buffer(mapped), name, path, written)
        segment._mapped = mapped
        return segment

    @classmethod
    def of_bytes(cls, data: bytes | bytearray, name: str, location: str = "") -> Self:
        """Over bytes in memory: a copy at a better address, if that is needed."""
        buffer = pa.py_buffer(data)
        if buffer.address % 8:
            copy = pa.allocate_buffer(len(data))
            memoryview(copy).cast("B")[:] = data
            buffer = copy
        return cls(buffer, name, location)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._bytes)

    @property
    def sections(self) -> int:
        """Number of sections."""
        return len(self._trailer.sections)

    def section(self, number: int) -> "Section":
        """A section by its number. Raises `CheckpointCorruptedError` if there is none of that number."""
        section = self._sections.get(number)
        if section is None:
            if not 0 <= number < self.sections:
                message = (
                    f"segment {self.name} has {self.sections} sections, and no section {number}"
                )
                raise CheckpointCorruptedError(message, self.location)
            section = self._sections[number] = Section(self, self._trailer.sections[number])
        return section

    def expect(self, *, most: bool) -> None:
        """Most pages of a section will be touched, or here and there some.

        For few pages no neighbours are read along, which would drive others out of a memory that is too small
        for all. Most pages are left to the system: to read them in one go beforehand was slower.
        """
        if self._mapped is not None and most != self._is_read_around:
            self._mapped.madvise(mmap.MADV_NORMAL if most else mmap.MADV_RANDOM)
            self._is_read_around = most

    def write_to(self, stream: CheckpointStateOutputStream) -> None:
        """Let a stream have all bytes: as the file that they are in, if it can do with that, else as a copy.

        Raises:
            CheckpointCorruptedError: A block is damaged.
            StorageUnavailableError: The store did not take it.
        """
        written = self._written
        is_adopted = (
            written is not None
            and isinstance(stream, AdoptingOutputStream)
            and stream.adopt(self.location, self.size, written)
        )
        if not is_adopted:
            self.verify(0, self._end)
            stream.write(self._bytes)

    def let_go(self) -> None:
        """Let go of the sections: whoever uses one goes on, and the memory is free when nobody does."""
        self._sections = {}

    def content(self) -> memoryview:
        """All bytes, verified. Raises `CheckpointCorruptedError`."""
        self.verify(0, self._end)
        return self._bytes

    def verify(self, offset: int, length: int) -> None:
        """Compare the blocks that so many bytes lie in with their checksums.

        Raises:
            CheckpointCorruptedError: A block differs.
        """
        if not length:
            return
        size = self._trailer.block_bytes
        first, end = offset // size, -(-(offset + length) // size)
        numbers = (first + (~self._is_verified[first:end]).nonzero()[0]).tolist()
        blocks = (
            self._bytes[number * size : min((number + 1) * size, self._end)] for number in numbers
        )
        flaw = flaw_of_blocks(self._trailer, numbers, blocks)
        if flaw is not None:
            raise CheckpointCorruptedError(f"segment {self.name}, {flaw}", self.location)
        self._is_verified[first:end] = True

    def verified(self, offset: int, length: int) -> pa.Buffer:
        """So many bytes. Raises `CheckpointCorruptedError` if a block that they lie in is damaged."""
        self.verify(offset, length)
        return self.buffer.slice(offset, length)

    def corrupted(self, message: str) -> CheckpointCorruptedError:
        """An error that names the segment."""
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)
