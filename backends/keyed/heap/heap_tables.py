"""The backend in memory: all tables of a subtask, written whole with each snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.backends.keyed.heap.heap_table import HeapTable, Rows, steps_of
from holdfast.backends.keyed.segments import (
    RestoredTable,
    read_tables,
    resolve_migration,
    write_tables,
)
from holdfast.backends.keyed.snapshot_part import KeyedStatePart
from holdfast.backends.keyed.table import Migration, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import (
    AsyncSnapshot,
    SnapshotPart,
    SnapshotResult,
    SnapshotStreams,
)
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory

_STEP_ROWS = 1 << 16


class HeapStateTables:
    """Tables in dictionaries, one for each key group: simple, and for states that fit into memory many times.

    Each snapshot has all rows. The running tables share their dictionaries with it, and copy one before they
    change it.

    Args:
        key_groups: The key groups that the subtask has.
        handles: The stored state, which such tables or `ColumnarStateTables` wrote; no two handles have rows of
            one key group.

    Raises:
        InvalidRequestError: Two handles have rows of one key group.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
        UnsupportedFormatError: A newer Holdfast wrote it, or RocksDB has the rows.

    Source:
        Flink, HeapKeyedStateBackend and CopyOnWriteStateTable.
    """

    def __init__(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> None:
        self._key_groups = key_groups
        self._tables: dict[str, HeapTable] = {}
        self._mixed: dict[str, RestoredTable] = {}
        self._asked: set[str] = set()
        self._now_ms = 0
        self._is_closed = False
        for restored in read_tables(handles, key_groups):
            table = HeapTable(restored.spec, 0)
            try:
                table.restore(restored.rows())
            except StateMigrationError:
                # It was stored in several ways, which a migration must bring together.
                self._mixed[restored.spec.name] = restored
            else:
                self._tables[restored.spec.name] = table

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def table(
        self,
        spec: TableSpec,
        migration: Migration | None = None,
        *,
        rewrite: bool = False,  # noqa: ARG002  # all values are written anew at once
    ) -> HeapTable:
        mixed = self._mixed.get(spec.name)
        known = self._tables.get(spec.name)
        if known is not None and spec.name in self._asked:
            if not known.spec.equals(spec):
                message = f"state {spec.name!r} is {known.spec} already, and can't be {spec} too"
                raise InvalidRequestError(message)
            return known
        table = HeapTable(spec, self._now_ms)
        if mixed is not None:
            table.restore(mixed.rows(spec, migration))
            del self._mixed[spec.name]
        elif known is not None:
            change = resolve_migration(known.spec, spec, migration)
            table.restore([_changed(known.everything(), known.spec, change)])
        self._tables[spec.name] = table
        self._asked.add(spec.name)
        return table

    def specs(self) -> Mapping[str, TableSpec]:
        mixed = {name: table.spec for name, table in self._mixed.items()}
        return mixed | {name: table.spec for name, table in self._tables.items()}

    def drop(self, name: str) -> None:
        self._tables.pop(name, None)
        self._mixed.pop(name, None)
        self._asked.discard(name)

    def advance_time(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for table in self._tables.values():
            table.now_ms = now_ms

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> SnapshotPart:
        if self._is_closed:
            raise InvalidRequestError("the backend is closed")
        if self._mixed:
            message = (
                f"states {sorted(self._mixed)} were stored with several types by turns, and are not asked for; "
                "ask for them, so that what they hold is brought together"
            )
            raise StateMigrationError(message)
        strategy = _Strategy(self._tables, self._key_groups)
        resources = strategy.sync_prepare_resources(checkpoint_id)
        return KeyedStatePart(AsyncSnapshot(strategy, resources, SnapshotStreams(factory)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Nothing: no snapshot refers to another one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nothing: no snapshot refers to another one."""

    def close(self) -> None:
        self._is_closed = True
        self._tables.clear()
        self._mixed.clear()


@dataclass
class _Captured:
    """The rows of all tables, shared with them."""

    tables: list[tuple[TableSpec, list[Rows]]]

    def release(self) -> None:
        self.tables = []


@dataclass(frozen=True)
class _Strategy:
    tables: Mapping[str, HeapTable]
    key_groups: KeyGroupRange

    def sync_prepare_resources(self, checkpoint_id: int) -> _Captured:  # noqa: ARG002  # the port's
        return _Captured([(table.spec, table.captured()) for table in self.tables.values()])

    def async_snapshot(
        self, resources: _Captured, streams: SnapshotStreams
    ) -> SnapshotResult[SegmentsStateHandle]:
        if not resources.tables:
            return SnapshotResult()
        tables = ((spec, steps_of(spec, rows, _STEP_ROWS)) for spec, rows in resources.tables)
        return SnapshotResult((write_tables(tables, self.key_groups, streams),))


def _changed(rows: TableRows, before: TableSpec, change: Migration | None) -> TableRows:
    if change is None:
        return rows
    return TableRows(rows.identities, change(before, rows.values), rows.times_ms)
