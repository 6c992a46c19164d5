"""Spark's second hash, of 64 bits: rows of keyed state are sorted by it.

Bit by bit what `xxhash64(columns...)` is in the JVM, over Arrow, so that Spark can send it with the rows.

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
    hashes_of,
    numbers_at,
)

_SEED = 42
_STRIPE_BYTES = 32

_Hashes = npt.NDArray[np.uint64]
_U = np.uint64

_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)
_P1_PLUS_P2 = _U((int(_P1) + int(_P2)) % (1 << 64))


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Spark's `xxhash64` of the key in each row; as unsigned numbers, where Spark has signed ones.

    Args:
        columns: As for `key_hash`.

    Raises:
        InvalidRequestError: As for `key_hash`.
    """
    return hashes_of(columns, _XXHASH64, _U(_SEED))


# Java's integers overflow without a word, as numpy's do in arrays.
def _of_ints(words: npt.NDArray[np.uint32], hashes: _Hashes) -> _Hashes:
    return _finished(_with_int(hashes + (_P5 + _U(4)), words))


def _of_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes) -> _Hashes:
    return _finished(_with_long(hashes + (_P5 + _U(8)), longs))


def _of_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes
) -> _Hashes:
    """Hash a range of bytes in each row: stripes of 32, then longs, then an int, then bytes."""
    results = hashes + _P5
    striped = np.flatnonzero(lengths >= _STRIPE_BYTES)
    if len(striped):
        stripes = lengths[striped] >> 5
        results[striped] = _of_stripes(data, starts[striped], stripes, hashes[striped])
    results += lengths.astype(_U)
    # Shifts and masks, because NumPy divides slowly.
    at = starts + (lengths & ~31)
    for position, rows in by_position(lengths >> 3 & 3):
        results[rows] = _with_long(results[rows], numbers_at(data, "<u8", at[rows] + 8 * position))
    at = starts + (lengths & ~7)
    for _, rows in by_position(lengths >> 2 & 1):
        results[rows] = _with_int(results[rows], numbers_at(data, "<u4", at[rows]))
    at = starts + (lengths & ~3)
    for position, rows in by_position(lengths & 3):
        mixed = results[rows] ^ data[at[rows] + position].astype(_U) * _P5
        results[rows] = _rotated(mixed, 11) * _P1
    return _finished(results)


def _of_stripes(
    data: npt.NDArray[np.uint8], starts: Integers, stripes: Integers, hashes: _Hashes
) -> _Hashes:
    """The hashes of ranges that have whole stripes: each of the four longs of a stripe has a hash of its own."""
    lanes: list[_Hashes] = [hashes + _P1_PLUS_P2, hashes + _P2, hashes.copy(), hashes - _P1]
    for position, rows in by_position(stripes):
        at = starts[rows] + _STRIPE_BYTES * position
        for number, lane in enumerate(lanes):
            longs: npt.NDArray[np.uint64] = numbers_at(data, "<u8", at + 8 * number)
            lane[rows] = _rotated(lane[rows] + longs * _P2, 31) * _P1
    results = _rotated(lanes[0], 1)
    for lane, bits in zip(lanes[1:], (7, 12, 18), strict=True):
        results = results + _rotated(lane, bits)
    for lane in lanes:
        results = (results ^ _rotated(lane * _P2, 31) * _P1) * _P1 + _P4
    return results


# What is new here is changed in place: an array more for each step takes a third longer.
def _with_long(hashes: _Hashes, longs: npt.NDArray[np.uint64]) -> _Hashes:
    mixed = _rotated(longs * _P2, 31)
    mixed *= _P1
    mixed ^= hashes
    mixed = _rotated(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _with_int(hashes: _Hashes, ints: npt.NDArray[np.uint32]) -> _Hashes:
    return _rotated(hashes ^ ints.astype(_U) * _P1, 23) * _P2 + _P3


def _rotated(hashes: _Hashes, bits: int) -> _Hashes:
    rotated = hashes << _U(bits)
    rotated |= hashes >> _U(64 - bits)
    return rotated


def _finished(hashes: _Hashes) -> _Hashes:
    """Spread what each bit says over all bits."""
    spread = hashes ^ hashes >> _U(33)
    spread *= _P2
    spread ^= spread >> _U(29)
    spread *= _P3
    spread ^= spread >> _U(32)
    return spread


_XXHASH64 = HashFunction(_of_ints, _of_longs, _of_bytes)
