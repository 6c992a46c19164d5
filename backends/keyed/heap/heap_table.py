"""The rows of a state in dictionaries."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import FoldOverflowError, folded, from_arrow, to_arrow
from holdfast.backends.keyed.heap.cells import cells_of, column_of
from holdfast.backends.keyed.table import (
    Flags,
    Identities,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
)
from holdfast.errors import InvalidRequestError

Identity = tuple[Any, ...]


class Row(NamedTuple):
    """A row; nothing in it ever changes.

    Attributes:
        sort_key: The sort key.
        values: The cells of the columns of values.
        time_ms: When it was written.
    """

    sort_key: int
    values: tuple[Any, ...]
    time_ms: int


Rows = dict[Identity, Row]


class HeapTable:
    """A table in dictionaries: one for each key group, of rows by identity.

    A snapshot shares the dictionaries with the running table, which copies a dictionary before it changes it
    for the first time afterwards.

    Args:
        spec: What the table holds.
        now_ms: The time of the batch.
    """

    def __init__(self, spec: TableSpec, now_ms: int) -> None:
        self._spec = spec
        self.now_ms = now_ms
        self._groups: dict[int, Rows] = {}
        self._shared: set[int] = set()

    @property
    def spec(self) -> TableSpec:
        return self._spec

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        rows = [
            self._groups.get(group, {}).get(identity)
            for group, identity in self._places(identities)
        ]
        if not include_expired:
            rows = [row if row is not None and self._lives(row) else None for row in rows]
        present = np.fromiter((row is not None for row in rows), np.bool_, len(rows))
        columns = tuple(
            column_of([None if row is None else row.values[index] for row in rows], field.type)
            for index, field in enumerate(self._spec.values)
        )
        return present, columns

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        operations = np.broadcast_to(np.asarray(operation, np.uint8), len(identities))
        appended = operations == Operation.APPEND
        if appended.any():
            values = self._folded(identities, values, appended)
        cells = [cells_of(column) for column in values]
        sort_keys = identities.sort_keys.tolist()
        for number, (group, identity) in enumerate(self._places(identities)):
            rows = self._own(group)
            if operations[number] == Operation.DELETE:
                rows.pop(identity, None)
            else:
                row = tuple(column[number] for column in cells)
                rows[identity] = Row(sort_keys[number], row, self.now_ms)

    def rows_between(self, first: SortKeys, end: SortKeys) -> TableRows:
        low, high = (
            (first >> np.uint64(48)).tolist(),
            (end - np.uint64(1) >> np.uint64(48)).tolist(),
        )
        groups = {
            group for start, last in zip(low, high, strict=True) for group in range(start, last + 1)
        }
        rows = [
            (identity, row)
            for group in groups
            for identity, row in self._groups.get(group, {}).items()
            if self._lives(row)
        ]
        sort_keys = np.array([row.sort_key for _, row in rows], np.uint64)
        ranges = first.searchsorted(sort_keys, "right").astype(np.int64) - 1
        inside = ranges >= 0
        inside[inside] &= sort_keys[inside] < end[ranges[inside]]
        return rows_of(self._spec, [rows[index] for index in np.flatnonzero(inside).tolist()])

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        yield from steps_of(self._spec, self.captured(), step_rows)

    def forget_up_to(self, time_ms: int) -> None:
        for group in list(self._groups):
            rows = self._own(group)
            for identity in [identity for identity in rows if identity[-1] <= time_ms]:
                del rows[identity]

    def captured(self) -> list[Rows]:
        """The rows that are there now, without those whose time is over; what changes later doesn't show."""
        self._shared = set(self._groups)
        if self._spec.ttl_ms is None:
            return list(self._groups.values())
        return [
            {identity: row for identity, row in rows.items() if self._lives(row)}
            for rows in self._groups.values()
        ]

    def everything(self) -> TableRows:
        """All rows, also those whose time is over."""
        return rows_of(self._spec, (row for rows in self._groups.values() for row in rows.items()))

    def restore(self, chunks: Iterable[TableRows]) -> None:
        """Take over rows of a checkpoint, as they were."""
        for chunk in chunks:
            times = (
                [self.now_ms] * len(chunk) if chunk.times_ms is None else chunk.times_ms.tolist()
            )
            cells = [cells_of(column) for column in chunk.values]
            values = zip(*cells, strict=True) if cells else [()] * len(chunk)
            rows = zip(
                self._places(chunk.identities),
                chunk.identities.sort_keys.tolist(),
                values,
                times,
                strict=True,
            )
            for (group, identity), sort_key, row, time_ms in rows:
                self._own(group)[identity] = Row(sort_key, row, time_ms)

    def _places(self, identities: Identities) -> Iterator[tuple[int, Identity]]:
        """The key group and the cells of each identity."""
        groups = (identities.sort_keys >> np.uint64(48)).tolist()
        return zip(groups, zip(*map(cells_of, identities.columns), strict=True), strict=True)

    def _own(self, group: int) -> Rows:
        """The dictionary of a key group, to be changed."""
        rows = self._groups.setdefault(group, {})
        if group in self._shared:
            self._shared.remove(group)
            rows = self._groups[group] = dict(rows)
        return rows

    def _lives(self, row: Row) -> bool:
        ttl_ms = self._spec.ttl_ms
        return ttl_ms is None or row.time_ms + ttl_ms > self.now_ms

    def _folded(
        self, identities: Identities, values: Sequence[pa.Array], appended: Flags
    ) -> list[pa.Array]:
        """The values, where they are appended behind what is there."""
        present, before = self.get(identities)
        is_behind = present & appended
        number = len(present)
        pairs = np.arange(2 * number)
        pairs = (
            pairs // 2 + pairs % 2 * number
        )  # of two columns: before, appended, before, appended …
        kept = np.repeat(is_behind, 2)
        kept[1::2] = True
        rows = pa.array(pairs[kept])
        bounds = np.concatenate([[0], np.cumsum(is_behind.astype(np.int64) + 1)])
        columns = []
        try:
            for field, old, new, fold in zip(
                self._spec.values, before, values, self._spec.folds, strict=True
            ):
                operands = pa.concat_arrays([old, new]).take(rows)
                value = folded(from_arrow(operands), field.type, bounds, fold)
                columns.append(to_arrow(value, field.type))
        except FoldOverflowError as error:
            message = f"state {self._spec.name!r}: {error}; give the state a wider type, or floats"
            raise InvalidRequestError(message) from error
        return columns


def rows_of(spec: TableSpec, rows: Iterable[tuple[Identity, Row]]) -> TableRows:
    """Rows by their sort keys, in columns."""
    ordered = sorted(rows, key=lambda item: item[1].sort_key)
    columns = [
        column_of([identity[index] for identity, _ in ordered], field.type)
        for index, field in enumerate(spec.id_fields)
    ]
    values = [
        column_of([row.values[index] for _, row in ordered], field.type)
        for index, field in enumerate(spec.values)
    ]
    sort_keys = np.array([row.sort_key for _, row in ordered], np.uint64)
    times = np.array([row.time_ms for _, row in ordered], np.int64)
    return TableRows(
        Identities(sort_keys, tuple(columns)),
        tuple(values),
        None if spec.ttl_ms is None else times,
    )


def steps_of(spec: TableSpec, groups: list[Rows], step_rows: int) -> Iterator[TableRows]:
    """The rows of key groups in columns: whole key groups, until there are about so many rows."""
    step: list[tuple[Identity, Row]] = []
    filled = (rows for rows in groups if rows)
    for rows in sorted(filled, key=lambda rows: next(iter(rows.values())).sort_key):
        step += rows.items()
        if len(step) >= step_rows:
            yield rows_of(spec, step)
            step = []
    if step:
        yield rows_of(spec, step)
