"""Sorted rows of a table: in memory, in a section, and the ranges of either that are merged.

    RowSource   rows, ascending by sort key: `SortedRows` in memory, or `SectionRows`
    OpenSlice   the rows of a source that count: those of a slice
    RowRange    adjacent rows of a source, by position

`merging` merges ranges of several sources.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    cut,
    from_arrow,
    positions_between,
    take,
    to_arrays,
)
from holdfast.backends.keyed.segments.manifest import END
from holdfast.backends.keyed.segments.partial_segment import PartialSegment
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.table import (
    MIN_TIME_MS,
    Flags,
    Identities,
    Migration,
    SortKeys,
    TableRows,
    TableSpec,
    advance_to_time,
)
from holdfast.errors import CheckpointCorruptedError

Operations = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]

OPERATION_FIELD = pa.field("op", pa.uint8(), nullable=False)
TIME_FIELD = pa.field("ts", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows in memory, ascending by sort key, one per identity.

    Attributes:
        operations: The operation of each row; None if all are PUTs.
        times_ms: The time of each row's write; None for tables without TTL.
        directory: Rows in memory have none, and no filter.
    """

    sort_keys: SortKeys
    operations: Operations | None
    times_ms: Times | None
    ids: Sequence[Column]
    values: Sequence[Column]
    directory: None = None
    filter: None = None

    @classmethod
    def empty(cls, spec: TableSpec) -> "SortedRows":
        ids, values = (
            [from_arrow(pa.array([], field.type)) for field in fields]
            for fields in (spec.id_fields, spec.values)
        )
        times = None if spec.ttl_ms is None else np.empty(0, np.int64)
        return cls(np.empty(0, np.uint64), None, times, ids, values)

    @classmethod
    def from_table_rows(cls, rows: TableRows) -> "SortedRows":
        return cls(
            rows.identities.sort_keys,
            None,
            rows.times_ms,
            [from_arrow(column) for column in rows.identities.columns],
            [from_arrow(column) for column in rows.values],
        )

    @property
    def rows(self) -> int:
        return len(self.sort_keys)

    def advise(self, lookups: int) -> None:
        """Do nothing: the rows are in memory."""

    def values_at(self, rows: Rows) -> list[Column]:
        return [take(column, rows) for column in self.values]

    def values_between(self, first: int, end: int) -> list[Column]:
        return [cut(column, first, end) for column in self.values]

    @property
    def size(self) -> int:
        columns = (self.sort_keys, self.operations, self.times_ms, *self.ids, *self.values)
        return sum(column.nbytes for column in columns if column is not None)

    def cut(self, first: int, end: int) -> "SortedRows":
        """Return the rows from `first` up to `end`, without a copy."""
        return SortedRows(
            self.sort_keys[first:end],
            None if self.operations is None else self.operations[first:end],
            None if self.times_ms is None else self.times_ms[first:end],
            [cut(column, first, end) for column in self.ids],
            self.values_between(first, end),
        )

    def split(self, max_rows: int, max_bytes: float) -> "Iterator[SortedRows]":
        """Split the rows into parts of about equal numbers of rows; rows with equal sort keys stay together.

        A part has more rows or bytes than the maximum only if rows have equal sort keys or very different sizes.
        """
        parts = max(-(-self.rows // max_rows), math.ceil(self.size / max_bytes))
        if parts <= 1:
            yield from [self] if self.rows else []
            return
        at = np.arange(1, parts) * self.rows // parts
        inner = self.sort_keys.searchsorted(self.sort_keys.take(at))
        for first, end in itertools.pairwise([0, *np.unique(inner).tolist(), self.rows]):
            if first < end:
                yield self.cut(first, end)

    def columns(self, spec: TableSpec) -> list[tuple[pa.Field, pa.Array]]:
        """Return the columns of a section of the table, without the sort keys."""
        columns: list[tuple[pa.Field, pa.Array]] = []
        if self.operations is not None:
            columns.append((OPERATION_FIELD, pa.array(self.operations)))
        if self.times_ms is not None:
            columns.append((TIME_FIELD, pa.array(self.times_ms)))
        arrays = to_arrays((*self.ids, *self.values), spec.stored_fields)
        return [*columns, *zip(spec.stored_fields, arrays, strict=True)]

    def table_rows(self, spec: TableSpec) -> TableRows:
        identities = Identities(self.sort_keys, to_arrays(self.ids, spec.id_fields))
        times = None if spec.ttl_ms is None else self.times_ms
        return TableRows(identities, to_arrays(self.values, spec.values), times)


class SectionRows:
    """Rows of a section with the members of `SortedRows`, migrated from the specification that they were written with."""

    def __init__(
        self, section: Section, spec: TableSpec, migration: Migration | None = None
    ) -> None:
        self.section = section
        self._spec = spec
        self._migration = migration
        ids = len(spec.id_fields)
        self._ids, self._values = spec.stored_fields[:ids], spec.stored_fields[ids:]
        self.rows = section.rows

    @property
    def is_partial(self) -> bool:
        """True if blocks of the section may be missing on this host."""
        return isinstance(self.section.segment, PartialSegment)

    @cached_property
    def sort_keys(self) -> SortKeys:
        return self.section.sort_keys

    @property
    def operations(self) -> Operations | None:
        if not self.section.has(OPERATION_FIELD.name):
            return None
        return cast("Operations", self._column(OPERATION_FIELD))

    @property
    def times_ms(self) -> Times | None:
        if self._spec.ttl_ms is None:
            return None
        return cast("Times", self._column(TIME_FIELD))

    @property
    def directory(self) -> Directory | None:
        return self.section.directory

    @property
    def filter(self) -> Filter | None:
        return self.section.filter

    @property
    def ids(self) -> list[Column]:
        return [self._column(field) for field in self._ids]

    def advise(self, lookups: int) -> None:
        self.section.advise(lookups)

    def keys_between(self, first: int, end: int) -> SortKeys:
        """Return the sort keys with `first` <= sort key < `end`; read few others, if possible."""
        return self.section.keys_between(first, end)[1]

    def values_at(self, rows: Rows) -> list[Column]:
        return self._migrate([take(self._column(field), rows) for field in self._values])

    def values_between(self, first: int, end: int) -> list[Column]:
        return self._migrate([cut(self._column(field), first, end) for field in self._values])

    def load(self, first: int, sort_keys: SortKeys) -> SortedRows:
        """Read the rows from `first` on, which have these sort keys, into memory; read no others, if possible."""
        end = first + len(sort_keys)
        between = self.section.column_between
        return self.build_rows(sort_keys, lambda field: between(field.name, field.type, first, end))

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that the section has, without the sort keys."""
        operations = [OPERATION_FIELD] if self.section.has(OPERATION_FIELD.name) else []
        times = [] if self._spec.ttl_ms is None else [TIME_FIELD]
        return [*operations, *times, *self._ids, *self._values]

    def build_rows(self, sort_keys: SortKeys, read: Callable[[pa.Field], Column]) -> SortedRows:
        """Return rows in memory, with these sort keys and the columns that `read` returns."""
        columns = {field.name: read(field) for field in self.fields}
        return SortedRows(
            sort_keys,
            cast("Operations | None", columns.get(OPERATION_FIELD.name)),
            None if self._spec.ttl_ms is None else cast("Times", columns[TIME_FIELD.name]),
            [columns[field.name] for field in self._ids],
            self._migrate([columns[field.name] for field in self._values]),
        )

    def _migrate(self, values: list[Column]) -> list[Column]:
        if self._migration is None:
            return values
        arrays = to_arrays(values, self._spec.values)
        return [from_arrow(array) for array in self._migration(self._spec, arrays)]

    def _column(self, field: pa.Field) -> Column:
        return self.section.column(field.name, field.type)


RowSource: TypeAlias = SortedRows | SectionRows


def take_rows(source: RowSource, rows: Rows) -> SortedRows:
    """Copy the rows at these positions."""
    return SortedRows(
        source.sort_keys.take(rows),
        None if source.operations is None else source.operations.take(rows),
        None if source.times_ms is None else source.times_ms.take(rows),
        [take(column, rows) for column in source.ids],
        source.values_at(rows),
    )


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of a source from `first` up to `end`."""

    source: RowSource
    first: int
    end: int

    @classmethod
    def whole(cls, source: RowSource) -> "RowRange":
        return cls(source, 0, source.rows)

    @property
    def rows(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class OpenSlice:
    """The rows of a source that count: of a slice whose section is open, or of recent writes. See `Slice`."""

    source: RowSource
    first: int = 0
    end: int = END
    deleted_up_to_ms: int = MIN_TIME_MS

    @property
    def is_partial(self) -> bool:
        """True if blocks of the rows may be missing on this host."""
        return isinstance(self.source, SectionRows) and self.source.is_partial

    def sort_keys(self) -> SortKeys:
        """Return the sort keys of the rows; read no other columns, unless there are deleted timers."""
        if self.deleted_up_to_ms == MIN_TIME_MS and isinstance(self.source, SectionRows):
            return self.source.keys_between(self.first, self.end)
        rows = self.row_range()
        return rows.source.sort_keys[rows.first : rows.end]

    def row_range(self) -> RowRange:
        """Return the rows; a copy if there are deleted timers."""
        edges = np.array([self.first, self.end], np.uint64)
        first, end = self.source.sort_keys.searchsorted(edges).tolist()
        if self.deleted_up_to_ms == MIN_TIME_MS:
            return RowRange(self.source, first, end)
        rows = np.arange(first, end)
        return RowRange.whole(take_rows(self.source, rows[self.is_live(rows)]))

    def rows_between(
        self, first: SortKeys, end: SortKeys, endings: Flags | None = None
    ) -> RowRange:
        """Return the rows of ranges of sort keys, concatenated. Arguments as of `StateTable.rows_between`."""
        low = np.maximum(first, np.uint64(self.first))
        if self.deleted_up_to_ms != MIN_TIME_MS:
            low = advance_to_time(low, self.deleted_up_to_ms)
        edges = np.empty(2 * len(low), np.uint64)
        edges[::2], edges[1::2] = low, np.minimum(end, np.uint64(self.end))
        rows = self.source.sort_keys.searchsorted(edges)  # start and end of a range are neighbours
        starts, ends = rows[::2], rows[1::2]
        if len(starts) == 1 and self.deleted_up_to_ms == MIN_TIME_MS and endings is None:
            return RowRange(self.source, int(starts[0]), max(int(starts[0]), int(ends[0])))
        rows = positions_between(starts, ends)
        if endings is not None:
            has_ending = endings.take(self.source.sort_keys.take(rows).astype(np.uint16))
            rows = rows.compress(has_ending)
        if self.deleted_up_to_ms != MIN_TIME_MS:
            rows = rows[self.is_live(rows)]
        return RowRange.whole(take_rows(self.source, rows))

    def is_live(self, rows: Rows) -> Flags:
        """Return whether each of the timers at these rows is not deleted."""
        times = self.source.ids[-1]
        if not isinstance(times, np.ndarray):
            raise CheckpointCorruptedError("a timer has no time")
        is_live: Flags = times.take(rows) > self.deleted_up_to_ms
        return is_live
