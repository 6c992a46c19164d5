"""Conversion of RocksDB's files to segments, which any backend and every command can read."""

import os
import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import msgspec

from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.locked_directory import LockedDirectory, locked_directory
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
"""Enough for indexes and filters of a sequential read, which uses each block once."""


def canonical_handles(
    handles: Sequence[SegmentsStateHandle], directory: str | None = None
) -> list[SegmentsStateHandle]:
    """Return handles to the same rows in segments. Large converted segments are files that are deleted with their handles.

    Args:
        handles: The handles to convert.
        directory: The directory of converted segments; None uses a temporary directory.

    Raises:
        CheckpointNotFoundError: A file is missing.
        CheckpointCorruptedError: A file is corrupted.
        UnsupportedFormatError: The state was written by a newer Holdfast.
        StorageFullError: The disk is full.
    """
    databases = [stored_database(handle) for handle in handles]
    return [
        handle if database is None else _convert(database, directory)
        for handle, database in zip(handles, databases, strict=True)
    ]


def write_canonical_rows(
    handle: SegmentsStateHandle, streams: SnapshotStreams, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the live rows of a database to a segment, through a temporary copy of its files on this host.

    Args:
        handle: The database's files; only rows of its key groups are written.
        streams: The streams of the segment and its manifest.
        now_ms: The present time in milliseconds, which decides which rows have expired.

    Raises:
        CheckpointNotFoundError: A file is missing.
        CheckpointCorruptedError: A file is corrupted.
        StorageFullError: The disk is full.
        StorageUnavailableError: The store rejected the segment.
    """
    database = stored_database(handle)
    assert database is not None  # callers read segments themselves
    with locked_directory() as directory:
        return _write_segment(database, directory, streams, now_ms)


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
