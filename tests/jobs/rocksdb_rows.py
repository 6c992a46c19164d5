"""Rows of numbers in tables in RocksDB, and what gets of them into checkpoints."""

import pyarrow as pa
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import Keys, StateTable, StateTables, TableSpec
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing.contracts import KeyedCheckpoints

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
HALVES = (KeyGroupRange(0, 2), KeyGroupRange(3, 7))
KEY = pa.schema([("k", pa.int64())])
NUMBER = TableSpec("n", "value", KEY, pa.schema([("value", pa.int64())]))


def keys_of(numbers: range) -> Keys:
    """The keys of numbers."""
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def put(table: StateTable, numbers: range, factor: int = 1) -> None:
    """Put the multiple of each number."""
    keys = keys_of(numbers)
    values = keys.columns[0].to_numpy() * factor
    table.write(keys.identities, (pa.array(values),))


def held(table: StateTable) -> dict[int, int]:
    """What the table has, by number."""
    rows = list(table.scan())
    keys = [key for step in rows for key in step.identities.columns[0].to_pylist()]
    return dict(zip(keys, [v for step in rows for v in step.values[0].to_pylist()], strict=True))


def multiples(numbers: range, factor: int = 1) -> dict[int, int]:
    """What a table has in which they were put."""
    return {number: number * factor for number in numbers}


def report(
    tables: StateTables, checkpoints: KeyedCheckpoints, number: int
) -> tuple[SegmentsStateHandle, SegmentsStateHandle]:
    """What a subtask reports of a snapshot, and the handle that the checkpoint has."""
    state = tables.snapshot(number, checkpoints.location(number)).run().state
    (reported,) = state.managed_keyed
    assert isinstance(reported, SegmentsStateHandle)
    (completed,) = checkpoints.complete(state)
    return reported, completed


def numbers_stored(checkpoints: KeyedCheckpoints, numbers: range) -> SegmentsStateHandle:
    """The state of a subtask with all key groups, in the first checkpoint."""
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), numbers)
    _, whole = report(tables, checkpoints, 1)
    tables.close()
    return whole
