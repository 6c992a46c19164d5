"""A backend on RocksDB whose directory on the host is full, a small disk: while it merges, captures, and downloads.

python -m jobs.rocksdb_full_disk STORE HOST
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.keyed import Keys, RocksDBSettings, TableSpec, open_tables
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import StorageFullError
from holdfast.locations import FileSystemCheckpointStorage

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
SPEC = TableSpec("n", "value", pa.schema([("k", pa.int64())]), pa.schema([("v", pa.binary())]))
ROWS = 5000
FIRST = b"first" * 20
BALLAST = "ballast"


class Job:
    """A job with a single subtask.

    Args:
        store: Where checkpoints are.
        host: A directory on a small disk.
    """

    def __init__(self, store: str, host: str) -> None:
        self._store = store
        self._host = host
        storage = FileSystemCheckpointStorage(f"file://{store}", inline_threshold=0)
        self._access = storage.create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Take the checkpoint that every case restores."""
        tables = self._open_tables()
        put(tables, range(ROWS), FIRST)
        self._handles += self._snapshot(tables, 1)
        tables.close()

    def fill_while_it_merges(self) -> None:
        tables = self._open_tables()
        with self._is_full():
            for number in range(100):
                put(tables, range(number * ROWS, (number + 1) * ROWS), os.urandom(100))
        tables.close()
        self._check()

    def fill_while_it_waits_for_flushes(self) -> None:
        """In about a third of the rounds a write waits for a flush just when the flush fails."""
        for _ in range(5):
            tables = self._open_tables(memory_bytes=4 << 20)
            with self._is_full():
                for number in range(1000):
                    put(tables, range(number * 500, (number + 1) * 500), os.urandom(100))
            tables.close()
        self._check()

    def fill_while_it_merges_small_files(self) -> None:
        """There is room for the written files, but not for the merged one."""
        tables = self._open_tables()
        with full(self._host, 500_000), self._is_full():
            for number in range(2, 200):
                put(tables, range(number, ROWS, 100), os.urandom(100))
                self._snapshot(tables, number)
        tables.close()
        self._check()

    def fill_before_it_captures(self) -> None:
        tables = self._open_tables()
        put(tables, range(ROWS), os.urandom(100))
        before = files_below(self._store)
        with full(self._host, 0), self._is_full():
            self._snapshot(tables, 2)
        assert not [name for name, _, _ in os.walk(self._host) if "snapshot-" in name]
        tables.close()
        assert files_below(self._store) == before
        self._check()

    def fill_before_it_opens(self, *, room: int, has_copies: bool) -> None:
        for name in () if has_copies else os.listdir(self._host):
            os.unlink(f"{self._host}/{name}")
        before = os.listdir(self._host)
        with full(self._host, room):
            with self._is_full():
                self._open_tables()
            assert sorted(os.listdir(self._host)) == sorted([*before, BALLAST])
        self._check()

    def _open_tables(self, memory_bytes: int = 1 << 20) -> Any:
        settings = RocksDBSettings(memory_bytes=memory_bytes)
        return open_tables(
            ALL, self._handles, backend="rocksdb", directory=self._host, rocksdb=settings
        )

    def _snapshot(self, tables: Any, number: int) -> tuple[Any, ...]:
        location = self._access.initialize_location_for_checkpoint(number)
        handles: tuple[Any, ...] = tables.snapshot(number, location).run().state.managed_keyed
        return handles

    def _is_full(self) -> pytest.RaisesExc[StorageFullError]:
        return pytest.raises(StorageFullError, match=self._host)

    def _check(self) -> None:
        """Check that failed databases left nothing, and the next one has all rows."""
        assert not [name for name in os.listdir(self._host) if name.endswith(".rocksdb")]
        tables = self._open_tables()
        rows = [row for step in tables.table(SPEC).scan() for row in step.values[0].to_pylist()]
        assert rows == [FIRST] * ROWS
        tables.close()


def put(tables: Any, numbers: range, value: bytes) -> None:
    """Put the same value for each key."""
    keys = Keys.of([pa.array(numbers, pa.int64())], GROUPS)
    tables.table(SPEC).write(keys.identities, (pa.array([value] * len(keys)),))


def files_below(directory: str) -> list[str]:
    """Return all files below a directory."""
    return sorted(
        os.path.join(parent, name) for parent, _, names in os.walk(directory) for name in names
    )


@contextmanager
def full(directory: str, room: int) -> Iterator[None]:
    """Leave only this much room on the disk, in bytes."""
    path = os.path.join(directory, BALLAST)
    with open(path, "wb", buffering=0) as ballast:
        with suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        ballast.truncate(ballast.tell() - room)
    try:
        yield
    finally:
        os.unlink(path)


if __name__ == "__main__":
    job = Job(*sys.argv[1:])
    job.begin()
    job.fill_while_it_merges()
    job.fill_while_it_waits_for_flushes()
    job.fill_while_it_merges_small_files()
    job.fill_before_it_captures()
    for room in (300_000, 0):
        job.fill_before_it_opens(room=room, has_copies=False)
    job.fill_before_it_opens(room=0, has_copies=True)
    print("done")
