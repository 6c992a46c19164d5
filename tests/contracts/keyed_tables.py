"""Checkpoints with keyed states in segments, written without a job."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from contracts.progress import progress_after_batch

from holdfast.backends import OperatorStateBackend
from holdfast.backends.keyed import TableSpec, write_tables
from holdfast.backends.keyed.table import Identities, TableRows
from holdfast.backends.keys import key_group_range
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)

USER = pa.schema([("user", pa.string())])
TOTALS = TableSpec("totals", "value", USER, pa.schema([("value", pa.int64())]))
PEOPLE = TableSpec(
    "people",
    "value",
    USER,
    pa.schema([("name", pa.string()), ("age", pa.int32())]),
    is_struct=True,
)
SEEN = TableSpec(
    "seen",
    "map",
    USER,
    pa.schema([("value", pa.list_(pa.int64()))]),
    namespace=pa.schema([("window", pa.int64())]),
    sub_key=pa.schema([("page", pa.string())]),
    ttl_ms=1000,
)
TIMERS = TableSpec(
    "due",
    "timers",
    pa.schema([("value", pa.int32()), ("changed", pa.bool_())]),
    pa.schema([]),
    sub_key=pa.schema([("subtask", pa.timestamp("ms", "UTC"))]),
)
THEN = dt.datetime(2026, 11, 22, 18, 30, tzinfo=dt.UTC)

Rows = Sequence[tuple[Any, ...]]
Tables = Mapping[str, tuple[TableSpec, Rows]]

STATES: dict[int, dict[str, tuple[TableSpec, Rows]]] = {
    0: {
        "totals": (TOTALS, [("ann", 1), ("bob", 2), (None, 3)]),
        "people": (PEOPLE, [("ann", "Ann", 31)]),
        "seen": (SEEN, [("ann", 7, "/a", [1, 2]), ("ann", 7, "/b", [])]),
        "due": (TIMERS, [(5, True, THEN)]),
    },
    1: {
        "totals": (TOTALS, [("eve", 4)]),
        "people": (PEOPLE, []),
        "seen": (SEEN, [("eve", 8, "/a", [3])]),
        "due": (TIMERS, []),
    },
}


def table_rows(spec: TableSpec, rows: Rows, first_group: int) -> list[TableRows]:
    """Return the rows of a table, each in a separate key group."""
    if not rows:
        return []
    fields = [*spec.id_fields, *spec.values]
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), fields, strict=True)
    ]
    sort_keys = (np.arange(len(rows), dtype=np.uint64) + np.uint64(first_group)) << np.uint64(48)
    ids = len(spec.id_fields)
    times = None
    if spec.ttl_ms is not None:
        times = np.full(len(rows), int(THEN.timestamp() * 1000), np.int64)
    return [TableRows(Identities(sort_keys, tuple(columns[:ids])), tuple(columns[ids:]), times)]


def write_keyed(
    directory: str,
    states: Mapping[int, Tables] = STATES,
    *,
    inline_threshold: int = 0,
    operator_state: OperatorStateBackend | None = None,
) -> str:
    """Complete a checkpoint of an operator whose subtasks have these states; returns its pointer.

    Args:
        directory: The checkpoint directory.
        states: The states of each subtask.
        inline_threshold: Inline threshold of the storage.
        operator_state: Operator state of the first subtask.
    """
    storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    subtasks = {}
    for index, tables in states.items():
        groups = key_group_range(8, len(states), index)
        handle = write_tables(
            [
                (spec, table_rows(spec, rows, groups.start_key_group))
                for spec, rows in tables.values()
            ],
            groups,
            SnapshotStreams(location),
        )
        subtasks[index] = StoredSubtask(managed_keyed=(handle,))
    if operator_state is not None:
        managed = operator_state.snapshot(location).run().state.managed_operator
        subtasks[0] = msgspec.structs.replace(subtasks[0], managed_operator=managed)
    metadata = CheckpointMetadata(
        job_id="job",
        checkpoint_id=1,
        created_ms=1_700_000_000_000,
        duration_ms=1.0,
        writer="test",
        operators={"op": StoredOperator(len(states), 8, subtasks)},
        coordinator_states=progress_after_batch(0),
    )
    return complete_checkpoint(location, metadata).location.external_pointer
