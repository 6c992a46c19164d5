"""Merge rows of several sources into one row per identity.

Of several rows of an identity the newest counts. A DELETE or an expired row hides older ones; operands are folded,
oldest first, down to the newest PUT or DELETE. At the bottom, where no older rows exist, rows that only hide others
are dropped. An expired operand hides nothing: a clock may be set back, so that an older operand has a later time.
Folded operands get the latest of their times.

Many rows are merged chunk by chunk: a chunk is sorted in the processor's cache, and the output's memory is reused.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columns import Column, Rows, concatenate, cut, group_equal_rows, take
from holdfast.backends.keyed.folding import fold_values
from holdfast.backends.keyed.segments.rows import OpenSlice, Operations, RowRange, SortedRows, Times
from holdfast.backends.keyed.table import Flags, Operation, SortKeys, TableSpec
from holdfast.backends.keys import KeyGroupRange

CHUNK_ROWS = 1 << 16
"""Wanted rows of a chunk."""

_MIN_ARENA_BYTES = 8 << 20
_MAX_ARENA_BYTES = 64 << 20
_ALIGNMENT = 64

_PUT, _APPEND, _DELETE = (np.uint8(operation) for operation in Operation)


def sort_key_range(key_groups: KeyGroupRange) -> tuple[int, int]:
    """Return the first sort key of key groups, and the end, exclusive."""
    return key_groups.start_key_group << 48, (key_groups.end_key_group + 1) << 48


def rows_between(
    slices: Iterable[OpenSlice],
    spec: TableSpec,
    first: SortKeys,
    end: SortKeys,
    *,
    endings: Flags | None = None,
    now_ms: int | None = None,
) -> SortedRows:
    """Return the merged rows of slices, newest first, with a sort key in one of several ranges, as `StateTable.rows_between`.

    Expired rows are kept if there is no present `now_ms`.
    """
    ranges = [slice_.rows_between(first, end, endings) for slice_ in slices]
    return merge(ranges, spec, is_bottom=True, now_ms=now_ms)


def scan(
    slices: Callable[[int, int], Iterable[OpenSlice]],
    spec: TableSpec,
    sort_keys: tuple[int, int],
    rows: int,
    step_rows: int,
    *,
    now_ms: int | None = None,
) -> Iterator[SortedRows]:
    """Return all merged rows between two sort keys, in steps of equal ranges of them, by the estimated number of rows.

    `slices` returns the slices that have rows between two sort keys, newest first. Expired rows are kept if there is no
    present `now_ms`.
    """
    first, end = sort_keys
    steps = max(1, -(-rows // step_rows))
    edges = [first + (end - first) * step // steps for step in range(steps + 1)]
    for low, high in itertools.pairwise(edges):
        bounds = np.array([low], np.uint64), np.array([high], np.uint64)
        step = rows_between(slices(low, high), spec, *bounds, now_ms=now_ms)
        if step.rows:
            yield step


def is_expired(times_ms: Times, spec: TableSpec, now_ms: int) -> npt.NDArray[np.bool_]:
    """Return whether each row has expired, by the time of its write."""
    assert spec.ttl_ms is not None
    return times_ms <= now_ms - spec.ttl_ms


def merge(
    ranges: Sequence[RowRange], spec: TableSpec, *, is_bottom: bool, now_ms: int | None
) -> SortedRows:
    """Merge rows of ranges, newest first. Raises `InvalidRequestError` if a sum overflows its type.

    No older rows exist if `is_bottom` is set. Expired rows are kept if there is no present `now_ms`.
    """
    ranges = [range_ for range_ in ranges if range_.rows]
    if not ranges:
        return SortedRows.empty(spec)
    rows = _concatenate_ranges(ranges, spec)
    operations = rows.operations
    if rows.times_ms is not None and spec.ttl_ms is not None and now_ms is not None:
        expired = is_expired(rows.times_ms, spec, now_ms)
        if expired.any():
            operations = np.zeros(rows.rows, np.uint8) if operations is None else operations.copy()
            operations[expired & (operations != _APPEND)] = _DELETE
    if len(ranges) == 1 and not (is_bottom and operations is not None):
        return SortedRows(rows.sort_keys, operations, rows.times_ms, rows.ids, rows.values)
    order = np.argsort(rows.sort_keys, kind="stable")  # newest first within a sort key
    order, is_newest = group_equal_rows(order, rows.sort_keys.take(order), rows.ids)
    if operations is None or not (spec.folds and (operations == _APPEND).any()):
        return _take_newest(
            rows, operations, order.take(is_newest.nonzero()[0]), is_bottom=is_bottom
        )
    return _fold(rows, operations, order, is_newest, spec, is_bottom=is_bottom, now_ms=now_ms)


def _concatenate_ranges(ranges: Sequence[RowRange], spec: TableSpec) -> SortedRows:
    def numbers(parts: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        arrays = list(parts)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    has_operations = any(range_.source.operations is not None for range_ in ranges)
    ids = [
        [cut(column, range_.first, range_.end) for column in range_.source.ids] for range_ in ranges
    ]
    values = [range_.source.values_between(range_.first, range_.end) for range_ in ranges]
    return SortedRows(
        numbers(range_.source.sort_keys[range_.first : range_.end] for range_ in ranges),
        numbers(map(_operations, ranges)) if has_operations else None,
        None if spec.ttl_ms is None else numbers(map(_times, ranges)),
        [
            concatenate(parts, field.type)
            for parts, field in zip(zip(*ids, strict=True), spec.id_fields, strict=True)
        ],
        [
            concatenate(parts, type)
            for parts, type in zip(zip(*values, strict=True), spec.values.types, strict=True)
        ],
    )


def _operations(range_: RowRange) -> Operations:
    operations = range_.source.operations
    if operations is None:
        return np.zeros(range_.rows, np.uint8)
    return operations[range_.first : range_.end]


def _times(range_: RowRange) -> Times:
    times = range_.source.times_ms
    assert times is not None
    return times[range_.first : range_.end]


def _take_newest(
    rows: SortedRows, operations: Operations | None, newest: Rows, *, is_bottom: bool
) -> SortedRows:
    """Return the newest row of each identity, as it is."""
    kept = None if operations is None else operations.take(newest)
    if kept is not None and is_bottom:
        newest, kept = newest[kept != _DELETE], None
    if kept is not None and not kept.any():
        kept = None
    return SortedRows(
        rows.sort_keys.take(newest),
        kept,
        None if rows.times_ms is None else rows.times_ms.take(newest),
        [take(column, newest) for column in rows.ids],
        [take(column, newest) for column in rows.values],
    )


def _fold(
    rows: SortedRows,
    operations: Operations,
    order: Rows,
    is_newest: npt.NDArray[np.bool_],
    spec: TableSpec,
    *,
    is_bottom: bool,
    now_ms: int | None,
) -> SortedRows:
    """Fold, for each identity, the newest PUT and the operands that are newer than the newest PUT or DELETE."""
    newest = is_newest.nonzero()[0]
    groups = len(newest)
    ordered = operations.take(order)
    group = np.cumsum(is_newest) - 1
    ends_history = (ordered != _APPEND).astype(np.int64)
    ends_before = np.cumsum(ends_history) - ends_history
    is_live = ends_before == ends_before.take(newest).take(group)
    is_whole = np.zeros(groups, bool)
    is_whole[group[(ends_history == 1) & is_live]] = True
    operands = (is_live & (ordered != _DELETE)).nonzero()[0]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group.take(operands), minlength=groups))])
    oldest_first = order.take(operands).take(_reverse_groups(group.take(operands), bounds))
    values = fold_values([take(column, oldest_first) for column in rows.values], bounds, spec)
    is_empty = bounds[1:] == bounds[:-1]
    folded_operations = np.where(is_whole | is_bottom, _PUT, _APPEND).astype(np.uint8)
    folded_operations[is_empty] = _DELETE
    at = order.take(newest)
    times = rows.times_ms
    is_dropped = is_empty
    if times is not None:
        latest = times.take(at)  # a DELETE keeps its own
        filled = (~is_empty).nonzero()[0]
        if len(filled):
            latest[filled] = np.maximum.reduceat(times.take(oldest_first), bounds.take(filled))
        times = latest
        if now_ms is not None:
            is_dropped = is_empty | is_expired(times, spec, now_ms)
    if is_bottom and is_dropped.any():
        kept = (~is_dropped).nonzero()[0]
        at, values = at.take(kept), [take(column, kept) for column in values]
        folded_operations = folded_operations.take(kept)
        times = None if times is None else times.take(kept)
    return SortedRows(
        rows.sort_keys.take(at),
        folded_operations if folded_operations.any() else None,
        times,
        [take(column, at) for column in rows.ids],
        values,
    )


def _reverse_groups(group: Rows, bounds: Rows) -> Rows:
    """Return positions that reverse the rows of each group."""
    return bounds.take(group) + bounds.take(group + 1) - 1 - np.arange(len(group))


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
        self._sort_keys = _NumberBuilder(arena, max_rows)
        self._operations = _NumberBuilder(arena, max_rows)
        self._times = _NumberBuilder(arena, max_rows)
        self._columns = [_ColumnBuilder(arena, max_rows) for _ in (*spec.id_fields, *spec.values)]

    def add(self, chunk: SortedRows) -> None:
        if not chunk.rows:
            return
        self._sort_keys.add(chunk.sort_keys)
        puts = np.zeros(chunk.rows, np.uint8)
        self._operations.add(puts if chunk.operations is None else chunk.operations)
        if chunk.times_ms is not None:
            self._times.add(chunk.times_ms)
        for column, values in zip(self._columns, (*chunk.ids, *chunk.values), strict=True):
            column.add(values)

    def finish(self) -> SortedRows:
        if not self._sort_keys.count:
            return SortedRows.empty(self._spec)
        fields = (*self._spec.id_fields, *self._spec.values)
        columns = [
            concatenate(column.chunks(), field.type)
            for column, field in zip(self._columns, fields, strict=True)
        ]
        ids = len(self._spec.id_fields)
        operations = self._operations.numbers()
        return SortedRows(
            self._sort_keys.numbers(),
            operations if operations.any() else None,
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
