"""Rows of numbers in tables in RocksDB, and their checkpoints."""

import pyarrow as pa
from contracts.keyed.checkpoints import KeyedCheckpoints
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import Keys, StateTable, StateTables, TableSpec
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
HALVES = (KeyGroupRange(0, 2), KeyGroupRange(3, 7))
KEY = pa.schema([("k", pa.int64())])
NUMBER = TableSpec("n", "value", KEY, pa.schema([("value", pa.int64())]))


def keys_of(numbers: range) -> Keys:
    """Return the keys of numbers."""
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def put(table: StateTable, numbers: range, factor: int = 1) -> None:
    """Put the multiple of each number."""
    keys = keys_of(numbers)
    values = keys.columns[0].to_numpy() * factor
    table.write(keys.identities, (pa.array(values),))


def read_rows(table: StateTable) -> dict[int, int]:
    """Return the values of the table by number."""
    rows = list(table.scan())
    keys = [key for step in rows for key in step.identities.columns[0].to_pylist()]
    return dict(zip(keys, [v for step in rows for v in step.values[0].to_pylist()], strict=True))


def multiples(numbers: range, factor: int = 1) -> dict[int, int]:
    """Return the multiple of each number, as `put` writes them."""
    return {number: number * factor for number in numbers}


def snapshot_and_complete(
    tables: StateTables, checkpoints: KeyedCheckpoints, number: int
) -> tuple[SegmentsStateHandle, SegmentsStateHandle]:
    """Take a snapshot, and return the reported handle and that of the completed checkpoint."""
    state = tables.snapshot(number, checkpoints.location(number)).run().state
    (reported,) = state.managed_keyed
    assert isinstance(reported, SegmentsStateHandle)
    (completed,) = checkpoints.complete(state)
    return reported, completed


def store_numbers(checkpoints: KeyedCheckpoints, numbers: range) -> SegmentsStateHandle:
    """Store numbers in the first checkpoint of a subtask with all key groups."""
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), numbers)
    _, whole = snapshot_and_complete(tables, checkpoints, 1)
    tables.close()
    return whole
