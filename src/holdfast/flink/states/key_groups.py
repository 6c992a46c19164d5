"""Whether keys stand in the key groups where they belong: what comes nearest to a checksum in Flink's state.

Source:
    Flink, KeyGroupRangeAssignment.assignToKeyGroup.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.backends.keys import flink_key_groups
from holdfast.flink.binary import damaged
from holdfast.flink.serializers import Serializer


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """A key group of an operator.

    Attributes:
        number: The number of the group, from 0.
        max_parallelism: How many key groups there are.
    """

    number: int
    max_parallelism: int

    def has(self, key: Serializer, keys: pa.Array) -> bool:
        """Whether all keys belong to it, of known hash codes."""
        if key.hash_codes is None:
            return True
        groups = flink_key_groups(key.hash_codes(keys), self.max_parallelism)
        return bool((groups == self.number).all())


def check_key_groups(rows: pa.RecordBatch, key: Serializer, max_parallelism: int) -> None:
    """Refuse keys that stand in other key groups than Flink's hash says; keys of unknown hash codes are let pass.

    Args:
        rows: Rows of keyed state, with the columns `key_group` and `key`.
        key: The keys' serializer.
        max_parallelism: Number of key groups.

    Raises:
        CheckpointCorruptedError: A key stands elsewhere.
    """
    if key.hash_codes is None or not len(rows):
        return
    expected = flink_key_groups(key.hash_codes(rows.column("key")), max_parallelism)
    stored = rows.column("key_group").to_numpy()
    misplaced = np.flatnonzero(stored != expected)
    if len(misplaced):
        first = misplaced[0]
        message = (
            f"{len(misplaced)} of {len(rows)} keys in key group {stored[first]} belong elsewhere by Flink's hash, the first of "
            f"them to {expected[first]}"
        )
        raise damaged(message)
