"""Rows that are in RocksDB's files, written as segments: what any backend and every command reads."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from holdfast.backends.keyed.rocksdb.budget import RocksDBSettings
from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable
from holdfast.backends.keyed.rocksdb.stored_database import StoredDatabase, stored_database
from holdfast.backends.keyed.segments import write_tables
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
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
        handle if database is None else _written(database)
        for handle, database in zip(handles, databases, strict=True)
    ]


def _written(stored: StoredDatabase) -> SegmentsStateHandle:
    key_groups = KeyGroupRange(*stored.handle.key_groups)
    streams = SnapshotStreams(MemoryCheckpointStreamFactory(_NO_LIMIT))
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        path = os.path.join(directory, "db")
        stored.fetch(path, None)
        with closing(Database(path, RocksDBSettings(), is_read_only=True)) as database:
            return write_tables(_tables(stored, database, key_groups), key_groups, streams)


def _tables(
    stored: StoredDatabase, database: Database, key_groups: KeyGroupRange
) -> Iterator[tuple[TableSpec, Iterable[TableRows]]]:
    for kept in stored.manifest.specs:
        spec = kept.spec()
        table = RocksDBTable(spec, database.family(spec.name), key_groups, lambda: 0)
        yield spec, table.everything(_STEP_ROWS)
