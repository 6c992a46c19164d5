"""Key groups: the units of distribution of keyed state over subtasks. Pure functions.

Each key belongs to one of `max_parallelism` key groups as long as that number doesn't change, and each subtask owns a
range of groups. The ranges are the same as Flink's. `spark_hash` maps keys to key groups; Flink's own hash maps them to
other groups, and is only for exchange of state with Flink.

Source:
    Flink, KeyGroupRangeAssignment, KeyGroupRange and MathUtils.murmurHash; Java, String.hashCode.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import InvalidRequestError

MAX_PARALLELISM = 1 << 15
_MIN_DEFAULT = 128

_U = np.uint32
_MIN_INT = -(1 << 31)


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """A range of consecutive key groups, including both ends.

    Raises `InvalidRequestError` if the range is empty or begins below 0.
    """

    start_key_group: int
    end_key_group: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_key_group <= self.end_key_group:
            raise InvalidRequestError(
                f"key groups {self.start_key_group} to {self.end_key_group} are not a valid range: "
                "0 <= start <= end must hold"
            )

    def __len__(self) -> int:
        return self.end_key_group - self.start_key_group + 1

    def __contains__(self, key_group: object) -> bool:
        try:
            number = operator.index(key_group)  # type: ignore[arg-type]  # also NumPy's integers
        except TypeError:
            return False
        return self.start_key_group <= number <= self.end_key_group

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start_key_group, self.end_key_group + 1))

    def __getitem__(self, index: int) -> int:
        """Return the group at a position, 0 <= index < length; negative indices are not supported."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} key groups")
        return self.start_key_group + index


def default_max_parallelism(parallelism: int) -> int:
    """Return the number of key groups of a job that doesn't specify it.

    It is the power of two at or above 1.5 times the parallelism, between 128 and 32768.

    Source:
        Flink, KeyGroupRangeAssignment.computeDefaultMaxParallelism.
    """
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), _MIN_DEFAULT), MAX_PARALLELISM)


def check_parallelism(max_parallelism: int, parallelism: int) -> None:
    """Check 1 <= parallelism <= max_parallelism <= 32768. Raises `InvalidRequestError` if a number is out of bounds."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        message = f"max parallelism {max_parallelism} is not between 1 and {MAX_PARALLELISM}"
        raise InvalidRequestError(message)
    if not 1 <= parallelism <= max_parallelism:
        raise InvalidRequestError(
            f"parallelism {parallelism} is not between 1 and max parallelism {max_parallelism}"
        )


def key_group_range(max_parallelism: int, parallelism: int, operator_index: int) -> KeyGroupRange:
    """Return the key groups that a subtask owns.

    The subtasks' ranges are contiguous, in order, cover every group once, and differ in length by at most one group.

    Args:
        max_parallelism: Number of key groups, 1 to 32768.
        parallelism: Number of subtasks, 1 to `max_parallelism`.
        operator_index: The subtask, 0 <= index < parallelism.

    Raises:
        InvalidRequestError: An argument is outside its bounds.
    """
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= operator_index < parallelism:
        message = f"operator index {operator_index} is not between 0 and {parallelism - 1}"
        raise InvalidRequestError(message)
    start = (operator_index * max_parallelism + parallelism - 1) // parallelism
    end = ((operator_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """Return the subtask that owns a key group: the inverse of `key_group_range`.

    Raises `InvalidRequestError` if an argument is outside its bounds.
    """
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        message = f"key group {key_group} is not between 0 and {max_parallelism - 1}"
        raise InvalidRequestError(message)
    return key_group * parallelism // max_parallelism


def java_hash(text: str) -> int:
    """Compute Java's hash code of a string, over its UTF-16 code units: a signed 32-bit integer."""
    code = 0
    for unit in memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]:
        code = code * 31 + unit & 0xFFFF_FFFF
    return (code - _MIN_INT & 0xFFFF_FFFF) + _MIN_INT


def flink_murmur(hash_codes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Mix 32-bit hash codes: one round of MurmurHash3 with seed 0. The results are at least 0 and below 2**31."""
    h = hash_codes.astype(np.uint32) * _U(0xCC9E2D51)  # overflows as in Java
    h = (h << _U(15) | h >> _U(17)) * _U(0x1B873593)
    h = (h << _U(13) | h >> _U(19)) * _U(5) + _U(0xE6546B64)
    h ^= _U(4)  # the length of the input in bytes
    h = (h ^ h >> _U(16)) * _U(0x85EBCA6B)
    h = (h ^ h >> _U(13)) * _U(0xC2B2AE35)
    h ^= h >> _U(16)
    signed = h.view(np.int32).astype(np.int64)
    return np.where(signed == _MIN_INT, 0, np.abs(signed))


def flink_key_groups(
    hash_codes: npt.NDArray[np.integer[Any]], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Return Flink's key groups of keys with these Java hash codes.

    Raises `InvalidRequestError` if `max_parallelism` is not between 1 and 32768.
    """
    check_parallelism(max_parallelism, 1)
    return flink_murmur(hash_codes) % max_parallelism
