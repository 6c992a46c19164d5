"""The states of an operator: which there are, and their rows, whichever backend of Flink wrote them.

stored_states    all states of an operator; calls the modules below
state_parts      what a subtask has of a state;  common_types   the types that subtasks' parts have together
descriptions     which states a stream has, and how they were serialized
operator_state   list, union and broadcast states
keyed_state      keyed states, in the `canonical` form or that of the `heap` backend; `entries` decodes their entries
rocksdb_state    keyed states in files of RocksDB, which `sst` reads, many entries at once by `equal_entries`
raw_timers       timers of old Flinks;  key_groups   keys compared with their key groups
"""

from holdfast.flink.states.descriptions import TIMERS
from holdfast.flink.states.keyed_state import prefix_bytes
from holdfast.flink.states.stored_states import WITH_TIMERS, StatesOfOperator, StoredState

__all__ = [
    "TIMERS",
    "WITH_TIMERS",
    "StatesOfOperator",
    "StoredState",
    "prefix_bytes",
]
