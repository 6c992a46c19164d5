"""What user code implements to keep state, and what it is given for that."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from holdfast.backends._operator_state import OperatorStateBackend


@dataclass(frozen=True, slots=True)
class FunctionInitializationContext:
    """Given to `CheckpointedFunction.initialize_state`.

    Attributes:
        operator_state_store: The subtask's states.
        restored_checkpoint_id: The checkpoint that they come from; None on a fresh start.
        subtask_index: This subtask, 0 <= subtask_index < parallelism.
        parallelism: Number of the operator's subtasks.
        input_schema: Arrow schema of the rows that it will be given.
    """

    operator_state_store: OperatorStateBackend
    restored_checkpoint_id: int | None
    subtask_index: int
    parallelism: int
    input_schema: pa.Schema

    @property
    def is_restored(self) -> bool:
        """Whether the state comes from a checkpoint."""
        return self.restored_checkpoint_id is not None


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """Given to `CheckpointedFunction.snapshot_state`.

    Attributes:
        checkpoint_id: The checkpoint that is being taken.
    """

    checkpoint_id: int


class CheckpointedFunction(ABC):
    """User code with operator state.

    Source:
        Flink, CheckpointedFunction.
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states from `context.operator_state_store`; called before any data."""

    def snapshot_state(  # noqa: B027  # most operators need none: their states are managed
        self, context: FunctionSnapshotContext
    ) -> None:
        """Bring the states up to date; needed only for what is kept outside of them."""


@runtime_checkable
class CheckpointListener(Protocol):
    """Told on the driver what became of checkpoints, best effort: a call can be skipped.

    A higher id implies the lower ones. What it does must bear repetition.

    Source:
        Flink, CheckpointListener.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint exists now."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was given up."""
        ...
