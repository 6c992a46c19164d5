"""Sorted rows of a table: in memory, in a section, and the ranges of either that are merged.

    RowSource   rows, ascending by sort key: `SortedRows` in memory, or `SectionRows`
    OpenSlice   the rows of a source that count: those of a slice
    RowRange    adjacent rows of a source, by position

`merging` merges ranges of several sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import Column, Rows, cut, from_arrow, take, to_arrow
from holdfast.backends.keyed.segments.manifest import END
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.table import (
    Flags,
    Identities,
    Migration,
    SortKeys,
    TableRows,
    TableSpec,
)
from holdfast.backends.keyed.times import MIN_TIME_MS, advance_to_time
from holdfast.errors import CheckpointCorruptedError

Operations = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]

OPERATION_FIELD = pa.field("op", pa.uint8(), nullable=False)
TIME_FIELD = pa.field("ts", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows in memory, ascending by sort key, one per identity.

    Attributes:
        sort_keys: The sort key of each row.
        operations: The operation of each row; None if all are PUTs.
        times_ms: The time of each row's write; None for tables without TTL.
        ids: The id columns.
        values: The columns of values.
        directory: Rows in memory have none.
        filter: Likewise.
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
        """Return no rows of a table."""
        ids = [from_arrow(pa.array([], field.type)) for field in spec.id_fields]
        values = [from_arrow(pa.array([], field.type)) for field in spec.values]
        times = None if spec.ttl_ms is None else np.empty(0, np.int64)
        return cls(np.empty(0, np.uint64), None, times, ids, values)

    @classmethod
    def from_table_rows(cls, rows: TableRows) -> "SortedRows":
        """Convert rows that a table returned."""
        return cls(
            rows.identities.sort_keys,
            None,
            rows.times_ms,
            [from_arrow(column) for column in rows.identities.columns],
            [from_arrow(column) for column in rows.values],
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.sort_keys)

    def advise(self, lookups: int) -> None:
        """Do nothing: the rows are in memory."""

    def values_at(self, rows: Rows) -> list[Column]:
        """Return the columns of values at these rows."""
        return [take(column, rows) for column in self.values]

    def values_between(self, first: int, end: int) -> list[Column]:
        """Return the columns of values from row `first` up to `end`."""
        return [cut(column, first, end) for column in self.values]

    @property
    def size(self) -> int:
        """Estimated bytes."""
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

    def columns(self, spec: TableSpec) -> list[tuple[pa.Field, pa.Array]]:
        """Return the columns of a section of the table, without the sort keys."""
        columns: list[tuple[pa.Field, pa.Array]] = []
        if self.operations is not None:
            columns.append((OPERATION_FIELD, pa.array(self.operations)))
        if self.times_ms is not None:
            columns.append((TIME_FIELD, pa.array(self.times_ms)))
        for field, column in zip(spec.stored_fields, (*self.ids, *self.values), strict=True):
            columns.append((field, to_arrow(column, field.type)))
        return columns

    def table_rows(self, spec: TableSpec) -> TableRows:
        """Return the rows as a table returns them."""
        ids = zip(self.ids, spec.id_fields, strict=True)
        values = zip(self.values, spec.values, strict=True)
        return TableRows(
            Identities(
                self.sort_keys, tuple(to_arrow(column, field.type) for column, field in ids)
            ),
            tuple(to_arrow(column, field.type) for column, field in values),
            self.times_ms if spec.ttl_ms is not None else None,
        )


class SectionRows:
    """Rows of a section, with the members of `SortedRows`.

    Args:
        section: The section.
        spec: The table's specification when the section was written.
        migration: Migrates values to the table's present types; None if they have these already.
    """

    def __init__(
        self, section: Section, spec: TableSpec, migration: Migration | None = None
    ) -> None:
        self._section = section
        self._spec = spec
        self._migration = migration
        self._fields = spec.stored_fields
        self.rows = section.rows

    @cached_property
    def sort_keys(self) -> SortKeys:
        return self._section.sort_keys

    @property
    def operations(self) -> Operations | None:
        if not self._section.has(OPERATION_FIELD.name):
            return None
        return cast("Operations", self._column(OPERATION_FIELD))

    @property
    def times_ms(self) -> Times | None:
        if self._spec.ttl_ms is None:
            return None
        return cast("Times", self._column(TIME_FIELD))

    @property
    def directory(self) -> Directory | None:
        return self._section.directory

    @property
    def filter(self) -> Filter | None:
        return self._section.filter

    @property
    def ids(self) -> list[Column]:
        return [self._column(field) for field in self._fields[: len(self._spec.id_fields)]]

    def advise(self, lookups: int) -> None:
        self._section.advise(lookups)

    def values_at(self, rows: Rows) -> list[Column]:
        return self._migrate([take(column, rows) for column in self._values()])

    def values_between(self, first: int, end: int) -> list[Column]:
        return self._migrate([cut(column, first, end) for column in self._values()])

    def load(self, first: int, sort_keys: SortKeys) -> SortedRows:
        """Read the rows from `first` on, which have these sort keys, into memory; read no others, if possible."""
        end = first + len(sort_keys)

        def columns(fields: Sequence[pa.Field]) -> list[Column]:
            between = self._section.column_between
            return [between(field.name, field.type, first, end) for field in fields]

        has_operations = self._section.has(OPERATION_FIELD.name)
        operations = columns([OPERATION_FIELD])[0] if has_operations else None
        times = None if self._spec.ttl_ms is None else columns([TIME_FIELD])[0]
        ids = len(self._spec.id_fields)
        return SortedRows(
            sort_keys,
            cast("Operations | None", operations),
            cast("Times | None", times),
            columns(self._fields[:ids]),
            self._migrate(columns(self._fields[ids:])),
        )

    def _values(self) -> list[Column]:
        return [self._column(field) for field in self._fields[len(self._spec.id_fields) :]]

    def _migrate(self, values: list[Column]) -> list[Column]:
        if self._migration is None:
            return values
        fields = self._spec.values
        arrays = [
            to_arrow(column, field.type) for column, field in zip(values, fields, strict=True)
        ]
        return [from_arrow(array) for array in self._migration(self._spec, arrays)]

    def _column(self, field: pa.Field) -> Column:
        return self._section.column(field.name, field.type)


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
        """Return the range of all rows."""
        return cls(source, 0, source.rows)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class OpenSlice:
    """The rows of a source that count: of a slice whose section is open, or of recent writes.

    Attributes:
        source: The source.
        first: The first sort key.
        end: The end of the sort keys, exclusive.
        deleted_up_to_ms: Timers up to this time, inclusive, are deleted.
    """

    source: RowSource
    first: int = 0
    end: int = END
    deleted_up_to_ms: int = MIN_TIME_MS

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
        """Return the rows of ranges of sort keys, concatenated.

        Args:
            first: The first sort key of each range, ascending.
            end: The end of each range, exclusive.
            endings: For each number of 16 bits whether sort keys with this ending count; None if all do.
        """
        low = np.maximum(first, np.uint64(self.first))
        if self.deleted_up_to_ms != MIN_TIME_MS:
            low = advance_to_time(low, self.deleted_up_to_ms)
        edges = np.empty(2 * len(low), np.uint64)
        edges[::2], edges[1::2] = low, np.minimum(end, np.uint64(self.end))
        rows = self.source.sort_keys.searchsorted(edges)  # start and end of a range are neighbours
        starts, ends = rows[::2], rows[1::2]
        lengths = np.maximum(ends, starts) - starts
        if len(lengths) == 1 and self.deleted_up_to_ms == MIN_TIME_MS and endings is None:
            return RowRange(self.source, int(starts[0]), int(starts[0] + lengths[0]))
        rows = np.repeat(starts + lengths - np.cumsum(lengths), lengths)
        rows += np.arange(len(rows))
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
