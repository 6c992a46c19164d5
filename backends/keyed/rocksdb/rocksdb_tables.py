"""All tables of a subtask in a RocksDB database."""

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from holdfast.backends.keyed.rocksdb.canonical_form import canonical_handles
from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.held_directory import HeldDirectory
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
        directory: Where the database is while it is open, and where its files are left for those who come later;
            None takes a temporary directory, and leaves nothing.
        settings: How the database uses memory and files.
        may_refer: Whether checkpoints may refer to the files that were restored. Not if these belong
            to a savepoint, or to another job.
        on_metrics: Is told with each snapshot what RocksDB says of itself, by Flink's names, if the settings ask for it.

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
        may_refer: bool = True,
        on_metrics: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self._on_metrics = on_metrics
        self._key_groups = key_groups
        self._settings = settings or RocksDBSettings()
        self._copies = directory
        self._tables: dict[str, RocksDBTable] = {}
        self._mixed: dict[str, RestoredTable] = {}
        self._asked: set[str] = set()
        self._now_ms = 0
        self._is_closed = False
        self._lock = threading.Lock()  # a part that runs in another thread tells what it wrote
        self._written: dict[int, Files] = {}  # by checkpoint
        self._pending: set[int] = set()
        self._confirmed: Files = {}
        self._confirmed_id = 0
        self._cursors: dict[str, bytes] = {}
        self._holder = HeldDirectory(directory)
        try:
            self._database = self._opened(handles, may_refer=may_refer)
        except BaseException:
            self._holder.release()
            raise

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def table(
        self,
        spec: TableSpec,
        migration: Migration | None = None,
        *,
        rewrite: bool = False,  # noqa: ARG002  # all values are written anew at once
    ) -> RocksDBTable:
        self._check_open()
        mixed = self._mixed.get(spec.name)
        known = self._tables.get(spec.name)
        if known is not None and spec.name in self._asked:
            if not known.spec.equals(spec):
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

        def written(files: Files) -> None:
            with self._lock:
                if checkpoint_id in self._pending:
                    self._written[checkpoint_id] = files

        strategy = RocksDBSnapshotStrategy(
            self._key_groups, self._capture, written, self._copies, self._settings.transfer_threads
        )
        resources = strategy.sync_prepare_resources(checkpoint_id)
        if self._settings.has_metrics and self._on_metrics is not None:
            self._on_metrics(self._database.metrics())
        self._pending.add(checkpoint_id)
        return KeyedStatePart(AsyncSnapshot(strategy, resources, SnapshotStreams(factory)))

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
            path = os.path.join(self._holder.path, f"snapshot-{uuid.uuid4().hex}")
            self._database.capture(path)
        cursors = {name: self._cursors[name] for name in self._cursors if name in self._tables}
        specs = tuple(table.spec for table in self._tables.values())
        return CapturedDatabase(path, specs, self._confirmed, cursors)

    def _opened(self, handles: Sequence[SegmentsStateHandle], *, may_refer: bool) -> Database:
        """The database, with the rows of all handles."""
        path = os.path.join(self._holder.path, "db")
        stored = [stored_database(handle) for handle in handles]
        databases = [database for database in stored if database is not None]
        if not databases or len(databases) < len(stored) or not _are_alike(databases):
            self._database = Database(path, self._settings, holder=self._holder)
            for restored in read_tables(canonical_handles(handles, self._copies), self._key_groups):
                self._restore(restored)
            return self._database
        check_disjoint(
            (KeyGroupRange(*each.handle.key_groups), [spec.name for spec in each.manifest.specs])
            for each in databases
        )
        databases.sort(key=lambda each: -len(KeyGroupRange(*each.handle.key_groups)))
        base, *others = databases
        # A checkpoint that may not refer to the files has them copied, unread: no damage may get into it.
        copies = self._copies if may_refer else None
        base.fetch(path, copies, at_a_time=self._settings.transfer_threads)
        self._database = Database(
            path, self._settings, holder=self._holder, stored=base.streams_by_file
        )
        self._clip(base)
        for stored_spec in base.manifest.specs:
            self._tables[stored_spec.name] = self._new(stored_spec.spec())
        for number, other in enumerate(others):
            self._import(other, os.path.join(self._holder.path, f"other-{number}"))
        self._cursors = dict(base.manifest.cursors)
        if may_refer:
            self._confirmed = base.streams
        return self._database

    def _clip(self, base: StoredDatabase) -> None:
        """Delete the rows of key groups that are another subtask's now, without reading them."""
        first, last = base.manifest.key_groups
        kept_first, kept_last = base.handle.key_groups
        for name in self._database.names:
            family = self._database.family(name)
            if first < kept_first:
                family.delete_range(first_key(first), first_key(kept_first))
            if kept_last < last:
                family.delete_range(first_key(kept_last + 1), first_key(last + 1))

    def _import(self, other: StoredDatabase, path: str) -> None:
        """Take over the rows of another database, as they are: in files of their own, which are not merged at once.

        Its own files can't be: RocksDB takes over only those that a writer of such files has made, and rocksdict doesn't
        have the option by which it would take others (`allow_db_generated_files`).
        """
        other.fetch(path, self._copies, at_a_time=self._settings.transfer_threads)
        first, last = other.handle.key_groups
        edges = [(first_key(first), first_key(last + 1))]
        database = Database(path, self._settings, is_read_only=True, stored=other.streams_by_file)
        with closing(database):
            for stored in other.manifest.specs:
                if stored.name not in self._tables:
                    self._tables[stored.name] = self._new(stored.spec())
                rows = database.family(stored.name).ranges(edges)
                self._database.family(stored.name).ingest(rows, path)
        shutil.rmtree(path, ignore_errors=True)

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
        change = resolve_migration(known.spec, spec, migration)
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


def _are_alike(databases: Sequence[StoredDatabase]) -> bool:
    """Whether the databases have each table in the same form."""
    specs: dict[str, StoredSpec] = {}
    return all(
        specs.setdefault(spec.name, spec) == spec
        for database in databases
        for spec in database.manifest.specs
    )
