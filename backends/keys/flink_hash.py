"""The hash with which *Flink* maps keys to key groups, for exchange of state with Flink.

Rows of Holdfast's operators are partitioned by `spark_hash`, which maps keys to different groups.

Source:
    Flink, KeyGroupRangeAssignment.assignToKeyGroup and MathUtils.murmurHash; Java, Object.hashCode.
"""

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keys.key_groups import check_parallelism
from holdfast.errors import InvalidRequestError

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def flink_key_group(key: object, max_parallelism: int) -> int:
    """Return Flink's key group of a key.

    Raises:
        InvalidRequestError: `java_hash` doesn't support the key's type, or `max_parallelism` is not between 1 and 32768.
    """
    return flink_key_group_of_hash(java_hash(key), max_parallelism)


def flink_key_group_of_hash(key_hash: int, max_parallelism: int) -> int:
    """Return Flink's key group of keys with this Java hash code.

    Raises:
        InvalidRequestError: `max_parallelism` is not between 1 and 32768.
    """
    check_parallelism(max_parallelism, 1)
    return flink_murmur(key_hash) % max_parallelism


def java_hash(key: object) -> int:
    """Compute Java's hash code of a key.

        bool    as Boolean
        int     as Integer if it fits into 32 bits, otherwise as Long
        float   as Double; all NaNs are one key, 0.0 and -0.0 are two
        str     as String: over UTF-16 code units
        bytes   as Arrays.hashCode(byte[])

    A column of Java longs needs `java_hash_of_long`: both agree from 0 to 2**31 - 1, but a negative long that
    fits into 32 bits has another hash than the int of the same value. Python's `hash` is unsuitable, because it
    differs between processes.

    Returns:
        A signed 32-bit integer.

    Raises:
        InvalidRequestError: The key has another type, including None, or is an int of more than 64 bits.
    """
    match key:
        case bool():
            return 1231 if key else 1237
        case int():
            return key if -_SIGN <= key < _SIGN else java_hash_of_long(key)
        case float():
            return _java_hash_of_double(key)
        case str():
            return _polynomial(memoryview(key.encode("utf-16", "surrogatepass")).cast("H")[1:], 0)
        case bytes():
            return _polynomial(memoryview(key).cast("b"), 1)
        case _:
            # The message doesn't include the value, because a key can be private.
            message = (
                f"a key of type {type(key).__name__} has no hash that is equal in all processes; use "
                "bool, int, float, str or bytes"
            )
            raise InvalidRequestError(message)


def java_hash_of_long(key: int) -> int:
    """Compute Java's hash code of a Long: the lower half of its 64 bits xor the upper half.

    Returns:
        A signed 32-bit integer.

    Raises:
        InvalidRequestError: The key doesn't fit into 64 bits.
    """
    if not -(1 << 63) <= key < 1 << 63:
        raise InvalidRequestError("an int key must fit into 64 bits")
    return _to_signed(key ^ key >> 32)


def flink_murmur(key_hash: int) -> int:
    """Mix a 32-bit hash: one round of MurmurHash3 with seed 0.

    Args:
        key_hash: A signed or unsigned integer; only its lower 32 bits are used.

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
    # Negative signed numbers are negated; -2**31, which can't be, becomes 0.
    return h if h < _SIGN else -h & ~_SIGN & _MASK


def flink_key_groups(
    key_hashes: npt.NDArray[np.integer[Any]], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Return Flink's key groups of an array of hash codes; see `flink_key_group_of_hash`."""
    check_parallelism(max_parallelism, 1)
    h = key_hashes.astype(np.uint32) * np.uint32(0xCC9E2D51)  # overflows as in Java
    h = (h << np.uint32(15) | h >> np.uint32(17)) * np.uint32(0x1B873593)
    h = (h << np.uint32(13) | h >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(4)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    signed = h.view(np.int32).astype(np.int64)
    spread = np.where(signed == -_SIGN, 0, np.abs(signed))
    return spread % max_parallelism


def _java_hash_of_double(key: float) -> int:
    # Java hashes every NaN as this one.
    bits = 0x7FF8 << 48 if math.isnan(key) else struct.unpack(">q", struct.pack(">d", key))[0]
    return java_hash_of_long(bits)


def _polynomial(numbers: memoryview, initial: int) -> int:
    h = initial
    for number in numbers:
        h = h * 31 + number & _MASK
    return _to_signed(h)


def _to_signed(number: int) -> int:
    """Convert the lower 32 bits to a signed number."""
    return (number + _SIGN & _MASK) - _SIGN
