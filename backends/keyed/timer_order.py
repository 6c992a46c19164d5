"""The order of timers: by key group, then by time. Pure.

    sort key    key group << 48 | (time >> 10) + 2**31 << 16 | 16 bits of the key's hash

The time is in milliseconds; timers of one step of 1,024 ms lie in any order, and their exact time is the
sub key.
"""

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.table import SortKeys

GROUP = 1 << 48
"""So many sort keys a key group has."""

STEP = 1 << 16
"""So many sort keys of a key group are of one step of time."""

_STEP_BITS = 10
_MIDDLE = 1 << 31
_LOW_BITS = np.uint64(16)
_KEY_GROUP_BITS = np.uint64(48)


def time_part(times_ms: npt.NDArray[np.int64]) -> SortKeys:
    """The part of a timer's sort key that its time gives, between the key group and the key's hash.

    Times before 1902 or after 4199 have that of the first or last step in between.
    """
    steps = np.clip((times_ms >> _STEP_BITS) + _MIDDLE, 0, 2 * _MIDDLE - 1)
    part: SortKeys = steps.astype(np.uint64) << _LOW_BITS
    return part


def not_before(sort_keys: SortKeys, time_ms: int) -> SortKeys:
    """The sort keys, or the first of their key group's timers that can be later than a time, if that is greater."""
    step = time_part(np.array([max(time_ms, -(1 << 62))]))
    least: SortKeys = np.maximum(sort_keys, sort_keys >> _KEY_GROUP_BITS << _KEY_GROUP_BITS | step)
    return least
