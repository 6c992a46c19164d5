"""The heap backend: all tables of a subtask in dictionaries, written in full with each snapshot."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import from_cells, to_cells
from holdfast.backends.keyed.eager_tables import EagerTables
from holdfast.backends.keyed.folding import fold_into
from holdfast.backends.keyed.segments import read_tables, write_tables
from holdfast.backends.keyed.table import (
    STEP,
    Flags,
    Identities,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
    time_part,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot, SnapshotResult, SnapshotStreams
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory

_STEP_ROWS = 1 << 16

Identity = tuple[Any, ...]


class Row(NamedTuple):
    """An immutable row: the cells of its value columns, and the time of the last write."""

    sort_key: int
    values: tuple[Any, ...]
    time_ms: int


Rows = dict[Identity, Row]


class HeapStateTables(EagerTables["HeapTable"]):
    """Tables in dictionaries, one dictionary per key group: simple, for states much smaller than memory.

    Each snapshot writes all rows. The running tables share their dictionaries with it, and copy a dictionary
    before they change it.

    Arguments and errors are those of `open_tables`; also `InvalidRequestError` if two handles have rows of one key group,
    and `UnsupportedFormatError` for RocksDB's files.

    Source:
        Flink, HeapKeyedStateBackend and CopyOnWriteStateTable.
    """

    def __init__(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> None:
        super().__init__(key_groups)
        self._restore(read_tables(handles, key_groups))

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        self._check_snapshot()
        return AsyncSnapshot.of(self, self.sync_prepare_resources(checkpoint_id), factory)

    def sync_prepare_resources(self, checkpoint_id: int) -> "_CapturedTables":  # noqa: ARG002  # the port's
        return _CapturedTables([(table.spec, table.capture()) for table in self._tables.values()])

    def async_snapshot(
        self, resources: "_CapturedTables", streams: SnapshotStreams
    ) -> SnapshotResult:
        if not resources.tables:
            return SnapshotResult()
        tables = ((spec, _in_steps(spec, rows, _STEP_ROWS)) for spec, rows in resources.tables)
        handle = write_tables(tables, self.key_groups, streams)
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: no snapshot refers to another one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Do nothing: no snapshot refers to another one."""

    def _create(self, spec: TableSpec) -> "HeapTable":
        return HeapTable(spec, lambda: self._now_ms)

    def _delete_rows(self, name: str) -> None:
        """Do nothing: the rows are in the table."""


@dataclass
class _CapturedTables:
    """The rows of all tables, shared with them."""

    tables: list[tuple[TableSpec, list[Rows]]]

    def release(self) -> None:
        self.tables = []


class HeapTable:
    """A table in dictionaries: one per key group, with rows by identity.

    A snapshot shares the dictionaries with the running table, which copies a dictionary before its first
    change afterwards.
    """

    def __init__(self, spec: TableSpec, now_ms: Callable[[], int]) -> None:
        self.spec = spec
        self._now_ms = now_ms
        self._groups: dict[int, Rows] = {}
        self._shared: set[int] = set()
        self._indices: dict[int, SortIndex] = {}  # of the key groups that were read by range

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        rows = [
            self._groups.get(group, {}).get(identity)
            for group, identity in self._places(identities)
        ]
        if not include_expired:
            rows = [row if row is not None and self._is_alive(row) else None for row in rows]
        present = np.fromiter((row is not None for row in rows), np.bool_, len(rows))
        columns = tuple(
            from_cells([None if row is None else row.values[index] for row in rows], field.type)
            for index, field in enumerate(self.spec.values)
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
            present, stored = self.get(identities)
            values = fold_into(stored, values, present & appended, self.spec)
        is_appended = appended.tolist()
        cells = [to_cells(column) for column in values]
        sort_keys = identities.sort_keys.tolist()
        now_ms = self._now_ms()
        for number, (group, identity) in enumerate(self._places(identities)):
            if operations[number] == Operation.DELETE:
                self._remove(group, identity)
            else:
                row = tuple(column[number] for column in cells)
                time_ms = now_ms
                before = self._groups.get(group, {}).get(identity) if is_appended[number] else None
                if before is not None and self._is_alive(before):
                    time_ms = max(time_ms, before.time_ms)  # clocks can be set back
                self._put(group, identity, Row(sort_keys[number], row, time_ms))

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        low = (first >> np.uint64(48)).tolist()
        high = (end - np.uint64(1) >> np.uint64(48)).tolist()
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
                if include_expired or self._is_alive(row):
                    chosen.append((identity, row))
        return _to_table_rows(self.spec, chosen)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        yield from _in_steps(self.spec, self.capture(), step_rows)

    def delete_up_to(self, time_ms: int) -> None:
        part = int(time_part(np.array([time_ms]))[0]) + STEP
        for group in list(self._groups):
            edges = np.array([group << 48, (group << 48) + part], np.uint64)
            for identity in self._index(group).between(edges[:1], edges[1:]):
                if identity[-1] <= time_ms:
                    self._remove(group, identity)

    def earliest_time(self) -> int | None:
        offsets = {}
        for group in self._groups:
            first = self._index(group).min_sort_key()
            if first is not None:
                offsets[group] = first - (group << 48)
        if not offsets:
            return None
        step = min(offsets.values()) // STEP * STEP
        times: list[int] = []
        for group, offset in offsets.items():
            if offset < step + STEP:
                first = (group << 48) + step
                edges = np.array([first, first + STEP], np.uint64)
                times += (
                    identity[-1] for identity in self._index(group).between(edges[:1], edges[1:])
                )
        return min(times)

    def capture(self) -> list[Rows]:
        """Return the present rows that have not expired, isolated from later changes."""
        self._shared = set(self._groups)
        if self.spec.ttl_ms is None:
            return list(self._groups.values())
        return [
            {identity: row for identity, row in rows.items() if self._is_alive(row)}
            for rows in self._groups.values()
        ]

    def all_rows(self) -> Sequence[TableRows]:
        return [_to_table_rows(self.spec, _sort_rows(self._groups.values()))]

    def restore(self, chunks: Iterable[TableRows]) -> None:
        for chunk in chunks:
            times = (
                [self._now_ms()] * len(chunk) if chunk.times_ms is None else chunk.times_ms.tolist()
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
        """Iterate over the key group and the cells of each identity."""
        groups = (identities.sort_keys >> np.uint64(48)).tolist()
        return zip(groups, zip(*map(to_cells, identities.columns), strict=True), strict=True)

    def _put(self, group: int, identity: Identity, row: Row) -> None:
        rows = self._writable_rows(group)
        index = self._indices.get(group)
        if index is not None and identity not in rows:
            index.add(identity, row.sort_key)
        rows[identity] = row

    def _remove(self, group: int, identity: Identity) -> None:
        is_removed = self._writable_rows(group).pop(identity, None) is not None
        if is_removed and group in self._indices:
            self._indices[group].remove(identity)

    def _index(self, group: int) -> "SortIndex":
        index = self._indices.get(group)
        if index is None:
            rows = self._groups[group]
            index = SortIndex((identity, row.sort_key) for identity, row in rows.items())
            self._indices[group] = index
        return index

    def _writable_rows(self, group: int) -> Rows:
        """Return the dictionary of a key group; copied first if a snapshot shares it."""
        rows = self._groups.setdefault(group, {})
        if group in self._shared:
            self._shared.remove(group)
            rows = self._groups[group] = dict(rows)
        return rows

    def _is_alive(self, row: Row) -> bool:
        ttl_ms = self.spec.ttl_ms
        return ttl_ms is None or row.time_ms + ttl_ms > self._now_ms()


def _sort_rows(groups: Iterable[Rows]) -> list[tuple[Identity, Row]]:
    rows = (item for group in groups for item in group.items())
    return sorted(rows, key=lambda item: item[1].sort_key)


def _to_table_rows(spec: TableSpec, ordered: Sequence[tuple[Identity, Row]]) -> TableRows:
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
        Identities(sort_keys, tuple(columns)), tuple(values), None if spec.ttl_ms is None else times
    )


def _in_steps(spec: TableSpec, groups: list[Rows], step_rows: int) -> Iterator[TableRows]:
    """Convert the rows of key groups to columns: whole key groups, at least `step_rows` rows at a time."""
    step: list[Rows] = []
    filled = (rows for rows in groups if rows)
    for rows in sorted(filled, key=lambda rows: next(iter(rows.values())).sort_key):
        step.append(rows)
        if sum(map(len, step)) >= step_rows:
            yield _to_table_rows(spec, _sort_rows(step))
            step = []
    if step:
        yield _to_table_rows(spec, _sort_rows(step))


class SortIndex:
    """Distinct identities by sort key, for range reads of a key group.

    Added identities are sorted in at the next access. Removed ones are skipped: at the front until the next
    access, elsewhere until they outnumber the others.
    """

    def __init__(self, identities: Iterable[tuple[Identity, int]]) -> None:
        self._identities: list[Identity] = []
        self._removed: set[Identity] = set()
        self._added: list[int] = []  # the sort keys of the last identities
        self._sort_keys = np.empty(0, np.uint64)  # ascending, of the others
        self._positions = np.empty(0, np.int64)  # of these among the identities
        for identity, sort_key in identities:
            self.add(identity, sort_key)

    def add(self, identity: Identity, sort_key: int) -> None:
        """Add an identity that the index doesn't have."""
        if identity in self._removed:
            self._removed.remove(identity)
        else:
            self._identities.append(identity)
            self._added.append(sort_key)

    def remove(self, identity: Identity) -> None:
        self._removed.add(identity)

    def between(
        self, first: SortKeys, end: SortKeys, endings: Flags | None = None
    ) -> list[Identity]:
        """Return the identities of ranges by sort key; arguments as of `StateTable.rows_between`."""
        self._refresh()
        edges = self._sort_keys.searchsorted([first, end])
        positions = [self._positions[low:high] for low, high in edges.T.tolist()]
        if endings is not None:
            for number, (low, high) in enumerate(edges.T.tolist()):
                is_wanted = endings.take(self._sort_keys[low:high].astype(np.uint16))
                positions[number] = positions[number].compress(is_wanted)
        chosen = [self._identities[position] for position in np.concatenate(positions).tolist()]
        if not self._removed:
            return chosen
        return [identity for identity in chosen if identity not in self._removed]

    def min_sort_key(self) -> int | None:
        """Return the smallest sort key; None if the index is empty."""
        self._refresh()
        return int(self._sort_keys[0]) if len(self._sort_keys) else None

    def _refresh(self) -> None:
        if self._added:
            added = np.array(self._added, np.uint64)
            order = np.argsort(added, kind="stable")
            at = self._sort_keys.searchsorted(added[order], "right")
            positions = order + (len(self._identities) - len(added))
            self._sort_keys = np.insert(self._sort_keys, at, added[order])
            self._positions = np.insert(self._positions, at, positions)
            self._added = []
        if self._removed:
            self._drop_removed()

    def _drop_removed(self) -> None:
        front = 0
        for position in self._positions:
            identity = self._identities[position]
            if identity not in self._removed:
                break
            self._removed.remove(identity)
            front += 1
        self._sort_keys, self._positions = self._sort_keys[front:], self._positions[front:]
        if 2 * (len(self._positions) - len(self._removed)) >= len(self._identities):
            return
        identities = [self._identities[position] for position in self._positions]
        is_kept = [identity not in self._removed for identity in identities]
        self._identities = list(compress(identities, is_kept))
        self._sort_keys = self._sort_keys[is_kept]
        self._positions = np.arange(len(self._identities))
        self._removed = set()
