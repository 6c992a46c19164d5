"""What users of operators subclass and are given: functions and their contexts.

`subtask/` calls the functions. Start with `functions`.
"""

from holdfast.backends.api.batch_times import BatchTimes
from holdfast.backends.api.contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from holdfast.backends.api.functions import (
    CheckpointedFunction,
    CheckpointListener,
    checkpointed_function,
)

__all__ = [
    "BatchTimes",
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "checkpointed_function",
]
