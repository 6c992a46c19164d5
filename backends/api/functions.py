"""The classes that user code implements to keep state."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from holdfast.backends.api.contexts import FunctionInitializationContext, FunctionSnapshotContext
from holdfast.errors import InvalidRequestError


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
        """Bring the states up to date; needed only by functions that keep data outside of their states."""


@runtime_checkable
class CheckpointListener(Protocol):
    """Is called on the driver when a checkpoint is complete or was given up. Calls can be skipped.

    A call for one id implies the lower ids. A listener must bear to be called again for the same checkpoint.

    Source:
        Flink, CheckpointListener.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint exists now."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was given up."""
        ...


def checkpointed_function(function: Any) -> CheckpointedFunction:
    """Returns the function with state, unwrapped: wrappers have it as `__wrapped__` or `wrapped_function`.

    Raises:
        InvalidRequestError: Neither the function nor what it wraps is a `CheckpointedFunction`.

    Source:
        Flink, StreamingFunctionUtils: unwraps in the same way.
    """
    seen: list[Any] = []
    while not isinstance(function, CheckpointedFunction):
        seen.append(function)
        inner = getattr(function, "wrapped_function", None) or getattr(
            function, "__wrapped__", None
        )
        if inner is None or any(inner is outer for outer in seen):
            names = ", which wraps ".join(type(outer).__name__ for outer in seen)
            message = f"{names} is no CheckpointedFunction"
            raise InvalidRequestError(message)
        function = inner
    return function
