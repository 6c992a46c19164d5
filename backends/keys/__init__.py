"""Keys: their hashes, key groups and subtasks.

`spark_hash` maps keys to key groups, and `key_groups` maps those to subtasks. Inside of a key group rows are sorted by
`spark_xxhash64`. `column_hashes` is the common part of both hashes.
"""

from holdfast.backends.keys.column_hashes import check_key_type
from holdfast.backends.keys.key_groups import (
    MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    flink_key_groups,
    java_hash,
    key_group_range,
    operator_index_for_key_group,
)
from holdfast.backends.keys.spark_hash import KEY_HASH, key_group_of, key_hash, subtask_of_key
from holdfast.backends.keys.spark_xxhash64 import xxhash64

__all__ = [
    "KEY_HASH",
    "MAX_PARALLELISM",
    "KeyGroupRange",
    "check_key_type",
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
