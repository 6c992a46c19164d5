"""The interface of user code: the classes that functions implement, and the contexts that they are given.

`subtask/` calls the functions. Start with `functions`.
"""

from holdfast.backends.api.batch_times import NO_WATERMARK, BatchTimes
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
    "NO_WATERMARK",
    "BatchTimes",
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "checkpointed_function",
]
