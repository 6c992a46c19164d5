"""One subtask of an operator: what it is restored from, and how its snapshot is taken.

Spark's tasks call it; it calls the user's function, and the backends.
"""

from holdfast.backends.subtask.managed_keyed_state import (
    ManagedKeyedState,
    OperatorKey,
)
from holdfast.backends.subtask.state_handler import OperatorStateHandler

__all__ = ["ManagedKeyedState", "OperatorKey", "OperatorStateHandler"]
