"""An open database: column families by name.

<directory>/<32 hex digits>.rocksdb/     what a process works in (see `held_directory`)
    db/                                  RocksDB's own files
    snapshot-<n>/                        files of a snapshot, as hard links, until it is written
<directory>/<name>                       a copy of a sorted file, which databases have as a hard link

The log says nothing of rows: what is not in a checkpoint is written again when its batch is repeated.
"""

import itertools
import os
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from rocksdict import (
    AccessType,
    Checkpoint,
    ColumnFamily,
    IngestExternalFileOptions,
    Rdict,
    SstFileWriter,
    WriteBatch,
)

from holdfast.backends.keyed.rocksdb.budget import FILE_BYTES, Memory, database_options, memory_of
from holdfast.backends.keyed.rocksdb.held_directory import HeldDirectory
from holdfast.backends.keyed.rocksdb.native_metrics import metrics_of
from holdfast.backends.keyed.rocksdb.patient_writes import PatientWriter
from holdfast.backends.keyed.rocksdb.rocksdb_errors import translated
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import StreamStateHandle

_DEFAULT = "default"
"""RocksDB has this column family always; no state lies in it."""

_PREFIX = "state/"
_FILE_STEP_ROWS = 1 << 12


class Family:
    """The rows of one column family.

    Args:
        database: The database.
        name: The column family's name.
        settings: What it was opened with.
        stored: Files that the database has from storage, by their names in it.

    Attributes:
        rows: The column family, as rocksdict gives it.
    """

    def __init__(
        self,
        database: Rdict,
        name: str,
        settings: RocksDBSettings,
        stored: Mapping[str, StreamStateHandle],
    ) -> None:
        self._settings = settings
        self._stored = stored
        self.rows = database.get_column_family(name)
        self._handle: ColumnFamily | None = database.get_column_family_handle(name)
        self._writer = PatientWriter(database)
        self._path = database.path()

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each key; None where there is none."""
        with translated(self._path, self._stored):
            return self.rows.get(keys) or []  # type: ignore[arg-type]  # its stub wants lists of anything

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deletes: Sequence[bytes] = ()
    ) -> None:
        """Put a value for each of the keys, and delete keys."""

        def batch() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handle)
            for key, value in zip(keys, values, strict=True):
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)
            return batch

        with translated(self._path, self._stored):
            self._writer.write(self.rows, batch)

    def ingest(self, rows: Iterable[tuple[bytes, bytes]], directory: str) -> None:
        """Add rows that ascend by key, as files: what is there of their keys doesn't count any more.

        Args:
            rows: The keys and values.
            directory: Where the files are made, on the database's disk; they are moved from there.
        """
        paths: list[str] = []
        rest = iter(rows)
        with translated(directory):
            for first in rest:
                paths.append(os.path.join(directory, f"{uuid.uuid4().hex}.sst"))
                _write_sorted(paths[-1], self._settings, first, rest)
            if paths:
                moving = IngestExternalFileOptions()
                moving.set_move_files(True)
                self.rows.ingest_external_file(paths, moving)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Delete the keys `first` <= key < `end`, without reading them."""

        def batch() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(first, end, self._handle)  # the batch's default isn't for ranges
            return batch

        with translated(self._path, self._stored):
            self._writer.write(self.rows, batch)

    def ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of ranges `first` <= key < `end`, as they are now."""
        with translated(self._path, self._stored):
            rows = self.rows.iter()
            for first, end in ranges:
                rows.seek(first)
                while rows.valid():
                    key = rows.key()
                    if key >= end:
                        break
                    yield key, rows.value()
                    rows.next()
                rows.status()  # a damaged block ends the rows, too

    def close(self) -> None:
        """Let go of the database, which is not closed before; an error of who uses this later. Never raises."""
        self._handle = None
        with suppress(Exception):  # it flushes, see `_closed`
            self.rows.close()


def _write_sorted(
    path: str,
    settings: RocksDBSettings,
    first: tuple[bytes, bytes],
    rest: Iterator[tuple[bytes, bytes]],
) -> None:
    """A file of the next rows, until it is large."""
    writer = SstFileWriter(database_options(settings))
    writer.open(path)
    writer[first[0]] = first[1]
    while step := list(itertools.islice(rest, _FILE_STEP_ROWS)):
        for key, value in step:
            writer[key] = value
        if writer.file_size() >= FILE_BYTES:
            break
    writer.finish()


class Database:
    """A database that this process has open.

    Args:
        holder: The directory that it is in, which is deleted when it is closed; None of one that belongs to another.
        path: Where the database has its files.
        settings: What it is opened with.
        is_read_only: Whether nothing will be written.
        stored: Files that it has from storage, by their names in it: of a damaged file the error looks whether it is
            damaged there, too.

    Raises:
        CheckpointCorruptedError: A file is damaged.
        StorageFullError: The disk is full.
        StorageUnavailableError: The disk doesn't do it.
    """

    def __init__(
        self,
        path: str,
        settings: RocksDBSettings,
        *,
        holder: HeldDirectory | None = None,
        is_read_only: bool = False,
        stored: Mapping[str, StreamStateHandle] | None = None,
    ) -> None:
        self.path = path
        self._stored = stored or {}
        self._settings = settings
        self._options = options = database_options(settings)
        names = {_DEFAULT}
        access = AccessType.read_only(False) if is_read_only else AccessType.read_write()
        memory = memory_of(settings)
        memory.enter()
        try:
            with translated(self.path, self._stored):
                if os.path.exists(os.path.join(path, "CURRENT")):
                    names |= set(Rdict.list_cf(path, options))
                families = {name: database_options(settings) for name in names}
                self._database = Rdict(path, options, families, access)
        except BaseException:
            memory.leave()
            raise
        self._families = {
            name.removeprefix(_PREFIX): Family(self._database, name, settings, self._stored)
            for name in names - {_DEFAULT}
        }
        self._close = weakref.finalize(
            self, _closed, self._database, self._families, memory, holder
        )

    @property
    def names(self) -> frozenset[str]:
        """The states that there are."""
        return frozenset(self._families)

    def family(self, name: str) -> Family:
        """The rows of a state; none if it is new. Raises `InvalidRequestError` for a name that RocksDB can't have."""
        family = self._families.get(name)
        if family is None:
            if "\0" in name:
                message = f"RocksDB can't keep state {name!r}, for its name has a null character; take another backend or name"
                raise InvalidRequestError(message)
            with translated(self.path, self._stored):
                self._database.create_column_family(
                    _PREFIX + name, database_options(self._settings)
                )
            family = self._families[name] = Family(
                self._database, _PREFIX + name, self._settings, self._stored
            )
        return family

    def drop(self, name: str) -> None:
        """Delete a state, if it is there, without reading it."""
        if self._families.pop(name, None) is not None:
            with translated(self.path, self._stored):
                self._database.drop_column_family(_PREFIX + name)

    def metrics(self) -> Mapping[str, int]:
        """What RocksDB says of the database, by Flink's names."""
        families = [family.rows for family in self._families.values()]
        with translated(self.path, self._stored):
            return metrics_of(self._database, families, self._options)

    def capture(self, path: str) -> None:
        """Make a database of what there is now, in a new directory on the same disk: its files are hard links."""
        with translated(self.path, self._stored):
            Checkpoint(self._database).create_checkpoint(path)

    def close(self) -> None:
        """Close it, and delete its directory if it has one of its own. May be called twice."""
        self._close()


def _closed(
    database: Rdict, families: dict[str, Family], memory: Memory, holder: HeldDirectory | None
) -> None:
    for family in families.values():
        family.close()
    families.clear()
    with suppress(Exception):  # it flushes, which a full disk or damage prevents, and nobody needs
        database.close()
    memory.leave()
    if holder is not None:
        holder.release()
