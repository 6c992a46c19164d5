"""All tables of a subtask in a RocksDB database."""

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from holdfast.backends.keyed.compatibility import check_no_mixed_tables, check_same_spec
from holdfast.backends.keyed.rocksdb.canonical_form import canonical_handles
from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.locked_directory import LockedDirectory
from holdfast.backends.keyed.rocksdb.rocksdb_snapshot import (
    CapturedDatabase,
    Files,
    RocksDBSnapshotStrategy,
)
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable, first_key
from holdfast.backends.keyed.rocksdb.stored_database import StoredDatabase, stored_database
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.segments import (
    RestoredTable,
    StoredSpec,
    check_disjoint,
    read_tables,
    resolve_migration,
)
from holdfast.backends.keyed.table import Migration, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory


class RocksDBStateTables:
    """Tables in a database, each in its own column family. Used by one thread.

    Writes go to memory, then to files that are merged in the background, so states can be larger than memory. A
    snapshot flushes, and captures the files as hard links.

    Args:
        key_groups: The key groups of the subtask.
        handles: The stored state, written by any backend; the handles' key groups must not overlap.
        directory: The directory of the open database and of sorted files that tasks of this host share; None uses a
            temporary directory, and shares no files.
        settings: The settings of the database.
        may_refer: Whether checkpoints may refer to the restored files. Not if these belong to a savepoint, or to
            another job.
        on_metrics: Called with RocksDB's metrics by Flink's names at each snapshot, if the settings enable them.

    Raises:
        CheckpointNotFoundError: A file is missing.
        CheckpointCorruptedError: A file is corrupted.
        UnsupportedFormatError: The state was written by a newer Holdfast.
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
        may_refer: bool = True,
        on_metrics: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self._on_metrics = on_metrics
        self._key_groups = key_groups
        self._settings = settings or RocksDBSettings()
        self._copies = directory
        self._tables: dict[str, RocksDBTable] = {}
        self._mixed: dict[str, RestoredTable] = {}
        self._requested: set[str] = set()
        self._now_ms = 0
        self._is_closed = False
        self._lock = threading.Lock()  # snapshots are written in other threads
        self._written: dict[int, Files] = {}  # by checkpoint
        self._pending: set[int] = set()
        self._confirmed: Files = {}
        self._confirmed_id = 0
        self._cursors: dict[str, bytes] = {}
        self._directory = LockedDirectory(directory)
        try:
            self._database = self._open(handles, may_refer=may_refer)
        except BaseException:
            self._directory.release()
            raise

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def table(
        self,
        spec: TableSpec,
        migration: Migration | None = None,
        *,
        rewrite: bool = False,  # noqa: ARG002  # all values are rewritten at once
    ) -> RocksDBTable:
        self._check_open()
        mixed = self._mixed.get(spec.name)
        known = self._tables.get(spec.name)
        if known is not None and spec.name in self._requested:
            check_same_spec(known.spec, spec)
            return known
        if mixed is not None:
            table = self._create(spec)
            table.restore(mixed.rows(spec, migration))
            del self._mixed[spec.name]
        elif known is not None:
            table = self._migrate(known, spec, migration)
        else:
            table = self._create(spec)
        self._tables[spec.name] = table
        self._requested.add(spec.name)
        return table

    def specs(self) -> Mapping[str, TableSpec]:
        return {
            name: table.spec
            for tables in (self._mixed, self._tables)
            for name, table in tables.items()
        }

    def drop(self, name: str) -> None:
        if self._tables.pop(name, None) is not None:
            self._database.drop(name)
        self._mixed.pop(name, None)
        self._requested.discard(name)

    def advance_time(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        self._check_open()
        check_no_mixed_tables(self._mixed)

        def on_written(files: Files) -> None:
            with self._lock:
                if checkpoint_id in self._pending:
                    self._written[checkpoint_id] = files

        strategy = RocksDBSnapshotStrategy(
            self._key_groups,
            self._capture,
            on_written,
            self._copies,
            self._settings.transfer_threads,
        )
        resources = strategy.sync_prepare_resources(checkpoint_id)
        if self._settings.has_metrics and self._on_metrics is not None:
            self._on_metrics(self._database.metrics())
        self._pending.add(checkpoint_id)
        return AsyncSnapshot.of(strategy, resources, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._confirmed_id:
            return
        self._confirmed_id = checkpoint_id
        with self._lock:
            self._confirmed = self._written.get(checkpoint_id, self._confirmed)
            self._pending = {number for number in self._pending if number > checkpoint_id}
            self._written = {
                number: files for number, files in self._written.items() if number > checkpoint_id
            }

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        with self._lock:
            self._pending.discard(checkpoint_id)
            self._written.pop(checkpoint_id, None)

    def close(self) -> None:
        self._is_closed = True
        self._tables.clear()
        self._mixed.clear()
        self._database.close()

    def _capture(self) -> CapturedDatabase:
        for name, table in self._tables.items():
            if table.spec.ttl_ms is not None:
                self._cursors[name] = table.delete_expired(self._cursors.get(name, b""))
        path = ""
        if self._tables:
            path = os.path.join(self._directory.path, f"snapshot-{uuid.uuid4().hex}")
            self._database.capture(path)
        cursors = {name: self._cursors[name] for name in self._cursors if name in self._tables}
        specs = tuple(table.spec for table in self._tables.values())
        return CapturedDatabase(path, specs, self._confirmed, cursors)

    def _open(self, handles: Sequence[SegmentsStateHandle], *, may_refer: bool) -> Database:
        """Open a database with the rows of all handles."""
        path = os.path.join(self._directory.path, "db")
        stored = [stored_database(handle) for handle in handles]
        databases = [database for database in stored if database is not None]
        if not databases or len(databases) < len(stored) or not _has_same_specs(databases):
            self._database = Database(path, self._settings, directory=self._directory)
            for restored in read_tables(canonical_handles(handles, self._copies), self._key_groups):
                self._restore(restored)
            return self._database
        check_disjoint(
            (KeyGroupRange(*each.handle.key_groups), [spec.name for spec in each.manifest.specs])
            for each in databases
        )
        databases.sort(key=lambda each: -len(KeyGroupRange(*each.handle.key_groups)))
        base, *others = databases
        # Without references the files are uploaded unread, so they must come from storage: a copy may be corrupted.
        copies = self._copies if may_refer else None
        base.fetch(path, copies, max_threads=self._settings.transfer_threads)
        self._database = Database(
            path, self._settings, directory=self._directory, stored=base.streams_by_file
        )
        self._clip(base)
        for stored_spec in base.manifest.specs:
            self._tables[stored_spec.name] = self._create(stored_spec.spec())
        for number, other in enumerate(others):
            self._import(other, os.path.join(self._directory.path, f"other-{number}"))
        self._cursors = dict(base.manifest.cursors)
        if may_refer:
            self._confirmed = base.streams
        return self._database

    def _clip(self, base: StoredDatabase) -> None:
        """Delete the rows of key groups that now belong to other subtasks, without reading them."""
        first, last = base.manifest.key_groups
        own_first, own_last = base.handle.key_groups
        for name in self._database.names:
            family = self._database.family(name)
            if first < own_first:
                family.delete_range(first_key(first), first_key(own_first))
            if own_last < last:
                family.delete_range(first_key(own_last + 1), first_key(last + 1))

    def _import(self, other: StoredDatabase, path: str) -> None:
        """Add the rows of another database unchanged, in separate files that are not merged at once.

        Its files can't be ingested directly: rocksdict lacks the option `allow_db_generated_files`, without which RocksDB
        accepts only files of an `SstFileWriter`.
        """
        other.fetch(path, self._copies, max_threads=self._settings.transfer_threads)
        first, last = other.handle.key_groups
        edges = [(first_key(first), first_key(last + 1))]
        database = Database(path, self._settings, is_read_only=True, stored=other.streams_by_file)
        with closing(database):
            for stored in other.manifest.specs:
                if stored.name not in self._tables:
                    self._tables[stored.name] = self._create(stored.spec())
                rows = database.family(stored.name).ranges(edges)
                self._database.family(stored.name).ingest(rows, path)
        shutil.rmtree(path, ignore_errors=True)

    def _restore(self, restored: RestoredTable) -> None:
        table = self._create(restored.spec)
        try:
            table.restore(restored.rows())
        except StateMigrationError:
            # It was stored with several types, which only a migration can unify.
            self._database.drop(restored.spec.name)
            self._mixed[restored.spec.name] = restored
        else:
            self._tables[restored.spec.name] = table

    def _create(self, spec: TableSpec) -> RocksDBTable:
        family = self._database.family(spec.name)
        return RocksDBTable(spec, family, self._key_groups, lambda: self._now_ms)

    def _migrate(
        self, known: RocksDBTable, spec: TableSpec, migration: Migration | None
    ) -> RocksDBTable:
        """Return a table with the new specification; rewrites the rows if their form differs."""
        change = resolve_migration(known.spec, spec, migration)
        if change is None and (known.spec.ttl_ms is None) == (spec.ttl_ms is None):
            return self._create(spec)
        table = self._create(spec)  # in the same column family: iterators don't see later writes
        table.restore(rows.migrate(known.spec, change) for rows in known.all_rows())
        return table

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequestError("the backend is closed")


def _has_same_specs(databases: Sequence[StoredDatabase]) -> bool:
    """Return whether the tables of all databases have equal specifications."""
    specs: dict[str, StoredSpec] = {}
    return all(
        specs.setdefault(spec.name, spec) == spec
        for database in databases
        for spec in database.manifest.specs
    )
