"""Writes that wait here for RocksDB's work in the background, and never within RocksDB.

RocksDB stops writes while write buffers wait to be flushed, or files to be merged. If that fails for want of room, it
tries again until there is room, and a write that it has stopped before waits as long: without an error, and in
rocksdict with Python's lock held, so the whole process stands still. So RocksDB is told to refuse such writes, and who
waits looks whether it has failed meanwhile.
"""

from collections.abc import Callable, Iterator

from rocksdict import Rdict, WriteBatch, WriteOptions

from holdfast.common import SYSTEM_CLOCK, Clock, raise_if_cancelled
from holdfast.errors import StorageFullError

_MOST_UNMERGED_FILES = 20
"""With so many a write waits until some are merged: RocksDB begins to slow writes down there."""

_STALLED = "Write stall"
_FIRST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.02

_UNSTALLED = WriteOptions()
_UNSTALLED.disable_wal = True  # type: ignore[assignment,method-assign]  # its stub is wrong
_UNSTALLED.no_slowdown = True


class PatientWriter:
    """Writes to a database.

    Args:
        database: The database, whose options leave it to this to wait for merges (see `budget`).
        clock: Waits.
    """

    def __init__(self, database: Rdict, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = database
        self._clock = clock

    def write(self, rows: Rdict, batch: Callable[[], WriteBatch]) -> None:
        """Write a batch, as soon as RocksDB takes it.

        Args:
            rows: The column family that it is for.
            batch: Makes it: RocksDB uses it up also when it refuses it.

        Raises:
            Exception: RocksDB's own, if it has failed.
            StorageFullError: Files can't be merged for want of room.
            CancelledError: Nobody waits for it any more.
        """
        while not self._takes(batch()):
            waiting = self._waits()
            while not self._takes(WriteBatch(raw_mode=True)):
                next(waiting)
        if _unmerged_files(rows) >= _MOST_UNMERGED_FILES:
            self._wait_for_merges(rows)

    def _takes(self, batch: WriteBatch) -> bool:
        """Whether RocksDB has taken the batch. An error if it has stopped for good."""
        try:
            self._database.write(batch, _UNSTALLED)
        except Exception as error:
            if _STALLED not in str(error):
                raise
            return False
        return True

    def _wait_for_merges(self, rows: Rdict) -> None:
        """Wait until files are merged, or that fails: RocksDB tries each second then, and takes writes meanwhile."""
        failures = self._failures()
        waiting = self._waits()
        while _unmerged_files(rows) >= _MOST_UNMERGED_FILES:
            is_failed = self._failures() > failures
            self._takes(WriteBatch(raw_mode=True))  # says what it was, if it was no want of room
            if is_failed:
                path = self._database.path()
                raise StorageFullError("no space left for RocksDB to merge its files", path)
            next(waiting)

    def _waits(self) -> Iterator[None]:
        """Longer and longer waits, as long as what is waited for is of use."""
        wait_s = _FIRST_WAIT_S
        while True:
            raise_if_cancelled()
            self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            yield

    def _failures(self) -> int:
        return self._database.property_int_value("rocksdb.background-errors") or 0


def _unmerged_files(rows: Rdict) -> int:
    return int(rows.property_value("rocksdb.num-files-at-level0") or 0)
