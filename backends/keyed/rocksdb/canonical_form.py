"""Rows that are in RocksDB's files, written as segments: what any backend and every command reads."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.held_directory import held_directory
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable
from holdfast.backends.keyed.rocksdb.stored_database import StoredDatabase, stored_database
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.segments import write_tables
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import check_wanted
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import MemoryCheckpointStreamFactory

_STEP_ROWS = 1 << 16
_NO_LIMIT = 1 << 62


def canonical_handles(handles: Sequence[SegmentsStateHandle]) -> list[SegmentsStateHandle]:
    """Handles to the same rows, in segments; a segment that was written for this is in memory.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A file is not what was written.
        UnsupportedFormatError: A newer Holdfast wrote it.
        StorageFullError: The disk has no room for the files.
    """
    databases = [stored_database(handle) for handle in handles]
    return [
        handle
        if database is None
        else _written(database, SnapshotStreams(MemoryCheckpointStreamFactory(_NO_LIMIT)))
        for handle, database in zip(handles, databases, strict=True)
    ]


def write_canonical_rows(
    handle: SegmentsStateHandle, streams: SnapshotStreams, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the rows of a database that count into a segment; its files are on this host's disk meanwhile.

    Args:
        handle: Leads to the database's files; of its key groups alone rows count.
        streams: Where the segment and its manifest go.
        now_ms: The time by which rows expire, milliseconds.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A file is not what was written.
        StorageFullError: The disk has no room for the files.
        StorageUnavailableError: The store did not take the segment.
    """
    database = stored_database(handle)
    assert database is not None  # else who calls has read the rows
    return _written(database, streams, now_ms)


def _written(
    stored: StoredDatabase, streams: SnapshotStreams, now_ms: int | None = None
) -> SegmentsStateHandle:
    """The rows of a database in a segment, without those that expire by a time, if there is some."""
    key_groups = KeyGroupRange(*stored.handle.key_groups)
    settings = RocksDBSettings()
    with held_directory() as directory:
        path = os.path.join(directory, "db")
        stored.fetch(path, None, at_a_time=settings.transfer_threads)
        with closing(Database(path, settings, is_read_only=True)) as database:
            tables = _tables(stored, database, key_groups, now_ms)
            return write_tables(tables, key_groups, streams)


def _tables(
    stored: StoredDatabase, database: Database, key_groups: KeyGroupRange, now_ms: int | None
) -> Iterator[tuple[TableSpec, Iterable[TableRows]]]:
    for kept in stored.manifest.specs:
        spec = kept.spec()
        family = database.family(spec.name)
        table = RocksDBTable(spec, family, key_groups, lambda: now_ms or 0)
        steps = table.everything(_STEP_ROWS) if now_ms is None else table.scan(_STEP_ROWS)
        yield spec, _while_wanted(steps)


def _while_wanted(steps: Iterable[TableRows]) -> Iterator[TableRows]:
    for step in steps:
        check_wanted()
        yield step
