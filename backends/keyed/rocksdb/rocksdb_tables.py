"""All tables of a subtask in a RocksDB database."""

import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence

from holdfast.backends.keyed.rocksdb.budget import RocksDBSettings
from holdfast.backends.keyed.rocksdb.database import Database, HeldDirectory
from holdfast.backends.keyed.rocksdb.rocksdb_snapshot import CapturedDatabase, FullSnapshotStrategy
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable
from holdfast.backends.keyed.segments import RestoredTable, StoredSpec, migration_of, read_tables
from holdfast.backends.keyed.snapshot_part import KeyedStatePart
from holdfast.backends.keyed.table import Migration, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot, SnapshotPart, SnapshotStreams
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory


class RocksDBStateTables:
    """Tables in a database, a column family each. Used by one thread.

    What is written goes to memory, then to files that are merged in the background, so states may be larger than
    memory. A snapshot flushes, and captures the files as hard links.

    Args:
        key_groups: The key groups that the subtask has.
        handles: What it is restored from, whichever backend wrote it: no two have rows of one key group.
        directory: Where the database is while it is open; None takes a temporary directory.
        settings: How the database uses memory and files.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: What was read is not what was written.
        UnsupportedFormatError: A newer Holdfast wrote it.
        StorageFullError: The disk is full.

    Source:
        Flink, RocksDBKeyedStateBackend.
    """

    def __init__(
        self,
        key_groups: KeyGroupRange,
        handles: Sequence[SegmentsStateHandle] = (),
        *,
        directory: str | None = None,
        settings: RocksDBSettings | None = None,
    ) -> None:
        self._key_groups = key_groups
        self._settings = settings or RocksDBSettings()
        self._tables: dict[str, RocksDBTable] = {}
        self._mixed: dict[str, RestoredTable] = {}
        self._asked: set[str] = set()
        self._now_ms = 0
        self._is_closed = False
        self._holder = HeldDirectory(directory or os.path.join(tempfile.gettempdir(), "holdfast"))
        path = os.path.join(self._holder.path, "db")
        self._database = Database(path, self._settings, holder=self._holder)
        try:
            for restored in read_tables(handles, key_groups):
                self._restore(restored)
        except BaseException:
            self.close()
            raise

    def table(self, spec: TableSpec, migration: Migration | None = None) -> RocksDBTable:
        self._check_open()
        mixed = self._mixed.get(spec.name)
        known = self._tables.get(spec.name)
        if known is not None and spec.name in self._asked:
            if StoredSpec.of(known.spec) != StoredSpec.of(spec):
                message = f"state {spec.name!r} is {known.spec} already, and can't be {spec} too"
                raise InvalidRequestError(message)
            return known
        if mixed is not None:
            table = self._new(spec)
            table.restore(mixed.rows(spec, migration))
            del self._mixed[spec.name]
        elif known is not None:
            table = self._migrated(known, spec, migration)
        else:
            table = self._new(spec)
        self._tables[spec.name] = table
        self._asked.add(spec.name)
        return table

    def specs(self) -> Mapping[str, TableSpec]:
        mixed = {name: table.spec for name, table in self._mixed.items()}
        return mixed | {name: table.spec for name, table in self._tables.items()}

    def drop(self, name: str) -> None:
        if self._tables.pop(name, None) is not None:
            self._database.drop(name)
        self._mixed.pop(name, None)
        self._asked.discard(name)

    def advance_time(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> SnapshotPart:
        self._check_open()
        if self._mixed:
            message = (
                f"states {sorted(self._mixed)} were stored with several types by turns, and are not asked for; "
                "ask for them, so that what they hold is brought together"
            )
            raise StateMigrationError(message)
        strategy = FullSnapshotStrategy(self._key_groups, self._capture)
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
        self._database.close()

    def _capture(self) -> CapturedDatabase:
        specs = {name: table.spec for name, table in self._tables.items()}
        path = ""
        if specs:
            path = os.path.join(self._holder.path, f"snapshot-{uuid.uuid4().hex}")
            self._database.capture(path)
        return CapturedDatabase(path, self._settings, specs, self._key_groups, self._now_ms)

    def _restore(self, restored: RestoredTable) -> None:
        table = self._new(restored.spec)
        try:
            table.restore(restored.rows())
        except StateMigrationError:
            # It was stored in several ways, which a migration must bring together.
            self._database.drop(restored.spec.name)
            self._mixed[restored.spec.name] = restored
        else:
            self._tables[restored.spec.name] = table

    def _new(self, spec: TableSpec) -> RocksDBTable:
        family = self._database.family(spec.name)
        return RocksDBTable(spec, family, self._key_groups, lambda: self._now_ms)

    def _migrated(
        self, known: RocksDBTable, spec: TableSpec, migration: Migration | None
    ) -> RocksDBTable:
        """The table as it is to be now; its rows are written anew if they look otherwise."""
        change = migration_of(known.spec, spec, migration)
        if change is None and (known.spec.ttl_ms is None) == (spec.ttl_ms is None):
            return self._new(spec)
        old = known.everything()  # of the column family as it is now, which it reads to the end
        table = self._new(spec)
        table.restore(_changed(rows, known.spec, change) for rows in old)
        return table

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequestError("the backend is closed")


def _changed(rows: TableRows, before: TableSpec, change: Migration | None) -> TableRows:
    if change is None:
        return rows
    return TableRows(rows.identities, change(before, rows.values), rows.times_ms)
