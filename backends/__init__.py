"""States of operators: descriptors, states, contexts of functions, and comparison of stored states.

`holdfast.read_state` and its neighbours read the states of checkpoints.
"""

if __name__ == "backends":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.backends, not backends")

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.backends.functions import (
    NO_WATERMARK,
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    SideOutput,
)
from holdfast.backends.inspection import (
    RestoreOutcome,
    check_restore,
    compare_states,
    compare_subtasks,
)
from holdfast.backends.keyed import (
    AggregatingState,
    KeyedListState,
    KeyedStateBackend,
    MapState,
    ReducingState,
    TimerService,
    ValueState,
)
from holdfast.backends.operator import BroadcastState, ListState, OperatorStateBackend
from holdfast.backends.serializers import Pickled

__all__ = [
    "NO_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedListState",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "OperatorStateBackend",
    "Pickled",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestoreOutcome",
    "SideOutput",
    "StateTtlConfig",
    "StateVisibility",
    "TimerService",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "check_restore",
    "compare_states",
    "compare_subtasks",
]
