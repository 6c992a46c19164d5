"""What stored bytes mean: descriptors, states, snapshots and the operator state backend."""

if __name__ == "backends":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.backends, not backends")

from holdfast.backends._broadcast_state import BroadcastState
from holdfast.backends._casts import MisfitError, cast_rows
from holdfast.backends._descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends._elements import Elements
from holdfast.backends._functions import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from holdfast.backends._key_groups import MAX_PARALLELISM, default_max_parallelism
from holdfast.backends._list_state import ListState
from holdfast.backends._operator_state import OperatorStateBackend
from holdfast.backends._sections import Compression
from holdfast.backends._serializers import ElementType, Outcome, Pickled
from holdfast.backends._snapshots import AsyncSnapshot, SnapshotResult, SnapshotStrategy

__all__ = [
    "MAX_PARALLELISM",
    "AsyncSnapshot",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "Compression",
    "ElementType",
    "Elements",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "ListState",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "MisfitError",
    "OperatorStateBackend",
    "Outcome",
    "Pickled",
    "SnapshotResult",
    "SnapshotStrategy",
    "cast_rows",
    "default_max_parallelism",
]
