"""All tables of a subtask in a RocksDB database, through rocksdict; and conversion of databases to segments.

    rocksdb_tables    all tables of a subtask: restored, written to, and captured
    rocksdb_table     the rows of a state, in their own column family
    rocksdb_files     the files of a stored database: their upload, and download to this host
    rocksdb_database  an open database, its writes and metrics
    rocksdb_options   the memory that all databases of a process share, and their options
    rocksdb_errors    mapping of RocksDB and disk errors
    locked_directory  the working directory of a process

For large values with partial updates, and for states larger than memory. Needs `holdfast[rocksdb]`.
"""

import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import msgspec

from holdfast.backends.keyed.eager_tables import EagerTables
from holdfast.backends.keyed.locked_directory import LockedDirectory
from holdfast.backends.keyed.rocksdb_database import Database
from holdfast.backends.keyed.rocksdb_files import (
    CapturedDatabase,
    Files,
    StoredDatabase,
    stored_database,
)
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.rocksdb_table import RocksDBTable, first_key
from holdfast.backends.keyed.segments import (
    ConfirmedFiles,
    StoredSpec,
    check_disjoint,
    read_tables,
    resolve_migration,
    write_tables,
)
from holdfast.backends.keyed.table import Migration, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot, SnapshotResult, SnapshotStreams
from holdfast.common import raise_if_cancelled
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory, FileSystemCheckpointStreamFactory

_STEP_ROWS = 1 << 14
_IN_MEMORY_BYTES = 1 << 20
_READ_BYTES = 8 << 20
"""Enough for indexes and filters of a sequential read, which uses each block once."""


class RocksDBStateTables(EagerTables[RocksDBTable]):
    """Tables in a database, each in its own column family. Used by one thread.

    Writes go to memory, then to files that are merged in the background, so states can be larger than memory. A
    snapshot flushes, and captures the files as hard links.

    Arguments and errors are those of `open_tables`; also `StorageFullError` if the disk is full. The open database is in
    the directory, too; without one it is in a temporary directory, and no files are shared.

    Source:
        Flink, RocksDBKeyedStateBackend and RocksIncrementalSnapshotStrategy.
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
        super().__init__(key_groups)
        self._on_metrics = on_metrics
        self._settings = settings or RocksDBSettings()
        self._copies = directory
        self._confirmed = ConfirmedFiles[Files]({})
        self._restored: Files = {}
        self._cursors: dict[str, bytes] = {}
        self._directory = LockedDirectory(directory)
        try:
            self._open(handles, may_refer=may_refer)
        except BaseException:
            self._directory.release()
            raise

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        self._check_snapshot()
        resources = self.sync_prepare_resources(checkpoint_id)
        if self._settings.has_metrics and self._on_metrics is not None:
            self._on_metrics(self._database.metrics())
        return AsyncSnapshot.of(self, resources, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._confirmed.confirm(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._confirmed.abort(checkpoint_id)

    def close(self) -> None:
        super().close()
        self._database.close()

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedDatabase:
        for name, table in self._tables.items():
            if table.spec.ttl_ms is not None:
                self._cursors[name] = table.delete_expired(self._cursors.get(name, b""))
        path = ""
        if self._tables:
            path = os.path.join(self._directory.path, f"snapshot-{uuid.uuid4().hex}")
            self._database.capture(path)
        cursors = {name: self._cursors[name] for name in self._cursors if name in self._tables}
        specs = tuple(table.spec for table in self._tables.values())
        self._confirmed.pending[checkpoint_id] = frozenset()
        return CapturedDatabase(
            checkpoint_id,
            path,
            self.key_groups,
            specs,
            self._confirmed.files,
            self._restored,
            cursors,
            self._copies,
            self._settings.transfer_threads,
        )

    def async_snapshot(
        self, resources: CapturedDatabase, streams: SnapshotStreams
    ) -> SnapshotResult:
        if not resources.path:
            return SnapshotResult()
        handle, files = resources.write(streams)
        self._confirmed.note_written(resources.checkpoint_id, files)
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))

    def _open(self, handles: Sequence[SegmentsStateHandle], *, may_refer: bool) -> None:
        """Open a database with the rows of all handles."""
        path = os.path.join(self._directory.path, "db")
        stored = [stored_database(handle) for handle in handles]
        databases = [database for database in stored if database is not None]
        if not databases or len(databases) < len(stored) or not _has_same_specs(databases):
            self._database = Database(path, self._settings, directory=self._directory)
            self._restore(read_tables(canonical_handles(handles, self._copies), self.key_groups))
            return
        check_disjoint(
            (KeyGroupRange(*each.handle.key_groups), [spec.name for spec in each.manifest.specs])
            for each in databases
        )
        databases.sort(key=lambda each: -len(KeyGroupRange(*each.handle.key_groups)))
        base, *others = databases
        # Without references the files may be uploaded unread, so they must come from storage: a copy may be corrupted.
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
            self._confirmed.files = base.streams
        else:
            self._restored = base.streams

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

    def _create(self, spec: TableSpec) -> RocksDBTable:
        family = self._database.family(spec.name)
        return RocksDBTable(spec, family, self.key_groups, lambda: self._now_ms)

    def _delete_rows(self, name: str) -> None:
        self._database.drop(name)

    def _migrate(
        self, known: RocksDBTable, spec: TableSpec, migration: Migration | None
    ) -> RocksDBTable:
        """Return a table with the new specification; rewrites the rows if their form differs."""
        change = resolve_migration(known.spec, spec, migration)
        if change is None and (known.spec.ttl_ms is None) == (spec.ttl_ms is None):
            return self._create(spec)
        # In the same column family: iterators don't see later writes.
        return super()._migrate(known, spec, migration)


def _has_same_specs(databases: Sequence[StoredDatabase]) -> bool:
    """Return whether the tables of all databases have equal specifications."""
    specs: dict[str, StoredSpec] = {}
    return all(
        specs.setdefault(spec.name, spec) == spec
        for database in databases
        for spec in database.manifest.specs
    )


def canonical_handles(
    handles: Sequence[SegmentsStateHandle], directory: str | None = None
) -> list[SegmentsStateHandle]:
    """Return handles to the same rows in segments. Arguments and errors are those of `readable_handles`."""
    databases = [stored_database(handle) for handle in handles]
    return [
        handle if database is None else _convert(database, directory)
        for handle, database in zip(handles, databases, strict=True)
    ]


def write_canonical_rows(
    handle: SegmentsStateHandle, streams: SnapshotStreams, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the live rows of a database to a segment, through a temporary copy of its files on this host.

    Arguments and errors are those of `write_canonical`.
    """
    database = stored_database(handle)
    assert database is not None  # callers read segments themselves
    directory = LockedDirectory(None)
    try:
        return _write_segment(database, directory.path, streams, now_ms)
    finally:
        directory.release()


class _DirectoryLease:
    """Keeps a directory until the lease is garbage-collected."""

    def __init__(self, directory: LockedDirectory) -> None:
        weakref.finalize(self, directory.release)


class _LeasedFile(FileStateHandle, frozen=True, kw_only=True):
    """A file in a leased directory; never stored."""

    lease: _DirectoryLease


def _convert(stored: StoredDatabase, parent: str | None) -> SegmentsStateHandle:
    """Convert a database to a segment, which is a file unless it is small."""
    directory = LockedDirectory(parent)
    lease = _DirectoryLease(directory)
    prefix = f"file://{directory.path}/"
    factory = FileSystemCheckpointStreamFactory(
        exclusive_prefix=prefix,
        shared_prefix=prefix,
        metadata_directory="",
        inline_threshold=_IN_MEMORY_BYTES,
        write_buffer_bytes=_IN_MEMORY_BYTES,
    )
    handle = _write_segment(stored, directory.path, SnapshotStreams(factory))
    segments = {
        name: _LeasedFile(stream.uri, stream.size, stream.checksum, lease=lease)
        if isinstance(stream, FileStateHandle)
        else stream
        for name, stream in handle.segments.items()
    }
    return msgspec.structs.replace(handle, segments=segments)


def _write_segment(
    stored: StoredDatabase, directory: str, streams: SnapshotStreams, now_ms: int | None = None
) -> SegmentsStateHandle:
    """Write the rows of a database to a segment, without those that have expired at `now_ms`, if given."""
    key_groups = KeyGroupRange(*stored.handle.key_groups)
    settings = RocksDBSettings(memory_bytes=_READ_BYTES)
    path = os.path.join(directory, "db")
    try:
        stored.fetch(path, None, max_threads=settings.transfer_threads)
        with closing(Database(path, settings, is_read_only=True)) as database:
            return write_tables(_tables(stored, database, key_groups, now_ms), key_groups, streams)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _tables(
    stored: StoredDatabase, database: Database, key_groups: KeyGroupRange, now_ms: int | None
) -> Iterator[tuple[TableSpec, Iterable[TableRows]]]:
    for stored_spec in stored.manifest.specs:
        spec = stored_spec.spec()
        family = database.family(spec.name)
        table = RocksDBTable(spec, family, key_groups, lambda: now_ms or 0)
        steps = table.all_rows(_STEP_ROWS) if now_ms is None else table.scan(_STEP_ROWS)
        yield spec, _until_cancelled(steps)


def _until_cancelled(steps: Iterable[TableRows]) -> Iterator[TableRows]:
    for step in steps:
        raise_if_cancelled()
        yield step
