"""Snapshots of a subtask's state, and the forms in which operator state and raw state are stored.

`async_snapshot` captures state and writes it later, by a strategy that each backend has. Managed operator state is
written as `section`s of a stream, which are Arrow IPC files, and stays in memory for the next batch (`WrittenStates`).
`raw_state` has the streams of state in a form that a function chooses itself. Start with `async_snapshot`.
"""

from holdfast.backends.snapshot.async_snapshot import (
    AsyncSnapshot,
    SnapshotResult,
    SnapshotStreams,
    WrittenState,
    WrittenStates,
)
from holdfast.backends.snapshot.raw_state import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    StatePartitionStream,
    raw_key_groups,
    raw_operator_partitions,
)
from holdfast.backends.snapshot.section import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    Compression,
    blocks_and_rows,
    has_same_form,
    location_of,
    read_blocks,
    read_schema,
    read_section,
    section_of,
)
