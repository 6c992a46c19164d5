"""The state of operators: descriptors, states, the contexts of functions, and states of checkpoints read from outside."""

if __name__ == "backends":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.backends, not backends")

from holdfast.backends.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends.functions import (
    NO_WATERMARK,
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from holdfast.backends.inspection import (
    Difference,
    RestoreOutcome,
    StateCheck,
    StateRows,
    check,
    compare,
    compare_subtasks,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.operator import BroadcastState, ListState, OperatorStateBackend
from holdfast.backends.serializers import ElementType, Pickled
from holdfast.backends.snapshot import (
    AsyncSnapshot,
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    SnapshotResult,
    StatePartitionStream,
)

__all__ = [
    "NO_WATERMARK",
    "AsyncSnapshot",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "Difference",
    "ElementType",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyGroupRange",
    "KeyGroupStatePartitionStream",
    "KeyedStateCheckpointOutputStream",
    "ListState",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "OperatorStateBackend",
    "OperatorStateCheckpointOutputStream",
    "Pickled",
    "RestoreOutcome",
    "SnapshotResult",
    "StateCheck",
    "StatePartitionStream",
    "StateRows",
    "check",
    "compare",
    "compare_subtasks",
]
