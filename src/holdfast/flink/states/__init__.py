"""The states of an operator and their rows, for every backend of Flink.

stored_states    all states of an operator; calls the modules below
descriptions     descriptions of a stream's states and their serializers
operator_state   list, union and broadcast states
keyed_state      keyed states, in the canonical form or that of the `heap` backend; `entries` decodes their entries
rocksdb_state    keyed states in RocksDB files, which `sst` reads
raw_timers       timers of old Flink versions
"""

from holdfast.flink.states.descriptions import TIMERS
from holdfast.flink.states.keyed_state import prefix_bytes
from holdfast.flink.states.stored_states import WITH_TIMERS, OperatorStateReader, StoredState

__all__ = ["TIMERS", "WITH_TIMERS", "OperatorStateReader", "StoredState", "prefix_bytes"]
