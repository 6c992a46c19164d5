"""What stored bytes mean: descriptors, states, snapshots and the operator state backend."""

if __name__ == "backends":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.backends, not backends")

from holdfast.backends._broadcast_state import BroadcastState
from holdfast.backends._casts import MisfitError, cast_rows
from holdfast.backends._check import Fate, StateCheck, check
from holdfast.backends._comparison import (
    Difference,
    FileComparison,
    compare,
    compare_files,
    compare_subtasks,
)
from holdfast.backends._contexts import FunctionInitializationContext, FunctionSnapshotContext
from holdfast.backends._description import ColumnDescription, StateDescription, describe
from holdfast.backends._descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends._duplicating_stream import DuplicatingCheckpointOutputStream
from holdfast.backends._elements import Elements
from holdfast.backends._functions import (
    CheckpointedFunction,
    CheckpointListener,
    checkpointed_function,
)
from holdfast.backends._key_groups import (
    MAX_PARALLELISM,
    KeyGroupRange,
    default_max_parallelism,
    hash32,
    hash32_long,
    key_group,
    key_group_for_key_hash,
    key_group_range,
    murmur32,
    operator_index_for_key_group,
)
from holdfast.backends._list_state import ListState
from holdfast.backends._operator_state import OperatorStateBackend
from holdfast.backends._raw_state import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    StatePartitionStream,
    raw_key_groups,
    raw_operator_partitions,
)
from holdfast.backends._redistribution import intersect, redistribute, redistribute_raw
from holdfast.backends._sections import Compression
from holdfast.backends._serializers import ElementType, Outcome, Pickled
from holdfast.backends._snapshots import AsyncSnapshot, SnapshotResult, SnapshotStrategy
from holdfast.backends._state_assignment import AssignedOperator, OperatorSettings, assign
from holdfast.backends._state_handler import OperatorSnapshot, OperatorStateHandler
from holdfast.backends._states import (
    Raw,
    RawPart,
    Section,
    StateRows,
    StoredState,
    iter_state,
    managed_state,
    read_state,
    state_names,
    states,
    stored_state,
    write_states,
)
from holdfast.backends._written_states import WrittenState, WrittenStates

__all__ = [
    "MAX_PARALLELISM",
    "AssignedOperator",
    "AsyncSnapshot",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "ColumnDescription",
    "Compression",
    "Difference",
    "DuplicatingCheckpointOutputStream",
    "ElementType",
    "Elements",
    "Fate",
    "FileComparison",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyGroupRange",
    "KeyGroupStatePartitionStream",
    "KeyedStateCheckpointOutputStream",
    "ListState",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "MisfitError",
    "OperatorSettings",
    "OperatorSnapshot",
    "OperatorStateBackend",
    "OperatorStateCheckpointOutputStream",
    "OperatorStateHandler",
    "Outcome",
    "Pickled",
    "Raw",
    "RawPart",
    "Section",
    "SnapshotResult",
    "SnapshotStrategy",
    "StateCheck",
    "StateDescription",
    "StatePartitionStream",
    "StateRows",
    "StoredState",
    "WrittenState",
    "WrittenStates",
    "assign",
    "cast_rows",
    "check",
    "checkpointed_function",
    "compare",
    "compare_files",
    "compare_subtasks",
    "default_max_parallelism",
    "describe",
    "hash32",
    "hash32_long",
    "intersect",
    "iter_state",
    "key_group",
    "key_group_for_key_hash",
    "key_group_range",
    "managed_state",
    "murmur32",
    "operator_index_for_key_group",
    "raw_key_groups",
    "raw_operator_partitions",
    "read_state",
    "redistribute",
    "redistribute_raw",
    "state_names",
    "states",
    "stored_state",
    "write_states",
]
