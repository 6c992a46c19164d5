"""Sorted rows of a table: in memory, or in a section of a segment."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import Column, Rows, cut, from_arrow, take, to_arrow
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.table import Migration, SortKeys, TableSpec

Operations = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]

OPERATION_FIELD = pa.field("op", pa.uint8(), nullable=False)
TIME_FIELD = pa.field("ts", pa.int64(), nullable=False)


class RowSource(Protocol):
    """Rows, ascending by sort key, one an identity."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def sort_keys(self) -> SortKeys:
        """The sort key of each row."""
        ...

    @property
    def operations(self) -> Operations | None:
        """The operation of each row; None if all are PUTs."""
        ...

    @property
    def times_ms(self) -> Times | None:
        """When each row was written; None of tables without TTL."""
        ...

    @property
    def directory(self) -> Directory | None:
        """Where rows begin, by prefix."""
        ...

    @property
    def filter(self) -> Filter | None:
        """Which prefixes occur."""
        ...

    @property
    def ids(self) -> Sequence[Column]:
        """The id columns."""
        ...

    def expect(self, needles: int) -> None:
        """So many rows will be looked up."""
        ...

    def values_at(self, rows: Rows) -> list[Column]:
        """The columns of values at these rows."""
        ...

    def values_between(self, first: int, end: int) -> list[Column]:
        """The columns of values from row `first` up to `end`."""
        ...


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows in memory."""

    sort_keys: SortKeys
    operations: Operations | None
    times_ms: Times | None
    ids: Sequence[Column]
    values: Sequence[Column]
    directory: None = None
    filter: None = None

    @property
    def rows(self) -> int:
        return len(self.sort_keys)

    def expect(self, needles: int) -> None:
        """Nothing: they are in memory."""

    def values_at(self, rows: Rows) -> list[Column]:
        return [take(column, rows) for column in self.values]

    def values_between(self, first: int, end: int) -> list[Column]:
        return [cut(column, first, end) for column in self.values]

    @property
    def size(self) -> int:
        """About how many bytes."""
        columns = (self.sort_keys, self.operations, self.times_ms, *self.ids, *self.values)
        return sum(column.nbytes for column in columns if column is not None)

    def columns(self, spec: TableSpec) -> list[tuple[pa.Field, pa.Array]]:
        """The columns but the sort keys, as a section of the table has them."""
        columns: list[tuple[pa.Field, pa.Array]] = []
        if self.operations is not None:
            columns.append((OPERATION_FIELD, pa.array(self.operations)))
        if self.times_ms is not None:
            columns.append((TIME_FIELD, pa.array(self.times_ms)))
        for field, column in zip(spec.stored_fields, (*self.ids, *self.values), strict=True):
            columns.append((field, to_arrow(column, field.type)))
        return columns


class SectionRows:
    """Rows of a section.

    Args:
        section: The section.
        spec: The table's columns and types when the section was written.
        migration: Makes values what the table's are now; None if they are that already.
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

    def expect(self, needles: int) -> None:
        self._section.expect(needles)

    def values_at(self, rows: Rows) -> list[Column]:
        return self._migrated([take(column, rows) for column in self._values()])

    def values_between(self, first: int, end: int) -> list[Column]:
        return self._migrated([cut(column, first, end) for column in self._values()])

    def loaded(self, first: int, sort_keys: SortKeys) -> SortedRows:
        """The rows from `first` on that have these sort keys; reads no other rows, if that is possible."""
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
            self._migrated(columns(self._fields[ids:])),
        )

    def _values(self) -> list[Column]:
        return [self._column(field) for field in self._fields[len(self._spec.id_fields) :]]

    def _migrated(self, values: list[Column]) -> list[Column]:
        if self._migration is None:
            return values
        fields = self._spec.values
        arrays = [
            to_arrow(column, field.type) for column, field in zip(values, fields, strict=True)
        ]
        return [from_arrow(array) for array in self._migration(self._spec, arrays)]

    def _column(self, field: pa.Field) -> Column:
        return self._section.column(field.name, field.type)


def rows_at(source: RowSource, rows: Rows) -> SortedRows:
    """The rows at these positions, in memory."""
    return SortedRows(
        source.sort_keys.take(rows),
        None if source.operations is None else source.operations.take(rows),
        None if source.times_ms is None else source.times_ms.take(rows),
        [take(column, rows) for column in source.ids],
        source.values_at(rows),
    )
