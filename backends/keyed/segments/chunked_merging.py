"""Merge rows chunk by chunk: a chunk is sorted in the processor's cache, and the output's memory is reused."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columns import Column, concatenate
from holdfast.backends.keyed.segments.merging import merge
from holdfast.backends.keyed.segments.rows import RowRange, SortedRows
from holdfast.backends.keyed.table import TableSpec

CHUNK_ROWS = 1 << 16
"""Wanted rows of a chunk."""

_MIN_ARENA_BYTES = 8 << 20
_MAX_ARENA_BYTES = 64 << 20
_ALIGNMENT = 64


class Arena:
    """Memory for merged rows, reused by the next snapshot: allocating new pages costs more than merging.

    Arrays that exceed its maximum size are allocated separately. The memory of a large merge is freed if no other
    large one follows.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._end = 0
        self._needed = 0  # recently; older needs decay

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._buffer)

    def reset(self) -> None:
        """Reuse all memory: arrays that were returned before must not be used any longer."""
        self._needed = max(self._end, self._needed - self._needed // 16)
        if self.size > max(_MIN_ARENA_BYTES, 4 * self._needed):
            self._buffer = np.empty(0, np.uint8)
        self._end = 0

    def array(self, length: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """Return an uninitialized array."""
        dtype = np.dtype(dtype)
        size = -(-length * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._end + size > _MAX_ARENA_BYTES:
            return np.empty(length, dtype)
        if self._end + size > len(self._buffer):
            wanted = max(_MIN_ARENA_BYTES, 2 * (self._end + size))
            # Arrays that were returned before keep the old buffer.
            self._buffer = np.empty(min(_MAX_ARENA_BYTES, wanted), np.uint8)
            self._end = 0
        data = self._buffer[self._end : self._end + length * dtype.itemsize]
        self._end += size
        return data.view(dtype)

    def release(self) -> None:
        """Free all memory, except that of returned arrays."""
        self._buffer = np.empty(0, np.uint8)
        self._end = 0


def merge_in_chunks(
    ranges: Sequence[RowRange],
    spec: TableSpec,
    arena: Arena,
    *,
    is_bottom: bool,
    now_ms: int | None,
) -> SortedRows:
    """Merge rows as `merge` does; large columns are in the arena's memory."""
    ranges = [range_ for range_ in ranges if range_.rows]
    total = sum(range_.rows for range_ in ranges)
    if len(ranges) < 2 or total <= 2 * CHUNK_ROWS:
        return merge(ranges, spec, is_bottom=is_bottom, now_ms=now_ms)
    rows = _RowBuilder(spec, arena, total)
    for chunk in _split_ranges(ranges, total):
        rows.add(merge(chunk, spec, is_bottom=is_bottom, now_ms=now_ms))
    return rows.finish()


def _split_ranges(ranges: Sequence[RowRange], total: int) -> list[list[RowRange]]:
    """Split all ranges at the same sort keys."""
    largest = max(ranges, key=lambda range_: range_.rows)
    step = max(1, largest.rows * CHUNK_ROWS // total)
    cuts = np.unique(largest.source.sort_keys[largest.first + step : largest.end : step])
    parts = []
    for range_ in ranges:
        sort_keys = range_.source.sort_keys[range_.first : range_.end]
        inner = range_.first + sort_keys.searchsorted(cuts)
        edges = itertools.pairwise([range_.first, *inner.tolist(), range_.end])
        parts.append([replace(range_, first=first, end=end) for first, end in edges])
    return [list(chunk) for chunk in zip(*parts, strict=True)]


class _RowBuilder:
    """Concatenates chunks of rows."""

    def __init__(self, spec: TableSpec, arena: Arena, max_rows: int) -> None:
        self._spec = spec
        self._rows = 0
        self._sort_keys = _NumberBuilder(arena, max_rows)
        self._has_operations = False
        self._operations = _NumberBuilder(arena, max_rows)
        self._times = _NumberBuilder(arena, max_rows)
        self._columns = [_ColumnBuilder(arena, max_rows) for _ in (*spec.id_fields, *spec.values)]

    def add(self, chunk: SortedRows) -> None:
        if not chunk.rows:
            return
        self._sort_keys.add(chunk.sort_keys)
        if chunk.operations is not None and not self._has_operations:
            self._has_operations = True
            self._operations.add(np.zeros(self._rows, np.uint8))
        if self._has_operations:
            puts = np.zeros(chunk.rows, np.uint8)
            self._operations.add(puts if chunk.operations is None else chunk.operations)
        if chunk.times_ms is not None:
            self._times.add(chunk.times_ms)
        for column, values in zip(self._columns, (*chunk.ids, *chunk.values), strict=True):
            column.add(values)
        self._rows += chunk.rows

    def finish(self) -> SortedRows:
        if not self._rows:
            return SortedRows.empty(self._spec)
        fields = (*self._spec.id_fields, *self._spec.values)
        columns = [
            concatenate(column.chunks(), field.type)
            for column, field in zip(self._columns, fields, strict=True)
        ]
        ids = len(self._spec.id_fields)
        return SortedRows(
            self._sort_keys.numbers(),
            self._operations.numbers() if self._has_operations else None,
            None if self._spec.ttl_ms is None else self._times.numbers(),
            columns[:ids],
            columns[ids:],
        )


class _NumberBuilder:
    """Concatenates numbers, in memory that is allocated for all of them with the first."""

    def __init__(self, arena: Arena, max_count: int) -> None:
        self._arena = arena
        self._max_count = max_count
        self._array: npt.NDArray[Any] | None = None
        self.count = 0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        if self._array is None:
            self._array = self._arena.array(self._max_count, numbers.dtype)
        self._array[self.count : self.count + len(numbers)] = numbers
        self.count += len(numbers)

    def numbers(self) -> npt.NDArray[Any]:
        assert self._array is not None
        return self._array[: self.count]


class _ColumnBuilder:
    """Collects a column: numbers concatenated until the first chunk that is an Arrow array."""

    def __init__(self, arena: Arena, max_count: int) -> None:
        self._numbers: _NumberBuilder | None = _NumberBuilder(arena, max_count)
        self._chunks: list[Column] = []

    def add(self, values: Column) -> None:
        if self._numbers is not None and not isinstance(values, np.ndarray):
            if self._numbers.count:
                self._chunks.append(self._numbers.numbers())
            self._numbers = None
        if self._numbers is not None:
            self._numbers.add(values)
        else:
            self._chunks.append(values)

    def chunks(self) -> list[Column]:
        return self._chunks if self._numbers is None else [self._numbers.numbers()]
