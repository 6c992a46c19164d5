"""A section: the rows of one table in a segment, read column by column.

Some rows of a column are read without the others, also of nullable and nested types. A section is an Arrow IPC file.
From its start and end Arrow makes a batch over memory that contains nothing else yet. The buffers of that batch are the
places of each column's bytes:

    ARROW1 · schema · message of the batch · buffers of all columns · footer
    └──────────── read first ────────────┘   └ on demand ┘           └ read ┘

The memory is as long as the section, but the system allocates only the pages that are written to.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import check_blocks, check_memory
from holdfast.backends.keyed.columns import Column, cut, from_arrow
from holdfast.backends.keyed.segments.side_tables import Directory, Filter, Samples
from holdfast.backends.keyed.segments.trailer import (
    ARROW_KIND,
    TEXT_KINDS,
    ColumnPlace,
    SectionPlace,
    column_kind,
)
from holdfast.backends.keyed.table import SortKeys
from holdfast.common import raise_shortage
from holdfast.errors import CheckpointCorruptedError

_MIN_ADVISED_ROWS = 16384
"""Smaller sections are read whole anyway, so the system gets no advice about them."""

_ROWS_PER_PAGE_READ = 8192
"""Reading this many rows in sequence takes as long as reading one of them from a page at a random place."""

HEAD_BYTES: Final = 1 << 16
"""Bytes at both ends of a section that usually have the places of all columns."""

_PREFIX: Final = 8
"""Bytes before the file's content and before each message: a marker, and before messages their length."""


class SectionBytes(Protocol):
    """The segment of a section."""

    def read(self, offset: int, length: int, /) -> pa.Buffer:
        """Read and verify bytes. Raises `CheckpointCorruptedError`."""
        ...

    def advise(self, *, sequential: bool) -> None:
        """Announce that most pages of a section will be read, or only some."""
        ...

    def corrupted_error(self, message: str, /) -> CheckpointCorruptedError:
        """Make an error that names the segment."""
        ...


class Section:
    """Sorted rows of one table. A column is read and verified when it is first used."""

    def __init__(self, segment: SectionBytes, place: SectionPlace) -> None:
        self._segment = segment
        self._place = place
        self._columns: dict[str, Column] = {}
        self._by_name = {column.name: column for column in place.columns}
        self._batch: pa.RecordBatch | None = None
        self._partial: PartialBatch | None = None
        self._directory: Directory | None = None
        self._samples: Samples | None = None
        self._filter: Filter | None = None
        self.rows = place.rows

    @property
    def sort_keys(self) -> SortKeys:
        return cast("SortKeys", self.column("hi", pa.uint64()))

    @property
    def table(self) -> str:
        """The name of the table that the rows belong to."""
        return self._place.table

    @property
    def length(self) -> int:
        """Length in bytes, without side tables."""
        return self._place.place[1]

    @property
    def segment(self) -> SectionBytes:
        return self._segment

    @property
    def place(self) -> SectionPlace:
        return self._place

    def has(self, name: str) -> bool:
        return name in self._by_name

    @property
    def directory(self) -> Directory | None:
        """The first row of each prefix; None if the section has no directory."""
        place = self._place.directory
        if self._directory is None and place is not None:
            starts = np.frombuffer(self._segment.read(*place.place), "<u4")
            self._directory = Directory(starts, place.shift, place.first)
        return self._directory

    @property
    def samples(self) -> Samples | None:
        """Some of the sort keys; None if the section has a directory, or few rows."""
        place = self._place.samples
        if self._samples is None and place is not None:
            sort_keys = np.frombuffer(self._segment.read(*place.place), "<u8")
            self._samples = Samples(sort_keys, place.step)
        return self._samples

    @property
    def filter(self) -> Filter | None:
        """The prefixes that occur; None if the section has no filter."""
        place = self._place.filter
        if self._filter is None and place is not None:
            bits = np.frombuffer(self._segment.read(*place.place), np.uint8)
            self._filter = Filter(bits, place.shift, place.first_byte)
        return self._filter

    def advise(self, lookups: int) -> None:
        """Announce the number of rows that will be looked up: see `Segment.advise`."""
        if self.rows >= _MIN_ADVISED_ROWS:
            self._segment.advise(sequential=lookups * _ROWS_PER_PAGE_READ > self.rows)

    def column(self, name: str, type: pa.DataType) -> Column:
        """Return a column. Raises as `column_between`."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self.column_between(name, type, 0, self.rows)
        return column

    def keys_between(self, first: int, end: int) -> tuple[int, SortKeys]:
        """Return the position of the first row with `first` <= sort key < `end`, and the sort keys of all such rows.

        With a directory or samples few others are read.
        """
        low, high = self._rows_near(first, end)
        keys = cast("SortKeys", self.column_between("hi", pa.uint64(), low, high))
        start, stop = np.searchsorted(keys, np.array([first, end], np.uint64)).tolist()
        return low + start, keys[start:stop]

    def forget_batch(self) -> None:
        """Read the places of columns again, which may have been read before all blocks of them were fetched."""
        self._batch = self._partial = None

    def column_place(self, name: str, type: pa.DataType) -> ColumnPlace:
        """Return the place of a column. Raises `CheckpointCorruptedError` if it is missing or has another type."""
        place = self._by_name.get(name)
        if place is None:
            raise self._section_error(f"has no column {name!r}")
        if place.kind not in (ARROW_KIND, column_kind(type)):
            raise self._type_error(name, place.kind, type)
        return place

    def column_between(self, name: str, type: pa.DataType, first: int, end: int) -> Column:
        """Return the rows from `first` up to `end` of a column; read no others, if possible.

        Raises `CheckpointCorruptedError` if a block is corrupt, or the column is missing or has another type.
        """
        place = self.column_place(name, type)
        if first == end:
            return from_arrow(pa.array([], type))
        if place.kind == ARROW_KIND:
            if 2 * (end - first) <= self.rows and self._batch is None:
                return self._read_partially(name, type, first, end)
            return cut(self._read_by_arrow(name, type), first, end)
        if place.kind in TEXT_KINDS:
            return self._read_texts(place, type, first, end)
        width = np.dtype(place.kind).itemsize
        start, _ = place.buffers[0]
        buffer = self._segment.read(start + first * width, (end - first) * width)
        return np.frombuffer(buffer, place.kind, end - first)

    def _read_texts(self, place: ColumnPlace, type: pa.DataType, first: int, end: int) -> pa.Array:
        width = TEXT_KINDS[place.kind]
        (at_offsets, _), (at_bytes, length) = place.buffers
        buffer = self._segment.read(at_offsets + first * width, (end - first + 1) * width)
        offsets = np.frombuffer(buffer, f"<i{width}", end - first + 1)
        low, high = int(offsets[0]), int(offsets[-1])
        is_wrong = low < 0 or high > length or (low and not first)
        if is_wrong or (offsets[1:] < offsets[:-1]).any():
            raise self._segment.corrupted_error(
                f"offsets of column {place.name!r} are not ascending"
            )
        if low:
            buffer = pa.py_buffer(offsets - offsets.dtype.type(low))
        text = self._segment.read(at_bytes + low, high - low)
        return pa.Array.from_buffers(type, end - first, [None, buffer, text])

    def _rows_near(self, first: int, end: int) -> tuple[int, int]:
        """Return bounds of the rows with a sort key in the range."""
        place = self._place.directory
        if place is None:
            samples = self.samples
            if samples is None:
                return 0, self.rows
            steps = samples.steps_between(
                np.array([first], np.uint64), np.array([end - 1], np.uint64)
            )
            low, high = (min(int(step[0]) * samples.step, self.rows) for step in steps)
            return low, max(low, high)
        offset, length = place.place
        last = length // 4 - 1  # the end of the last prefix

        def row_of(prefix: int) -> int:
            if not 0 < prefix < last:
                return 0 if prefix <= 0 else self.rows
            row = np.frombuffer(self._segment.read(offset + 4 * prefix, 4), "<u4")
            return min(int(row[0]), self.rows)

        low = row_of((first - place.first) >> place.shift)
        high = row_of(((end - 1 - place.first) >> place.shift) + 1)
        return low, max(low, high)

    def _read_by_arrow(self, name: str, type: pa.DataType) -> Column:
        if self._batch is None:
            try:
                self._batch = _only_batch(self._segment.read(*self._place.place))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise self._decoding_error(error) from error
        batch = self._batch
        array = batch.column(self._index_of(name, type, batch.schema, batch.num_rows))
        try:
            check_memory(array)
        except pa.ArrowInvalid as error:
            raise self._segment.corrupted_error(f"column {name!r} is invalid ({error})") from error
        return from_arrow(array)

    def _read_partially(self, name: str, type: pa.DataType, first: int, end: int) -> Column:
        start, length = self._place.place
        read = self._segment.read  # not through `self`: a cycle would delay freeing the memory
        try:
            if self._partial is None:
                self._partial = PartialBatch(lambda at, size: read(start + at, size), length)
            batch = self._partial
            index = self._index_of(name, type, batch.schema, batch.rows)
            return from_arrow(batch.column_between(index, first, end))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._decoding_error(error) from error

    def _index_of(self, name: str, type: pa.DataType, schema: pa.Schema, rows: int) -> int:
        """Return the index of a column. Raises `CheckpointCorruptedError` if the batch doesn't match the section."""
        index: int = schema.get_field_index(name)
        if index < 0 or rows != self.rows:
            raise self._section_error("has other columns or rows")
        stored = schema.field(index).type
        if not stored.equals(type):
            raise self._type_error(name, stored, type)
        return index

    def _decoding_error(self, error: Exception) -> CheckpointCorruptedError:
        raise_shortage(error)
        return self._section_error(f"can't be decoded ({error})")

    def _type_error(
        self, name: str, stored: object, expected: pa.DataType
    ) -> CheckpointCorruptedError:
        return self._segment.corrupted_error(
            f"column {name!r} of table {self.table!r} is {stored}, expected {expected}"
        )

    def _section_error(self, message: str) -> CheckpointCorruptedError:
        return self._segment.corrupted_error(f"a section of table {self.table!r} {message}")


def _only_batch(section: pa.Buffer) -> pa.RecordBatch:
    check_blocks(section, 0)  # segments are not compressed
    with pa.ipc.open_file(section) as reader:
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} record batches")
        return reader.get_batch(0)


class PartialBatch:
    """The batch of a section, whose bytes `read` reads by offset and length.

    It is read whole if it has a type, such as a dictionary, whose rows need other data.

    Raises `ValueError` or `pa.ArrowException` if the section is not an Arrow file with exactly one record batch.
    """

    def __init__(self, read: Callable[[int, int], pa.Buffer], length: int) -> None:
        self._read = read
        self._memory = memoryview(mmap.mmap(-1, length))
        self._buffer = pa.py_buffer(self._memory)
        end = min(length, HEAD_BYTES)
        self._fetch(0, end)
        at = _PREFIX
        for _ in range(2):  # the schema, and the message of the batch
            if at + _PREFIX > length:
                raise ValueError("it ends within its messages")
            at += _PREFIX + int.from_bytes(self._bytes(at + 4, 4), "little")
            if end < at + _PREFIX:
                self._fetch(end, min(length, at + _PREFIX) - end)
                end = at + _PREFIX
        self._fetch(max(0, length - HEAD_BYTES), min(length, HEAD_BYTES))
        check_blocks(self._buffer, 0)  # segments are not compressed
        with pa.ipc.open_file(self._buffer) as reader:
            if reader.num_record_batches != 1:
                raise ValueError(f"{reader.num_record_batches} record batches")
            self._is_whole = not all(_has_row_places(field.type) for field in reader.schema)
            if self._is_whole:
                self._fetch(0, length)
            self._batch = reader.get_batch(0)

    @property
    def schema(self) -> pa.Schema:
        return self._batch.schema

    @property
    def rows(self) -> int:
        return int(self._batch.num_rows)

    def column_between(self, index: int, first: int, end: int) -> pa.Array:
        """Return the rows from `first` up to `end` of a column; read no others. Raises as the class."""
        column = self._batch.column(index)
        if not self._is_whole:
            self._load(column.type, iter(column.buffers()), first, end)
        rows = column.slice(first, end - first)
        copied = pa.concat_arrays([rows, rows.slice(0, 0)])  # only these rows
        check_memory(copied)
        return copied

    def _load(
        self, type: pa.DataType, buffers: Iterator[pa.Buffer | None], first: int, end: int
    ) -> None:
        """Read the bytes of rows in the buffers of an array, which are in Arrow's order, children last."""
        validity = next(buffers)
        if types.is_null(type):
            return
        self._load_bits(validity, first, end)
        if types.is_struct(type):
            for field in type:
                self._load(field.type, buffers, first, end)
        elif types.is_fixed_size_list(type):
            self._load(type.value_type, buffers, first * type.list_size, end * type.list_size)
        elif types.is_boolean(type):
            self._load_bits(next(buffers), first, end)
        elif _has_bytes(type):
            low, high = self._offsets(next(buffers), type, first, end)
            self._load_bytes(next(buffers), low, high)
        elif types.is_list(type) or types.is_large_list(type):
            low, high = self._offsets(next(buffers), type, first, end)
            self._load(type.value_type, buffers, low, high)
        elif types.is_map(type):
            low, high = self._offsets(next(buffers), type, first, end)
            self._load_bits(next(buffers), low, high)
            for inner in (type.key_type, type.item_type):
                self._load(inner, buffers, low, high)
        else:
            width = type.bit_width // 8
            self._load_bytes(next(buffers), first * width, end * width)

    def _offsets(
        self, buffer: pa.Buffer | None, type: pa.DataType, first: int, end: int
    ) -> tuple[int, int]:
        """Read the offsets of rows; return where their content starts and ends."""
        width = 8 if _is_large(type) else 4
        if buffer is None or first == end:
            return 0, 0
        self._load_bytes(buffer, first * width, (end + 1) * width)
        offsets = np.frombuffer(buffer, f"<i{width}", end - first + 1, first * width)
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets are not ascending")
        return int(offsets[0]), int(offsets[-1])

    def _load_bits(self, buffer: pa.Buffer | None, first: int, end: int) -> None:
        self._load_bytes(buffer, first // 8, -(-end // 8))

    def _load_bytes(self, buffer: pa.Buffer | None, first: int, end: int) -> None:
        if buffer is None or first == end:
            return
        if end > buffer.size:
            raise ValueError("a buffer is shorter than its rows")
        self._fetch(buffer.address - self._buffer.address + first, end - first)

    def _fetch(self, offset: int, length: int) -> None:
        self._memory[offset : offset + length] = memoryview(self._read(offset, length)).cast("B")

    def _bytes(self, offset: int, length: int) -> bytes:
        return bytes(self._memory[offset : offset + length])


def _has_row_places(type: pa.DataType) -> bool:
    """Return whether the place of a row follows from its number or its offsets."""
    if types.is_map(type):
        return _has_row_places(type.key_type) and _has_row_places(type.item_type)
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return _has_row_places(type.value_type)
    if types.is_struct(type):
        return all(_has_row_places(field.type) for field in type)
    has_width = types.is_fixed_size_binary(type) or types.is_decimal(type)
    return bool(types.is_null(type) or types.is_primitive(type) or has_width or _has_bytes(type))


def _has_bytes(type: pa.DataType) -> bool:
    """Return whether values are bytes or text of variable length."""
    is_small = types.is_string(type) or types.is_binary(type)
    return bool(is_small or types.is_large_string(type) or types.is_large_binary(type))


def _is_large(type: pa.DataType) -> bool:
    return bool(
        types.is_large_string(type) or types.is_large_binary(type) or types.is_large_list(type)
    )
