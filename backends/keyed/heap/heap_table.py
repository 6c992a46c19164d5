"""The rows of a state in dictionaries."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import from_cells, to_cells
from holdfast.backends.keyed.folding import fold_into
from holdfast.backends.keyed.heap.sort_index import Identity, SortIndex
from holdfast.backends.keyed.table import (
    Flags,
    Identities,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
)
from holdfast.backends.keyed.timer_order import STEP, time_part


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
        spec: The table's name, columns and types.
        now_ms: The time of the batch.
    """

    def __init__(self, spec: TableSpec, now_ms: int) -> None:
        self._spec = spec
        self.now_ms = now_ms
        self._groups: dict[int, Rows] = {}
        self._shared: set[int] = set()
        self._indices: dict[int, SortIndex] = {}  # of the key groups that were asked for by range

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
            from_cells([None if row is None else row.values[index] for row in rows], field.type)
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
        is_appended = appended.tolist()
        cells = [to_cells(column) for column in values]
        sort_keys = identities.sort_keys.tolist()
        for number, (group, identity) in enumerate(self._places(identities)):
            if operations[number] == Operation.DELETE:
                self._remove(group, identity)
            else:
                row = tuple(column[number] for column in cells)
                time_ms = self.now_ms
                before = self._groups.get(group, {}).get(identity) if is_appended[number] else None
                if before is not None and self._lives(before):
                    time_ms = max(time_ms, before.time_ms)  # clocks go back
                self._put(group, identity, Row(sort_keys[number], row, time_ms))

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        low, high = (
            (first >> np.uint64(48)).tolist(),
            (end - np.uint64(1) >> np.uint64(48)).tolist(),
        )
        groups = {
            group for start, last in zip(low, high, strict=True) for group in range(start, last + 1)
        }
        chosen: list[tuple[Identity, Row]] = []
        for group in sorted(groups & self._groups.keys()):
            edges = np.array([group << 48, (group + 1) << 48], np.uint64)
            within = slice(end.searchsorted(edges[0], "right"), first.searchsorted(edges[1]))
            rows = self._groups[group]
            for identity in self._index(group).between(first[within], end[within], endings):
                row = rows[identity]
                if include_expired or self._lives(row):
                    chosen.append((identity, row))
        return rows_of(self._spec, chosen)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        yield from steps_of(self._spec, self.captured(), step_rows)

    def forget_up_to(self, time_ms: int) -> None:
        part = int(time_part(np.array([time_ms]))[0]) + STEP
        for group in list(self._groups):
            edges = np.array([group << 48, (group << 48) + part], np.uint64)
            for identity in self._index(group).between(edges[:1], edges[1:]):
                if identity[-1] <= time_ms:
                    self._remove(group, identity)

    def earliest_time(self) -> int | None:
        places = {}
        for group in self._groups:
            least = self._index(group).least()
            if least is not None:
                places[group] = least - (group << 48)
        if not places:
            return None
        step = min(places.values()) // STEP * STEP
        times: list[int] = []
        for group, place in places.items():
            if place < step + STEP:
                first = (group << 48) + step
                edges = np.array([first, first + STEP], np.uint64)
                times += (
                    identity[-1] for identity in self._index(group).between(edges[:1], edges[1:])
                )
        return min(times)

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
        return rows_of(self._spec, by_sort_key(self._groups.values()))

    def restore(self, chunks: Iterable[TableRows]) -> None:
        """Take over rows of a checkpoint, as they were."""
        for chunk in chunks:
            times = (
                [self.now_ms] * len(chunk) if chunk.times_ms is None else chunk.times_ms.tolist()
            )
            cells = [to_cells(column) for column in chunk.values]
            values = zip(*cells, strict=True) if cells else [()] * len(chunk)
            rows = zip(
                self._places(chunk.identities),
                chunk.identities.sort_keys.tolist(),
                values,
                times,
                strict=True,
            )
            for (group, identity), sort_key, row, time_ms in rows:
                self._put(group, identity, Row(sort_key, row, time_ms))

    def _places(self, identities: Identities) -> Iterator[tuple[int, Identity]]:
        """The key group and the cells of each identity."""
        groups = (identities.sort_keys >> np.uint64(48)).tolist()
        return zip(groups, zip(*map(to_cells, identities.columns), strict=True), strict=True)

    def _put(self, group: int, identity: Identity, row: Row) -> None:
        rows = self._own(group)
        index = self._indices.get(group)
        if index is not None and identity not in rows:
            index.add(identity, row.sort_key)
        rows[identity] = row

    def _remove(self, group: int, identity: Identity) -> None:
        if self._own(group).pop(identity, None) is not None and group in self._indices:
            self._indices[group].remove(identity)

    def _index(self, group: int) -> SortIndex:
        index = self._indices.get(group)
        if index is None:
            rows = self._groups[group]
            index = SortIndex((identity, row.sort_key) for identity, row in rows.items())
            self._indices[group] = index
        return index

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
        return fold_into(before, values, present & appended, self._spec)


def by_sort_key(groups: Iterable[Rows]) -> list[tuple[Identity, Row]]:
    """The rows of key groups by their sort keys."""
    rows = (item for group in groups for item in group.items())
    return sorted(rows, key=lambda item: item[1].sort_key)


def rows_of(spec: TableSpec, ordered: Sequence[tuple[Identity, Row]]) -> TableRows:
    """Rows that are given by their sort keys, in columns."""
    columns = [
        from_cells([identity[index] for identity, _ in ordered], field.type)
        for index, field in enumerate(spec.id_fields)
    ]
    values = [
        from_cells([row.values[index] for _, row in ordered], field.type)
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
    step: list[Rows] = []
    filled = (rows for rows in groups if rows)
    for rows in sorted(filled, key=lambda rows: next(iter(rows.values())).sort_key):
        step.append(rows)
        if sum(map(len, step)) >= step_rows:
            yield rows_of(spec, by_sort_key(step))
            step = []
    if step:
        yield rows_of(spec, by_sort_key(step))
