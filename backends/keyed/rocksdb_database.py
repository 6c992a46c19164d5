"""An open database: column families by name, writes, and metrics.

<directory>/<32 hex digits>.rocksdb/     the working directory of a process (see `locked_directory`)
    db/                                  RocksDB's own files
    snapshot-<n>/                        hard links to the files of a snapshot, until it is written
<directory>/<name>                       a copy of a sorted file, shared with databases by hard links

There is no write-ahead log: rows that are not in a checkpoint are written again when their batch is repeated.

RocksDB stops writes while write buffers wait to be flushed, or files to be merged. If the disk is full, it retries until
there is space, and a stopped write blocks that long without an error; in rocksdict it holds Python's lock, so the whole
process hangs. So RocksDB is configured to reject such writes, and `PatientWriter` waits outside of it and checks for failures.

Source:
    Flink, RocksDBNativeMetricOptions has the names of metrics. Times of merging and flushing are RocksDB's histograms.
"""

import itertools
import os
import re
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from rocksdict import (
    AccessType,
    Checkpoint,
    ColumnFamily,
    IngestExternalFileOptions,
    Rdict,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from holdfast.backends.keyed.locked_directory import LockedDirectory
from holdfast.backends.keyed.rocksdb_errors import map_errors
from holdfast.backends.keyed.rocksdb_options import FILE_BYTES, Memory, database_options, memory_of
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.common import SYSTEM_CLOCK, Clock, raise_if_cancelled
from holdfast.errors import InvalidRequestError, StorageFullError
from holdfast.locations.handles import StreamStateHandle

_DEFAULT = "default"
"""The column family that RocksDB always has; it has no state."""

_PREFIX = "state/"
_FILE_STEP_ROWS = 1 << 12

_MAX_UNMERGED_FILES = 20
"""Writes wait for merges from this number of files on, at which RocksDB starts to slow writes down."""

_STALLED = "Write stall"
_MIN_WAIT_S = 0.0005
_MAX_WAIT_S = 0.02

_NO_STALL = WriteOptions()
_NO_STALL.disable_wal = True  # type: ignore[assignment,method-assign]  # its stub is wrong
_NO_STALL.no_slowdown = True

_FAMILY_PROPERTIES = (
    "estimate-num-keys",
    "estimate-live-data-size",
    "live-sst-files-size",
    "cur-size-all-mem-tables",
    "estimate-pending-compaction-bytes",
)
"""Properties of each column family, which are summed up."""

_SHARED_PROPERTIES = (
    "block-cache-capacity",
    "block-cache-usage",
    "num-running-compactions",
    "num-running-flushes",
)
"""Properties of all column families together; the cache's are of all databases of the process."""

_STATISTICS = {
    "rocksdb.block.cache.hit COUNT": "block-cache-hit",
    "rocksdb.block.cache.miss COUNT": "block-cache-miss",
    "rocksdb.stall.micros COUNT": "stall-micros",
    "rocksdb.compaction.times.micros SUM": "compaction-micros",
    "rocksdb.db.flush.micros SUM": "flush-micros",
}
"""Statistics since the database was opened, by RocksDB's names with the printed aggregate."""

_STATISTIC = re.compile(r"^(\S+) .*?(COUNT|SUM) : (\d+)$", re.MULTILINE)


class PatientWriter:
    """Writes to a database, and waits outside of RocksDB for its background work, as its options provide."""

    def __init__(self, database: Rdict, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._clock = clock

    def write(self, rows: Rdict, make_batch: Callable[[], WriteBatch]) -> None:
        """Write a batch to a column family as soon as RocksDB accepts it, in a new batch for each attempt.

        RocksDB consumes rejected batches, too. Raises RocksDB's errors, and `StorageFullError` if files can't be merged
        because the disk is full.
        """
        while not self._try_write(make_batch()):
            waits = self._backoff()
            while not self._try_write(WriteBatch(raw_mode=True)):
                next(waits)
        if _count_unmerged_files(rows) >= _MAX_UNMERGED_FILES:
            self._wait_for_merges(rows)

    def _try_write(self, batch: WriteBatch) -> bool:
        """Return whether RocksDB accepted the batch. Raises its error if it has failed for good."""
        try:
            self._database.write(batch, _NO_STALL)
        except Exception as error:
            if _STALLED not in str(error):
                raise
            return False
        return True

    def _wait_for_merges(self, rows: Rdict) -> None:
        """Wait until files are merged or merging fails; RocksDB retries each second then, and still accepts writes."""
        failures = self._count_failures()
        waits = self._backoff()
        while _count_unmerged_files(rows) >= _MAX_UNMERGED_FILES:
            is_failed = self._count_failures() > failures
            self._try_write(WriteBatch(raw_mode=True))  # raises any error except a full disk
            if is_failed:
                path = self._database.path()
                raise StorageFullError("no space left for RocksDB to merge its files", path)
            next(waits)

    def _backoff(self) -> Iterator[None]:
        """Wait longer each time, until the task is cancelled."""
        wait_s = _MIN_WAIT_S
        while True:
            raise_if_cancelled()
            self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
            yield

    def _count_failures(self) -> int:
        return _property(self._database, "background-errors")


class Family:
    """The rows of one column family."""

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
        """Return the value of each key; None for missing keys."""
        with map_errors(self._path, self._stored):
            return self.rows.get(keys) or []  # type: ignore[arg-type]  # its stub wants lists of anything

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deletes: Sequence[bytes] = ()
    ) -> None:
        """Put the values of some keys, and delete others."""

        def make_batch() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handle)
            for key, value in zip(keys, values, strict=True):
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)
            return batch

        with map_errors(self._path, self._stored):
            self._writer.write(self.rows, make_batch)

    def ingest(self, rows: Iterable[tuple[bytes, bytes]], directory: str) -> None:
        """Add rows in ascending order of keys as files, moved from a directory on the same disk.

        They replace present rows with these keys.
        """
        paths: list[str] = []
        rest = iter(rows)
        with map_errors(directory):
            for first in rest:
                paths.append(os.path.join(directory, f"{uuid.uuid4().hex}.sst"))
                _write_sst(paths[-1], self._settings, first, rest)
            if paths:
                moving = IngestExternalFileOptions()
                moving.set_move_files(True)
                self.rows.ingest_external_file(paths, moving)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Delete the keys `first` <= key < `end`, without reading them."""

        def make_batch() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(first, end, self._handle)  # ranges ignore the batch's default
            return batch

        with map_errors(self._path, self._stored):
            self._writer.write(self.rows, make_batch)

    def ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the present keys and values in ranges `first` <= key < `end`."""
        with map_errors(self._path, self._stored):
            rows = self.rows.iter()
            for first, end in ranges:
                rows.seek(first)
                while rows.valid():
                    key = rows.key()
                    if key >= end:
                        break
                    yield key, rows.value()
                    rows.next()
                rows.status()  # a corrupted block ends the iteration, too

    def close(self) -> None:
        """Release the database, which can only be closed after all families. Never raises."""
        self._handle = None
        with suppress(Exception):  # it flushes, see `_close`
            self.rows.close()


def _write_sst(
    path: str,
    settings: RocksDBSettings,
    first: tuple[bytes, bytes],
    rest: Iterator[tuple[bytes, bytes]],
) -> None:
    """Write the next rows to a file until it is large enough."""
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
    """An open database. Raises as `map_errors`.

    Args:
        path: The directory of the database's files.
        directory: The working directory to delete after closing; None if the caller owns it.
        stored: The stored files of the database, by their names in it, to verify if a file is corrupted.
    """

    def __init__(
        self,
        path: str,
        settings: RocksDBSettings,
        *,
        directory: LockedDirectory | None = None,
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
        memory.acquire()
        try:
            with map_errors(self.path, self._stored):
                if os.path.exists(os.path.join(path, "CURRENT")):
                    names |= set(Rdict.list_cf(path, options))
                families = {name: database_options(settings) for name in names}
                self._database = Rdict(path, options, families, access)
        except BaseException:
            memory.release()
            raise
        self._families = {
            name.removeprefix(_PREFIX): Family(self._database, name, settings, self._stored)
            for name in names - {_DEFAULT}
        }
        self._close = weakref.finalize(
            self, _close, self._database, self._families, memory, directory
        )

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._families)

    def family(self, name: str) -> Family:
        """Return the rows of a state, new or known. Raises `InvalidRequestError` for a name that RocksDB doesn't support."""
        family = self._families.get(name)
        if family is None:
            if "\0" in name:
                message = f"RocksDB doesn't support null characters in state names, got {name!r}; rename the state, or use another backend"
                raise InvalidRequestError(message)
            with map_errors(self.path, self._stored):
                self._database.create_column_family(
                    _PREFIX + name, database_options(self._settings)
                )
            family = self._families[name] = Family(
                self._database, _PREFIX + name, self._settings, self._stored
            )
        return family

    def drop(self, name: str) -> None:
        """Delete a state, if it exists, without reading it."""
        if self._families.pop(name, None) is not None:
            with map_errors(self.path, self._stored):
                self._database.drop_column_family(_PREFIX + name)

    def metrics(self) -> Mapping[str, int]:
        """Return RocksDB's metrics of the database, by Flink's names; statistics only if the settings enable them."""
        families = [family.rows for family in self._families.values()]
        with map_errors(self.path, self._stored):
            metrics = {
                name: sum(_property(family, name) for family in families)
                for name in _FAMILY_PROPERTIES
            }
            metrics |= {name: _property(self._database, name) for name in _SHARED_PROPERTIES}
            metrics["num-live-sst-files"] = len(self._database.live_files())
        statistics = self._options.get_statistics() or ""
        for name, aggregate, number in _STATISTIC.findall(statistics):
            known = _STATISTICS.get(f"{name} {aggregate}")
            if known is not None:
                metrics[known] = int(number)
        return metrics

    def capture(self, path: str) -> None:
        """Create a database of the present rows in a new directory on the same disk, from hard links."""
        with map_errors(self.path, self._stored):
            Checkpoint(self._database).create_checkpoint(path)

    def close(self) -> None:
        """Close the database, and delete its working directory if it owns one. May be called twice."""
        self._close()


def _close(
    database: Rdict, families: dict[str, Family], memory: Memory, directory: LockedDirectory | None
) -> None:
    for family in families.values():
        family.close()
    families.clear()
    with suppress(Exception):  # the flush may fail, but its rows are not needed
        database.close()
    memory.release()
    if directory is not None:
        directory.release()


def _property(rows: Rdict, name: str) -> int:
    return rows.property_int_value(f"rocksdb.{name}") or 0


def _count_unmerged_files(rows: Rdict) -> int:
    return int(rows.property_value("rocksdb.num-files-at-level0") or 0)
