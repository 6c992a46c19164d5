"""The hash with which *Flink* maps keys to key groups, for exchange of state with Flink.

Rows of Holdfast's operators are partitioned by `spark_hash`, which maps keys to different groups.

Source:
    Flink, KeyGroupRangeAssignment.assignToKeyGroup and MathUtils.murmurHash; Java, String.hashCode.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keys.key_groups import check_parallelism

_U = np.uint32
_MIN_INT = -(1 << 31)


def java_hash(text: str) -> int:
    """Compute Java's hash code of a string, over its UTF-16 code units.

    Returns:
        A signed 32-bit integer.
    """
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

    Raises:
        InvalidRequestError: `max_parallelism` is not between 1 and 32768.
    """
    check_parallelism(max_parallelism, 1)
    return flink_murmur(hash_codes) % max_parallelism
