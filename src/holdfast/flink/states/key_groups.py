"""Checks that keys are in their key groups, the nearest thing to a checksum in Flink's state.

Source:
    Flink, KeyGroupRangeAssignment.assignToKeyGroup.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.backends.keys import flink_key_groups
from holdfast.flink.binary import corrupted_error
from holdfast.flink.serializers import Serializer


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """A key group of an operator.

    Attributes:
        number: Number of the group, from 0.
        max_parallelism: Number of key groups.
    """

    number: int
    max_parallelism: int

    def has(self, key: Serializer, keys: pa.Array) -> bool:
        """Return whether all keys belong to the group; their hash codes must be known."""
        if key.hash_codes is None:
            return True
        groups = flink_key_groups(key.hash_codes(keys), self.max_parallelism)
        return bool((groups == self.number).all())


def check_key_groups(rows: pa.RecordBatch, key: Serializer, max_parallelism: int) -> None:
    """Check that keys are in the key groups of Flink's hash; keys with unknown hash codes pass.

    Args:
        rows: Rows of keyed state, with the columns `key_group` and `key`.
        key: Serializer of keys.
        max_parallelism: Number of key groups.

    Raises:
        CheckpointCorruptedError: A key is in another group.
    """
    if key.hash_codes is None or not len(rows):
        return
    expected = flink_key_groups(key.hash_codes(rows.column("key")), max_parallelism)
    stored = rows.column("key_group").to_numpy()
    misplaced = np.flatnonzero(stored != expected)
    if len(misplaced):
        first = misplaced[0]
        message = (
            f"by Flink's hash, {len(misplaced)} of {len(rows)} keys in key group {stored[first]} belong to other groups, "
            f"the first of them to {expected[first]}"
        )
        raise corrupted_error(message)
