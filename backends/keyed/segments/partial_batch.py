"""Some rows of a record batch in storage, read without the others, also of nullable and nested types.

A section is an Arrow IPC file. From its start and end Arrow makes a batch over memory that contains nothing else
yet. The buffers of that batch are the places of each column's bytes:

    ARROW1 · schema · message of the batch · buffers of all columns · footer
    └──────────── read first ────────────┘   └ on demand ┘           └ read ┘

The memory is as long as the section, but the system allocates only the pages that are written to.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import check_blocks, check_memory

_HEAD_BYTES: Final = 1 << 16
_PREFIX: Final = 8
"""Bytes before the file's content and before each message: a marker, and before messages their length."""

Read = Callable[[int, int], pa.Buffer]
"""Reads bytes of the section, by offset and length."""


class PartialBatch:
    """The batch of a section. It is read whole if it has a type, such as a dictionary, whose rows need other data.

    Raises `ValueError` or `pa.ArrowException` if the section is not an Arrow file with exactly one record batch.
    """

    def __init__(self, read: Read, length: int) -> None:
        self._read = read
        self._memory = memoryview(mmap.mmap(-1, length))
        self._buffer = pa.py_buffer(self._memory)
        end = min(length, _HEAD_BYTES)
        self._fetch(0, end)
        at = _PREFIX
        for _ in range(2):  # the schema, and the message of the batch
            if at + _PREFIX > length:
                raise ValueError("it ends within its messages")
            at += _PREFIX + int.from_bytes(self._bytes(at + 4, 4), "little")
            if end < at + _PREFIX:
                self._fetch(end, min(length, at + _PREFIX) - end)
                end = at + _PREFIX
        self._fetch(max(0, length - _HEAD_BYTES), min(length, _HEAD_BYTES))
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
