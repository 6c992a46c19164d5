"""Keys: their hashes, key groups and subtasks.

`spark_hash` maps keys to key groups, in which it also sorts rows, and `key_groups` maps groups to subtasks.
`column_hashes` takes the columns of a key apart, for any hash.
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
from holdfast.backends.keys.spark_hash import (
    KEY_HASH,
    key_group_of,
    key_hash,
    subtask_of_key,
    xxhash64,
)

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
