"""Spark's 64-bit hash, which orders rows of keyed state.

It equals `xxhash64(columns...)` in the JVM bit by bit, so that Spark can compute it with the rows.

Source:
    Spark, XxHash64 and XXH64.java.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keys.column_hashes import (
    HashFunction,
    Integers,
    by_position,
    hash_columns,
    read_numbers,
)

_SEED = 42
_STRIPE_BYTES = 32

_Hashes = npt.NDArray[np.uint64]
_U = np.uint64

_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)
_P1_PLUS_P2 = _U((int(_P1) + int(_P2)) % (1 << 64))


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Compute Spark's `xxhash64` of the key in each row, as unsigned numbers; Spark's are signed.

    Takes the same columns as `key_hash`, and raises the same errors.
    """
    return hash_columns(columns, _XXHASH64, _U(_SEED))


# Integers overflow silently, in Java and in NumPy's arrays.
def _hash_ints(words: npt.NDArray[np.uint32], hashes: _Hashes) -> _Hashes:
    return _finalize(_mix_int(hashes + (_P5 + _U(4)), words))


def _hash_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes) -> _Hashes:
    return _finalize(_mix_long(hashes + (_P5 + _U(8)), longs))


def _hash_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes
) -> _Hashes:
    """Hash a range of bytes in each row: stripes of 32, then longs, then an int, then bytes."""
    results = hashes + _P5
    striped = np.flatnonzero(lengths >= _STRIPE_BYTES)
    if len(striped):
        stripes = lengths[striped] >> 5
        results[striped] = _hash_stripes(data, starts[striped], stripes, hashes[striped])
    results += lengths.astype(_U)
    # Shifts and masks, because division is slow in NumPy.
    at = starts + (lengths & ~31)
    for position, rows in by_position(lengths >> 3 & 3):
        results[rows] = _mix_long(results[rows], read_numbers(data, "<u8", at[rows] + 8 * position))
    at = starts + (lengths & ~7)
    for _, rows in by_position(lengths >> 2 & 1):
        results[rows] = _mix_int(results[rows], read_numbers(data, "<u4", at[rows]))
    at = starts + (lengths & ~3)
    for position, rows in by_position(lengths & 3):
        last = results[rows] ^ data[at[rows] + position].astype(_U) * _P5
        results[rows] = _rotate(last, 11) * _P1
    return _finalize(results)


def _hash_stripes(
    data: npt.NDArray[np.uint8], starts: Integers, stripes: Integers, hashes: _Hashes
) -> _Hashes:
    """Hash the whole stripes of ranges: each of the four longs of a stripe is hashed separately."""
    lanes: list[_Hashes] = [hashes + _P1_PLUS_P2, hashes + _P2, hashes.copy(), hashes - _P1]
    for position, rows in by_position(stripes):
        at = starts[rows] + _STRIPE_BYTES * position
        for number, lane in enumerate(lanes):
            longs: npt.NDArray[np.uint64] = read_numbers(data, "<u8", at + 8 * number)
            lane[rows] = _rotate(lane[rows] + longs * _P2, 31) * _P1
    results = _rotate(lanes[0], 1)
    for lane, bits in zip(lanes[1:], (7, 12, 18), strict=True):
        results = results + _rotate(lane, bits)
    for lane in lanes:
        results = (results ^ _rotate(lane * _P2, 31) * _P1) * _P1 + _P4
    return results


# New arrays are changed in place: another array for each step takes a third longer.
def _mix_long(hashes: _Hashes, longs: npt.NDArray[np.uint64]) -> _Hashes:
    mixed = _rotate(longs * _P2, 31)
    mixed *= _P1
    mixed ^= hashes
    mixed = _rotate(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _mix_int(hashes: _Hashes, ints: npt.NDArray[np.uint32]) -> _Hashes:
    return _rotate(hashes ^ ints.astype(_U) * _P1, 23) * _P2 + _P3


def _rotate(hashes: _Hashes, bits: int) -> _Hashes:
    rotated = hashes << _U(bits)
    rotated |= hashes >> _U(64 - bits)
    return rotated


def _finalize(hashes: _Hashes) -> _Hashes:
    """Mix each bit into all others."""
    spread = hashes ^ hashes >> _U(33)
    spread *= _P2
    spread ^= spread >> _U(29)
    spread *= _P3
    spread ^= spread >> _U(32)
    return spread


_XXHASH64 = HashFunction(_hash_ints, _hash_longs, _hash_bytes)
