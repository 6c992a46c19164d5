"""Holdfast savepoints with sums by window, in the form of a window operator, for export to Flink."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.inspection import StateRows, shown_schema, write_keyed_tables
from holdfast.backends.keyed import HeapStateTables, KeyedStateBackend
from holdfast.backends.keys import KEY_HASH, KeyGroupRange
from holdfast.locations.coordination import complete_checkpoint
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import FileSystemCheckpointStorage

TIME_WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])


def write_windows(
    directory: Path, namespace: pa.Schema, sums: Mapping[str, Sequence[tuple[Any, ...]]]
) -> str:
    """Write a savepoint, and return its pointer.

    Args:
        directory: Parent directory of the savepoint.
        namespace: Columns of a window in the operators' state.
        sums: By operator, the key of each window, its namespace, whose last column is its end, and its sum.
    """
    uri = f"file://{directory}/windows"
    storage = FileSystemCheckpointStorage(uri).create_checkpoint_storage("job")
    location = storage.initialize_location_for_savepoint(0, uri)
    key = pa.schema([("k", pa.string())])
    operators = {}
    for uid, rows in sums.items():
        tables = HeapStateTables(KeyGroupRange(0, 127))
        backend = KeyedStateBackend(tables, key, 128)
        total = ReducingStateDescriptor("windows", "sum", pa.int64())
        backend.get_reducing_state(total, namespace)
        backend.event_time_timers("windows", namespace)
        specs = tables.specs()
        *windows, values = zip(*rows, strict=True)
        columns: dict[str, list[Sequence[Any]]] = {
            "windows": [*windows, values],
            "_timers/event/windows": [*windows, [end - 1 for end in windows[-1]]],
        }
        descriptors = {"windows": total}
        written = []
        for name, arrays in columns.items():
            names = shown_schema(specs[name]).names
            table = pa.table([pa.array(array) for array in arrays], names)
            written.append((specs[name], StateRows(table, descriptors.get(name))))
        handles = write_keyed_tables(written, location, parallelism=1, max_parallelism=128)
        operators[uid] = StoredOperator(
            parallelism=1,
            max_parallelism=128,
            subtasks={n: StoredSubtask(managed_keyed=(own,)) for n, own in handles.items()},
            key=("k",),
            key_hash=KEY_HASH,
        )
    stored = CheckpointMetadata(
        job_id="job",
        checkpoint_id=0,
        created_ms=0,
        duration_ms=0,
        writer="test",
        operators=operators,
        coordinator_states={},
    )
    return complete_checkpoint(location, stored).location.external_pointer
