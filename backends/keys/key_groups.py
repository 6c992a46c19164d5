"""Key groups: the units by which keyed state is spread over subtasks. Pure functions.

A key belongs to one of `max_parallelism` key groups, for as long as that number stays; a subtask
owns a range of groups. Hashes and ranges are those of Flink, bit by bit, so that a key is in the
same group there and here.

Source:
    Flink, KeyGroupRangeAssignment, KeyGroupRange and MathUtils.murmurHash.
"""

import math
import operator
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.errors import InvalidRequestError

MAX_PARALLELISM = 1 << 15
_LEAST_DEFAULT = 128

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups that follow each other, in ascending order; both ends belong to it.

    Attributes:
        start_key_group: The first group, at least 0.
        end_key_group: The last group, at least the first; -1 in `EMPTY` alone.

    Raises:
        InvalidRequestError: The ends are no range of at least one group.
    """

    EMPTY: ClassVar["KeyGroupRange"]

    start_key_group: int
    end_key_group: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_key_group <= self.end_key_group:
            message = (
                f"key groups {self.start_key_group} to {self.end_key_group} are no range: it needs "
                "0 <= start <= end"
            )
            raise InvalidRequestError(message)

    @classmethod
    def of(cls, start: int, end: int) -> "KeyGroupRange":
        """The range with these ends, or `EMPTY` if the end is before the start."""
        return cls(start, end) if start <= end else cls.EMPTY

    @classmethod
    def _without_groups(cls) -> Self:
        # Past the constructor, which takes such ends for a mistake.
        empty = object.__new__(cls)
        object.__setattr__(empty, "start_key_group", 0)
        object.__setattr__(empty, "end_key_group", -1)
        return empty

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange":
        """The groups in both; `EMPTY` if there are none."""
        return KeyGroupRange.of(
            max(self.start_key_group, other.start_key_group),
            min(self.end_key_group, other.end_key_group),
        )

    def __len__(self) -> int:
        return self.end_key_group - self.start_key_group + 1

    def __contains__(self, key_group: object) -> bool:
        try:
            number = operator.index(key_group)  # type: ignore[arg-type]  # NumPy's are numbers, too
        except TypeError:
            return False
        return self.start_key_group <= number <= self.end_key_group

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start_key_group, self.end_key_group + 1))

    def __getitem__(self, index: int) -> int:
        """The group at that position, 0 <= index < length; never counted from the end."""
        if not 0 <= index < len(self):
            raise IndexError(f"{index} is no position in {len(self)} key groups")
        return self.start_key_group + index


KeyGroupRange.EMPTY = KeyGroupRange._without_groups()  # noqa: SLF001 (the class needs to exist first)


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that names none.

    Args:
        parallelism: Number of subtasks, at least 1.

    Returns:
        The power of two at or above 1.5 times the parallelism, between 128 and 32768.

    Source:
        Flink, KeyGroupRangeAssignment.computeDefaultMaxParallelism.
    """
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), _LEAST_DEFAULT), MAX_PARALLELISM)


def check_parallelism(max_parallelism: int, parallelism: int) -> None:
    """Do nothing if 1 <= parallelism <= max_parallelism <= 32768.

    Raises:
        InvalidRequestError: It is not so.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        message = f"max parallelism {max_parallelism} is not between 1 and {MAX_PARALLELISM}"
        raise InvalidRequestError(message)
    if not 1 <= parallelism <= max_parallelism:
        message = (
            f"parallelism {parallelism} is not between 1 and max parallelism {max_parallelism}"
        )
        raise InvalidRequestError(message)


def key_group_range(max_parallelism: int, parallelism: int, operator_index: int) -> KeyGroupRange:
    """The key groups that one subtask owns.

    The subtasks' ranges follow each other, cover every group once, and differ by at most one
    group in length.

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
    """The subtask that owns a key group: the inverse of `key_group_range`.

    Raises:
        InvalidRequestError: An argument is outside the bounds given there.
    """
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        message = f"key group {key_group} is not between 0 and {max_parallelism - 1}"
        raise InvalidRequestError(message)
    return key_group * parallelism // max_parallelism


def key_group(key: object, max_parallelism: int) -> int:
    """The key group of a key, by `hash32`.

    Raises:
        InvalidRequestError: The key has another type than those of `hash32`, or
            `max_parallelism` is not between 1 and 32768.
    """
    return key_group_for_key_hash(hash32(key), max_parallelism)


def key_group_for_key_hash(key_hash: int, max_parallelism: int) -> int:
    """The key group of a key with that 32-bit hash.

    Raises:
        InvalidRequestError: `max_parallelism` is not between 1 and 32768.
    """
    check_parallelism(max_parallelism, 1)
    return murmur32(key_hash) % max_parallelism


def hash32(key: object) -> int:
    """Java's hash code of a key, so that a key gets the same group as in Flink.

        bool    as Boolean
        int     as Integer if it fits into 32 bits, else as Long
        float   as Double; all NaNs are one key, 0.0 and -0.0 are two
        str     as String: over UTF-16 code units
        bytes   as Arrays.hashCode(byte[])

    A column of Java longs needs `hash32_long`: from 0 to 2**31 - 1 both agree, but a negative long
    that fits into 32 bits has another hash than the int of that value. Never Python's own `hash`,
    which differs between processes.

    Returns:
        Signed, 32 bits.

    Raises:
        InvalidRequestError: Another type, None included, or an int of more than 64 bits.
    """
    match key:
        case bool():
            return 1231 if key else 1237
        case int():
            return key if -_SIGN <= key < _SIGN else hash32_long(key)
        case float():
            return _hash32_double(key)
        case str():
            return _polynomial(memoryview(key.encode("utf-16", "surrogatepass")).cast("H")[1:], 0)
        case bytes():
            return _polynomial(memoryview(key).cast("b"), 1)
        case _:
            # Its type alone: a key may be private.
            message = (
                f"a key of type {type(key).__name__} has no hash that is the same everywhere; use "
                "bool, int, float, str or bytes"
            )
            raise InvalidRequestError(message)


def hash32_long(key: int) -> int:
    """Java's hash code of a Long: the lower half of its 64 bits xor the upper half.

    Returns:
        Signed, 32 bits.

    Raises:
        InvalidRequestError: It doesn't fit into 64 bits.
    """
    if not -(1 << 63) <= key < 1 << 63:
        raise InvalidRequestError("an int key must fit into 64 bits")
    return _signed(key ^ key >> 32)


def murmur32(key_hash: int) -> int:
    """Spread a 32-bit hash evenly: one round of MurmurHash3 with seed 0.

    Args:
        key_hash: Signed or unsigned; only its lower 32 bits count.

    Returns:
        0 <= result < 2**31.
    """
    h = key_hash * 0xCC9E2D51 & _MASK
    h = (h << 15 | h >> 17) & _MASK
    h = h * 0x1B873593 & _MASK
    h = (h << 13 | h >> 19) & _MASK
    h = h * 5 + 0xE6546B64 & _MASK
    h ^= 4  # the length of the input in bytes
    h ^= h >> 16
    h = h * 0x85EBCA6B & _MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    # As a signed number it would be negated; -2**31, which has no counterpart, becomes 0.
    return h if h < _SIGN else -h & ~_SIGN & _MASK


def _hash32_double(key: float) -> int:
    # Java counts every NaN as this one.
    bits = 0x7FF8 << 48 if math.isnan(key) else struct.unpack(">q", struct.pack(">d", key))[0]
    return hash32_long(bits)


def _polynomial(numbers: memoryview, initial: int) -> int:
    h = initial
    for number in numbers:
        h = h * 31 + number & _MASK
    return _signed(h)


def _signed(number: int) -> int:
    """The lower 32 bits, read as a signed number."""
    return (number + _SIGN & _MASK) - _SIGN
