"""Merges some sort keys at a time: what is sorted stays in the processor's cache, and memory is used again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columnar.workspace import Arena
from holdfast.backends.keyed.columns import Column, concatenated
from holdfast.backends.keyed.segments import Part, SortedRows, empty_rows, merged
from holdfast.backends.keyed.table import TableSpec

CHUNK_ROWS = 1 << 16
"""About how many rows are merged at a time."""


def merged_by_chunks(
    parts: Sequence[Part],
    spec: TableSpec,
    arena: Arena,
    *,
    is_bottom: bool,
    now_ms: int | None,
) -> SortedRows:
    """The rows of all parts as those of one, as `merged` has it; large columns are in the arena's memory."""
    parts = [part for part in parts if part.rows]
    total = sum(part.rows for part in parts)
    if len(parts) < 2 or total <= 2 * CHUNK_ROWS:
        return merged(parts, spec, is_bottom=is_bottom, now_ms=now_ms)
    rows = _Gathered(spec, arena, total)
    for chunk in _chunks(parts, total):
        rows.add(merged(chunk, spec, is_bottom=is_bottom, now_ms=now_ms))
    return rows.rows()


def _chunks(parts: Sequence[Part], total: int) -> list[list[Part]]:
    """The parts cut at the same sort keys."""
    largest = max(parts, key=lambda part: part.rows)
    step = max(1, largest.rows * CHUNK_ROWS // total)
    cuts = np.unique(largest.source.sort_keys[largest.first + step : largest.end : step])
    edges = [
        [
            part.first,
            *(
                part.first + part.source.sort_keys[part.first : part.end].searchsorted(cuts)
            ).tolist(),
            part.end,
        ]
        for part in parts
    ]
    return [
        [
            replace(part, first=edge[number], end=edge[number + 1])
            for part, edge in zip(parts, edges, strict=True)
        ]
        for number in range(len(cuts) + 1)
    ]


class _Gathered:
    """Rows put together, chunk by chunk."""

    def __init__(self, spec: TableSpec, arena: Arena, most_rows: int) -> None:
        self._spec = spec
        self._rows = 0
        self._sort_keys = _GatheredNumbers(arena, most_rows)
        self._operations: _GatheredNumbers | None = None
        self._times = _GatheredNumbers(arena, most_rows)
        self._operations_memory = _GatheredNumbers(arena, most_rows)
        self._columns: list[_GatheredColumn] = [
            _GatheredColumn(arena, most_rows) for _ in (*spec.id_fields, *spec.values)
        ]

    def add(self, chunk: SortedRows) -> None:
        if not chunk.rows:
            return
        self._sort_keys.add(chunk.sort_keys)
        if chunk.operations is not None and self._operations is None:
            self._operations = self._operations_memory
            self._operations.add(np.zeros(self._rows, np.uint8))
        if self._operations is not None:
            puts = np.zeros(chunk.rows, np.uint8)
            self._operations.add(puts if chunk.operations is None else chunk.operations)
        if chunk.times_ms is not None:
            self._times.add(chunk.times_ms)
        for column, values in zip(self._columns, (*chunk.ids, *chunk.values), strict=True):
            column.add(values)
        self._rows += chunk.rows

    def rows(self) -> SortedRows:
        if not self._rows:
            return empty_rows(self._spec)
        types = [field.type for field in (*self._spec.id_fields, *self._spec.values)]
        columns = [
            concatenated(column.parts(), type)
            for column, type in zip(self._columns, types, strict=True)
        ]
        ids = len(self._spec.id_fields)
        return SortedRows(
            self._sort_keys.numbers(),
            None if self._operations is None else self._operations.numbers(),
            None if self._spec.ttl_ms is None else self._times.numbers(),
            columns[:ids],
            columns[ids:],
        )


class _GatheredNumbers:
    """Numbers side by side, in memory that is there for all of them from the first on."""

    def __init__(self, arena: Arena, most: int) -> None:
        self._arena = arena
        self._most = most
        self._array: npt.NDArray[Any] | None = None
        self.count = 0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        if self._array is None:
            self._array = self._arena.array(self._most, numbers.dtype)
        self._array[self.count : self.count + len(numbers)] = numbers
        self.count += len(numbers)

    def numbers(self) -> npt.NDArray[Any]:
        assert self._array is not None
        return self._array[: self.count]


class _GatheredColumn:
    """A column: numbers side by side, as long as Arrow needs not come in."""

    def __init__(self, arena: Arena, most: int) -> None:
        self._numbers: _GatheredNumbers | None = _GatheredNumbers(arena, most)
        self._parts: list[Column] = []

    def add(self, values: Column) -> None:
        if self._numbers is not None and not isinstance(values, np.ndarray):
            if self._numbers.count:
                self._parts.append(self._numbers.numbers())
            self._numbers = None
        if self._numbers is not None:
            self._numbers.add(values)
        else:
            self._parts.append(values)

    def parts(self) -> list[Column]:
        return self._parts if self._numbers is None else [self._numbers.numbers()]
