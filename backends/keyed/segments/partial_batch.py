"""Rows of a record batch in storage, read without the others: of types with nulls or values inside, too.

A section is an Arrow IPC file. Its beginning and end are read; from these Arrow makes a batch over memory in which
nothing else is yet, and the buffers of that batch say where the bytes of each column lie:

    ARROW1 · schema · message of the batch · buffers of all columns · footer
    └──────────── read first ────────────┘   └─ by need ─┘           └ read ┘

The memory is as long as the section, but the system gives pages of it only where something is put.
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
"""Bytes before the file's content and before each message: a mark, and with messages the length of what follows."""

Read = Callable[[int, int], pa.Buffer]
"""Reads bytes of the section, by offset and length."""


class PartialBatch:
    """The batch of a section. It is read whole if it has a type, such as a dictionary, that needs more than its rows.

    Args:
        read: Reads bytes of the section.
        length: The file's length in bytes.

    Raises:
        ValueError: The section has not one record batch.
        pa.ArrowException: It is no Arrow file.
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
        check_blocks(self._buffer, 0)  # no segment is compressed
        with pa.ipc.open_file(self._buffer) as reader:
            if reader.num_record_batches != 1:
                raise ValueError(f"{reader.num_record_batches} record batches")
            self._is_whole = not all(_has_places(field.type) for field in reader.schema)
            if self._is_whole:
                self._fetch(0, length)
            self._batch = reader.get_batch(0)

    @property
    def schema(self) -> pa.Schema:
        """The columns that there are."""
        return self._batch.schema

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return int(self._batch.num_rows)

    def column_between(self, index: int, first: int, end: int) -> pa.Array:
        """The rows from `first` up to `end` of a column; reads no others.

        Raises:
            ValueError: The stored bytes are no such column.
            pa.ArrowException: Likewise.
        """
        column = self._batch.column(index)
        if not self._is_whole:
            self._load(column.type, iter(column.buffers()), first, end)
        rows = column.slice(first, end - first)
        copied = pa.concat_arrays([rows, rows.slice(0, 0)])  # of these rows alone
        check_memory(copied)
        return copied

    def _load(
        self, type: pa.DataType, buffers: Iterator[pa.Buffer | None], first: int, end: int
    ) -> None:
        """Read what rows need of the buffers of an array, which come in Arrow's order; those inside come behind."""
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
        """Where the content of rows begins and ends, by their offsets, which are read."""
        width = 8 if _is_large(type) else 4
        if buffer is None or first == end:
            return 0, 0
        self._load_bytes(buffer, first * width, (end + 1) * width)
        offsets = np.frombuffer(buffer, f"<i{width}", end - first + 1, first * width)
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets don't ascend")
        return int(offsets[0]), int(offsets[-1])

    def _load_bits(self, buffer: pa.Buffer | None, first: int, end: int) -> None:
        self._load_bytes(buffer, first // 8, -(-end // 8))

    def _load_bytes(self, buffer: pa.Buffer | None, first: int, end: int) -> None:
        """Read bytes of a buffer."""
        if buffer is None or first == end:
            return
        if end > buffer.size:
            raise ValueError("a buffer is shorter than its rows")
        self._fetch(buffer.address - self._buffer.address + first, end - first)

    def _fetch(self, offset: int, length: int) -> None:
        self._memory[offset : offset + length] = memoryview(self._read(offset, length)).cast("B")

    def _bytes(self, offset: int, length: int) -> bytes:
        return bytes(self._memory[offset : offset + length])


def _has_places(type: pa.DataType) -> bool:
    """Whether the rows of a type lie where their number says, or offsets of theirs."""
    if types.is_map(type):
        return _has_places(type.key_type) and _has_places(type.item_type)
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return _has_places(type.value_type)
    if types.is_struct(type):
        return all(_has_places(field.type) for field in type)
    has_width = types.is_fixed_size_binary(type) or types.is_decimal(type)
    return bool(types.is_null(type) or types.is_primitive(type) or has_width or _has_bytes(type))


def _has_bytes(type: pa.DataType) -> bool:
    """Whether values are bytes or text of any length, by offsets."""
    is_small = types.is_string(type) or types.is_binary(type)
    return bool(is_small or types.is_large_string(type) or types.is_large_binary(type))


def _is_large(type: pa.DataType) -> bool:
    return bool(
        types.is_large_string(type) or types.is_large_binary(type) or types.is_large_list(type)
    )
