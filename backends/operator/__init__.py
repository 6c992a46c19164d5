"""Managed operator state: list, union and broadcast states in columns.

`operator_state` is the backend that `subtask` restores and snapshots, in sections of a stream.
"""

from holdfast.backends.operator.broadcast_state import BroadcastState
from holdfast.backends.operator.list_state import ListState
from holdfast.backends.operator.operator_state import OperatorStateBackend
