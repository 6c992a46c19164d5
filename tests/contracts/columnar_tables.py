"""A subtask's columnar tables of numbers by number, with checkpoints of them."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from contracts.placeholders import resolve_placeholders

from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    FetchPolicy,
    MergePolicy,
    Workspace,
)
from holdfast.backends.keyed.table import Fold, Identities, StateTable, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import FileStateHandle, StreamStateHandle
from holdfast.locations.handles import SegmentsStateHandle

GROUPS = KeyGroupRange(0, 7)
KEY = pa.schema([("k", pa.int64())])
ROWS = 10_000
LONG = pa.int64()

NO_MERGES = MergePolicy(rewrite_factor=0, fan_in=100, level_bytes=1e12)


def value_spec(type: pa.DataType = LONG, name: str = "s") -> TableSpec:
    return TableSpec(name, "value", KEY, pa.schema([("value", type)]))


def sum_spec(type: pa.DataType = LONG, fold: Fold = "sum") -> TableSpec:
    return TableSpec("s", "reducing", KEY, pa.schema([("value", type)]), folds=(fold,))


def identities(keys: range) -> Identities:
    """Return keys with sort keys in the order of their numbers."""
    numbers = np.arange(keys.start, keys.stop, keys.step)
    sort_keys = numbers.astype(np.uint64) * np.uint64((8 << 48) // ROWS)
    return Identities(sort_keys, (pa.array(numbers),))


def put(table: StateTable, keys: range, value: object = 0) -> None:
    table.write(identities(keys), [pa.array([value] * len(keys), table.spec.values.types[0])])


def values(table: StateTable, keys: range) -> list[object]:
    _, (column,) = table.get(identities(keys))
    return list(column.to_pylist())


class TablesJob:
    """A subtask's tables, and checkpoints of them."""

    def __init__(self, directory: str, local: Path) -> None:
        storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
        self.access = storage.create_checkpoint_storage("job")
        self.access.initialize_base_locations_for_checkpoint()
        self.local = local
        self.checkpoint = 0
        self.written: dict[int, SegmentsStateHandle] = {}
        self.confirmed: dict[str, StreamStateHandle] = {}
        self.workspace = Workspace()

    def restore(
        self,
        *handles: SegmentsStateHandle,
        policy: MergePolicy = NO_MERGES,
        may_refer: bool = True,
        is_local: bool = True,
        fetch_policy: FetchPolicy | None = None,
    ) -> ColumnarStateTables:
        tables = ColumnarStateTables(
            GROUPS,
            handles,
            directory=str(self.local) if is_local else None,
            policy=policy,
            fetch_policy=fetch_policy,
            workspace=self.workspace,
            may_refer=may_refer,
        )
        tables.advance_time(0)
        self.confirmed |= {name: s for handle in handles for name, s in handle.segments.items()}
        return tables

    def snapshot(self, tables: ColumnarStateTables) -> SegmentsStateHandle:
        self.checkpoint += 1
        location = self.access.initialize_location_for_checkpoint(self.checkpoint)
        (handle,) = tables.snapshot(self.checkpoint, location).run().state.managed_keyed
        assert isinstance(handle, SegmentsStateHandle)
        self.written[self.checkpoint] = resolve_placeholders(handle, self.confirmed)
        return self.written[self.checkpoint]

    def complete(self, tables: ColumnarStateTables) -> SegmentsStateHandle:
        handle = self.snapshot(tables)
        self.confirm(tables, self.checkpoint)
        return handle

    def confirm(self, tables: ColumnarStateTables, checkpoint: int) -> None:
        tables.notify_checkpoint_complete(checkpoint)
        self.confirmed |= self.written[checkpoint].segments

    def local_files(self) -> set[str]:
        return set(os.listdir(self.local))

    def on_another_worker(self) -> None:
        """Forget what this worker has in memory, and on its disk."""
        self.workspace = Workspace()
        for name in self.local_files():
            os.unlink(self.local / name)


def uris(handle: SegmentsStateHandle) -> dict[str, str]:
    streams = handle.segments.items()
    return {name: stream.uri for name, stream in streams if isinstance(stream, FileStateHandle)}
