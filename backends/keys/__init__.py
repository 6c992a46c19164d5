"""Keys: their hash, their key group, and which subtask has it.

`spark_hash` is the hash by which rows are dealt; `key_groups` deals groups to subtasks.
"""

from holdfast.backends.keys.key_groups import (
    MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    hash32,
    hash32_long,
    key_group,
    key_group_for_key_hash,
    key_group_range,
    murmur32,
    operator_index_for_key_group,
)
from holdfast.backends.keys.spark_hash import KEY_HASH, key_group_of, key_hash, subtask_of_key

__all__ = [
    "KEY_HASH",
    "MAX_PARALLELISM",
    "KeyGroupRange",
    "check_parallelism",
    "default_max_parallelism",
    "hash32",
    "hash32_long",
    "key_group",
    "key_group_for_key_hash",
    "key_group_of",
    "key_group_range",
    "key_hash",
    "murmur32",
    "operator_index_for_key_group",
    "subtask_of_key",
]
