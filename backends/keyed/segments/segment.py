"""A segment that is read where it lies: in memory, or in a file that is mapped.

Nothing is read when a segment is opened but its trailer. A block is verified when the first column that lies
in it is touched, and then never again by the same `Segment`.
"""

import mmap
import os
import struct
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.columns import Column, from_arrow, plain_type
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.segments.trailer import (
    ARROW_KIND,
    TEXT_KINDS,
    SectionPlace,
    column_kind,
    decode_trailer,
)
from holdfast.backends.keyed.table import SortKeys
from holdfast.common import crc32c
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError


class Segment:
    """One segment.

    Args:
        data: All bytes; where they begin is a multiple of 8.
        name: Its name.
        location: Where the bytes came from, for errors.

    Raises:
        CheckpointCorruptedError: The bytes are no segment, or the trailer is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """

    def __init__(self, data: pa.Buffer, name: str, location: str = "") -> None:
        self.name = name
        self.location = location or f"segment {name}"
        self.buffer = data
        self._bytes = memoryview(data).cast("B")
        self._trailer, self._end = decode_trailer(self._bytes, self.location)
        self._is_verified = np.zeros(len(self._trailer.blocks) // 4, bool)
        self._sections: dict[int, Section] = {}

    @classmethod
    def open(cls, path: str, name: str) -> Self:
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
        return cls(pa.py_buffer(mapped), name, path)

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
        for number in (first + (~self._is_verified[first:end]).nonzero()[0]).tolist():
            block = self._bytes[number * size : min((number + 1) * size, self._end)]
            (expected,) = struct.unpack_from(">I", self._trailer.blocks, 4 * number)
            actual = crc32c(block)
            if actual != expected:
                message = (
                    f"segment {self.name}, block {number} (bytes {number * size} to "
                    f"{number * size + len(block)}) has checksum {actual:08x}, expected {expected:08x} (crc32c)"
                )
                raise CheckpointCorruptedError(message, self.location)
            self._is_verified[number] = True

    def verified(self, offset: int, length: int) -> pa.Buffer:
        """So many bytes. Raises `CheckpointCorruptedError` if a block that they lie in is damaged."""
        self.verify(offset, length)
        return self.buffer.slice(offset, length)

    def corrupted(self, message: str) -> CheckpointCorruptedError:
        """An error that names the segment."""
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self.location)


class Section:
    """Sorted rows of one table. Every column is verified when it is first asked for."""

    def __init__(self, segment: Segment, place: SectionPlace) -> None:
        self._segment = segment
        self._place = place
        self._columns: dict[str, Column] = {}
        self._by_name = {column.name: column for column in place.columns}
        self._batch: pa.RecordBatch | None = None
        self._directory: Directory | None = None
        self._filter: Filter | None = None
        self.rows = place.rows
        self.sort_keys: SortKeys = self.column("hi", pa.uint64())

    @property
    def table(self) -> str:
        """The table that the rows are of."""
        return self._place.table

    @property
    def length(self) -> int:
        """Length in bytes, without side tables."""
        return self._place.place[1]

    def has(self, name: str) -> bool:
        """Whether there is a column of that name."""
        return name in self._by_name

    @property
    def directory(self) -> Directory | None:
        """Where rows begin, by prefix; None if there is none."""
        place = self._place.directory
        if self._directory is None and place is not None:
            starts = np.frombuffer(self._segment.verified(*place.place), "<u4")
            self._directory = Directory(starts, place.shift, place.first)
        return self._directory

    @property
    def filter(self) -> Filter | None:
        """Which prefixes occur; None if there is none."""
        place = self._place.filter
        if self._filter is None and place is not None:
            bits = np.frombuffer(self._segment.verified(*place.place), np.uint8)
            self._filter = Filter(bits, place.shift, place.first_byte)
        return self._filter

    def column(self, name: str, type: pa.DataType) -> Column:
        """A column by its name.

        Args:
            name: The name.
            type: What the column is of.

        Raises:
            CheckpointCorruptedError: A block is damaged, or the column is not there or of another type.
        """
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._column(name, type)
        return column

    def _column(self, name: str, type: pa.DataType) -> Column:
        place = self._by_name.get(name)
        if place is None:
            raise self._segment.corrupted(
                f"a section of table {self.table!r} has no column {name!r}"
            )
        if place.kind == ARROW_KIND:
            return self._read_by_arrow(name, type)
        if place.kind != column_kind(type, plain_type(type)):
            raise self._segment.corrupted(
                f"column {name!r} of table {self.table!r} is {place.kind}, expected {type}"
            )
        buffers = [self._segment.verified(*buffer) for buffer in place.buffers]
        if place.kind not in TEXT_KINDS:
            return np.frombuffer(buffers[0], place.kind, self.rows)
        offsets = np.frombuffer(buffers[0], f"<i{TEXT_KINDS[place.kind]}", self.rows + 1)
        if offsets[0] or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > buffers[1].size:
            raise self._segment.corrupted(f"offsets of column {name!r} don't ascend")
        return pa.Array.from_buffers(type, self.rows, [None, *buffers])

    def _read_by_arrow(self, name: str, type: pa.DataType) -> Column:
        if self._batch is None:
            try:
                self._batch = _only_batch(self._segment.verified(*self._place.place))
            except (pa.ArrowException, OSError, ValueError) as error:
                message = f"a section of table {self.table!r} can't be decoded ({error})"
                raise self._segment.corrupted(message) from error
        index = self._batch.schema.get_field_index(name)
        if index < 0 or self._batch.num_rows != self.rows:
            raise self._segment.corrupted(
                f"a section of table {self.table!r} has other columns or rows"
            )
        array = self._batch.column(index)
        if not array.type.equals(type):
            raise self._segment.corrupted(
                f"column {name!r} of table {self.table!r} is {array.type}, expected {type}"
            )
        try:
            array.validate(full=True)  # else a wrong length is memory of somebody else
        except pa.ArrowInvalid as error:
            raise self._segment.corrupted(f"column {name!r} can't be right ({error})") from error
        return from_arrow(array)


def _only_batch(section: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_file(section) as reader:
        if reader.num_record_batches != 1:
            message = f"{reader.num_record_batches} record batches"
            raise ValueError(message)
        return reader.get_batch(0)
