"""Times in milliseconds since 1970, and the order of timers: by key group, then by time. Pure.

    sort key    key group << 48 | (time >> 10) + 2**31 << 16 | 16 bits of the key's hash

Timers of the same step of 1,024 ms are in no particular order; their exact time is the sub key.
"""

import operator

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.table import SortKeys
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError

MIN_TIME_MS = -MAX_INT64 - 1

GROUP = 1 << 48
"""Number of sort keys in a key group."""

STEP = 1 << 16
"""Number of sort keys in a key group's time step."""

_STEP_BITS = 10
_MIDDLE = 1 << 31
_LOW_BITS = np.uint64(16)
_KEY_GROUP_BITS = np.uint64(48)


def whole_ms(time_ms: int) -> int:
    """Return the time as an int. Raises `InvalidRequestError` if it is not an integer of 64 bits."""
    try:
        number = operator.index(time_ms)
    except TypeError:
        number = None
    if number is None or not MIN_TIME_MS <= number <= MAX_INT64:
        message = f"a time must be a 64-bit integer of milliseconds since 1970, got {time_ms!r}"
        raise InvalidRequestError(message)
    return number


def time_part(times_ms: npt.NDArray[np.int64]) -> SortKeys:
    """Return the bits of timers' sort keys that encode the time, between the key group and the key's hash.

    Times before 1902 or after 4199 are clamped to the first or last step.
    """
    steps = np.clip((times_ms >> _STEP_BITS) + _MIDDLE, 0, 2 * _MIDDLE - 1)
    part: SortKeys = steps.astype(np.uint64) << _LOW_BITS
    return part


def advance_to_time(sort_keys: SortKeys, time_ms: int) -> SortKeys:
    """Raise sort keys to the first of their key group whose timers can be later than the time."""
    step = time_part(np.array([max(time_ms, -(1 << 62))]))
    advanced: SortKeys = np.maximum(
        sort_keys, sort_keys >> _KEY_GROUP_BITS << _KEY_GROUP_BITS | step
    )
    return advanced
