"""Rows that are in RocksDB's files, written as segments: what any backend and every command reads."""

import os
import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import msgspec

from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.held_directory import HeldDirectory, held_directory
from holdfast.backends.keyed.rocksdb.rocksdb_table import RocksDBTable
from holdfast.backends.keyed.rocksdb.stored_database import StoredDatabase, stored_database
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.segments import write_tables
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import raise_if_cancelled
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle
from holdfast.locations.storages import FileSystemCheckpointStreamFactory

_STEP_ROWS = 1 << 14
_IN_MEMORY_BYTES = 1 << 20
_READ_BYTES = 8 << 20
"""Enough for indexes and filters of what is read from the first row to the last, each block once."""


def canonical_handles(
    handles: Sequence[SegmentsStateHandle], directory: str | None = None
) -> list[SegmentsStateHandle]:
    """Handles to the same rows, in segments; a large segment that was written for this is a file until nobody has its handle.

    Args:
        handles: Lead to the rows.
        directory: Where such files are; None takes a temporary directory.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A file is not what was written.
        UnsupportedFormatError: A newer Holdfast wrote it.
        StorageFullError: The disk has no room for the files.
    """
    databases = [stored_database(handle) for handle in handles]
    return [
        handle if database is None else _in_files(database, directory)
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
    with held_directory() as directory:
        return _written(database, directory, streams, now_ms)


class _Kept:
    """Keeps a directory until nobody has this."""

    def __init__(self, directory: HeldDirectory) -> None:
        weakref.finalize(self, directory.release)


class _KeptFile(FileStateHandle, frozen=True, kw_only=True):
    """A file in such a directory; never stored."""

    directory: _Kept


def _in_files(stored: StoredDatabase, parent: str | None) -> SegmentsStateHandle:
    """The rows of a database in a segment, which is in memory only if it is small."""
    directory = HeldDirectory(parent)
    kept = _Kept(directory)
    prefix = f"file://{directory.path}/"
    factory = FileSystemCheckpointStreamFactory(
        exclusive_prefix=prefix,
        shared_prefix=prefix,
        metadata_directory="",
        inline_threshold=_IN_MEMORY_BYTES,
        write_buffer_bytes=_IN_MEMORY_BYTES,
    )
    handle = _written(stored, directory.path, SnapshotStreams(factory))
    segments = {
        name: _KeptFile(stream.uri, stream.size, stream.checksum, directory=kept)
        if isinstance(stream, FileStateHandle)
        else stream
        for name, stream in handle.segments.items()
    }
    return msgspec.structs.replace(handle, segments=segments)


def _written(
    stored: StoredDatabase, directory: str, streams: SnapshotStreams, now_ms: int | None = None
) -> SegmentsStateHandle:
    """The rows of a database in a segment, without those that expire by a time, if there is some."""
    key_groups = KeyGroupRange(*stored.handle.key_groups)
    settings = RocksDBSettings(memory_bytes=_READ_BYTES)
    path = os.path.join(directory, "db")
    try:
        stored.fetch(path, None, at_a_time=settings.transfer_threads)
        with closing(Database(path, settings, is_read_only=True)) as database:
            return write_tables(_tables(stored, database, key_groups, now_ms), key_groups, streams)
    finally:
        shutil.rmtree(path, ignore_errors=True)


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
        raise_if_cancelled()
        yield step
