"""Keys: their hash, their key group, and which subtask has it.

`spark_hash` is the hash: it takes keys to key groups, `key_groups` takes those to subtasks. Inside of a key group rows
are sorted by `spark_xxhash64`. `column_hashes` is what both have in common. `flink_hash` is no part of that: it is for reading
what Flink has written, and for writing what Flink is to read.
"""

from holdfast.backends.keys.column_hashes import check_hashed
from holdfast.backends.keys.flink_hash import flink_key_groups, java_hash
from holdfast.backends.keys.key_groups import (
    MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    key_group_range,
    operator_index_for_key_group,
)
from holdfast.backends.keys.spark_hash import KEY_HASH, key_group_of, key_hash, subtask_of_key
from holdfast.backends.keys.spark_xxhash64 import xxhash64

__all__ = [
    "KEY_HASH",
    "MAX_PARALLELISM",
    "KeyGroupRange",
    "check_hashed",
    "check_parallelism",
    "default_max_parallelism",
    "flink_key_groups",
    "java_hash",
    "key_group_of",
    "key_group_range",
    "key_hash",
    "operator_index_for_key_group",
    "subtask_of_key",
    "xxhash64",
]
