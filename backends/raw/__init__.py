"""Raw state: streams that a function writes and reads in a form of its own."""

from holdfast.backends.raw.raw_state import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStream,
    OperatorStateCheckpointOutputStream,
    StatePartitionStream,
    raw_key_groups,
    raw_operator_partitions,
)

__all__ = [
    "KeyGroupStatePartitionStream",
    "KeyedStateCheckpointOutputStream",
    "OperatorStateCheckpointOutputStream",
    "StatePartitionStream",
    "raw_key_groups",
    "raw_operator_partitions",
]
