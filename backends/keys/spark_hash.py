"""Spark's hashes of keys, in Python: Murmur3 partitions rows, `xxhash64` orders rows of keyed state in a key group.

Spark partitions rows in the JVM, by `pmod(hash(columns...), max_parallelism)`, which determines the subtask that has the
state of a key. These are the same hashes over Arrow arrays, bit by bit, so that Spark can compute both with the rows.

Source:
    Spark, HashExpression, Murmur3Hash, Murmur3_x86_32.hashUnsafeBytes, XxHash64 and XXH64.java.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

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
from holdfast.backends.keys.key_groups import key_group_range, operator_index_for_key_group
from holdfast.errors import InvalidRequestError

KEY_HASH = "spark-murmur3-42"
"""The name of the hash in checkpoints: Spark's Murmur3 with seed 42."""

_SEED = 42

_Hashes32 = npt.NDArray[np.uint32]


def key_hash(columns: Sequence[pa.Array]) -> pa.Int32Array:
    """Compute Spark's `hash` of the key in each row.

    Supports booleans, signed integers, floats, 128-bit decimals, strings, bytes, dates, timestamps and durations in
    microseconds, nulls, and arrays and structs of these. A null leaves the hash unchanged; 0.0 and -0.0 are one key,
    and so are all NaNs. Strings are hashed by their UTF-8 bytes: columns with a collation have another hash in Spark.

    Args:
        columns: The key's columns, of equal length; their order matters.

    Returns:
        One hash per row.

    Raises:
        InvalidRequestError: There are no columns, they differ in length, or a type is not supported, such as a map,
            which Spark doesn't hash either.
    """
    hashes = hash_columns(columns, _MURMUR3, np.uint32(_SEED))
    return pa.array(hashes.view(np.int32), pa.int32())


def key_group_of(key: Mapping[str, object], schema: pa.Schema, max_parallelism: int) -> int:
    """Return the key group of a key.

    Args:
        key: The value of each of the key's columns, by name.
        schema: The key's columns, in the order that the operator is keyed by. Types matter: the long 5 has another
            hash than the int 5.
        max_parallelism: Number of key groups, 1 to 32768.

    Returns:
        0 <= group < max_parallelism.

    Raises:
        InvalidRequestError: `key` and `schema` have different columns, a value doesn't fit its
            column's type, a type can't be part of a key, or `max_parallelism` is out of bounds.
    """
    groups = key_group_range(max_parallelism, 1, 0)
    if key.keys() != set(schema.names) or len(schema.names) != len(key):
        raise InvalidRequestError(
            f"the key has columns {_join(list(key))}, but the schema has {_join(schema.names)}; both must have "
            "exactly the columns that the operator is keyed by"
        )
    columns = [_make_column(key[field.name], field) for field in schema]
    return int(key_hash(columns)[0].as_py()) % len(groups)


def subtask_of_key(
    key: Mapping[str, object], schema: pa.Schema, *, max_parallelism: int, parallelism: int
) -> int:
    """Return the subtask that has the state of a key.

    Args:
        key: As for `key_group_of`.
        schema: As for `key_group_of`.
        max_parallelism: Number of key groups, 1 to 32768.
        parallelism: Number of subtasks, 1 to `max_parallelism`.

    Returns:
        0 <= subtask < parallelism.

    Raises:
        InvalidRequestError: As for `key_group_of`, or `parallelism` is out of bounds.
    """
    group = key_group_of(key, schema, max_parallelism)
    return operator_index_for_key_group(max_parallelism, parallelism, group)


def _join(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _make_column(value: object, field: pa.Field) -> pa.Array:
    """Return a column of one row. Errors don't include the value, because a key can be private."""
    if isinstance(value, datetime) and pa.types.is_timestamp(field.type):
        has, wants = value.tzinfo is not None, field.type.tz is not None
        if has != wants:  # Arrow would guess
            raise InvalidRequestError(
                f"key column {field.name!r} of type {field.type} needs a datetime "
                f"{'with' if wants else 'without'} a time zone"
            )
    try:
        column = pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fits = False
    else:  # Arrow converts 0.5 to 0; only floats may lose digits
        lossy = pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
        fits = lossy or column[0].as_py() == value
    if not fits:
        message = f"key column {field.name!r}: this {type(value).__name__} is not a valid value of type {field.type}"
        raise InvalidRequestError(message)
    return column


# Integers overflow silently, in Java and in NumPy's arrays.
def _murmur_ints(words: _Hashes32, hashes: _Hashes32) -> _Hashes32:
    return _murmur_finalize(_murmur_mix(hashes, words), np.uint32(4))


def _murmur_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes32) -> _Hashes32:
    low, high = longs.astype(np.uint32), (longs >> 32).astype(np.uint32)
    return _murmur_finalize(_murmur_mix(_murmur_mix(hashes, low), high), np.uint32(8))


def _murmur_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes32
) -> _Hashes32:
    """Hash a range of bytes in each row: words of four bytes, then each remaining byte as a word."""
    hashes = hashes.copy()
    for position, rows in by_position(lengths >> 2):  # a shift, because division is slow in NumPy
        words = read_numbers(data, "<u4", starts[rows] + 4 * position)
        hashes[rows] = _murmur_mix(hashes[rows], words)
    at = starts + (lengths & ~3)
    signed = data.view(np.int8)  # Spark widens bytes with their sign
    for position, rows in by_position(lengths & 3):
        rest = signed[at[rows] + position].astype(np.int32)
        hashes[rows] = _murmur_mix(hashes[rows], rest.view(np.uint32))
    return _murmur_finalize(hashes, lengths.astype(np.uint32))


def _murmur_mix(hashes: _Hashes32, words: _Hashes32) -> _Hashes32:
    mixed = _rotate(words * np.uint32(0xCC9E2D51), 15)
    mixed *= np.uint32(0x1B873593)
    mixed ^= hashes
    mixed = _rotate(mixed, 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    return mixed


def _murmur_finalize(hashes: _Hashes32, length: "np.uint32 | _Hashes32") -> _Hashes32:
    """Mix each bit into all others. `length` is the length of the input in bytes."""
    spread = hashes ^ length
    spread ^= spread >> np.uint32(16)
    spread *= np.uint32(0x85EBCA6B)
    spread ^= spread >> np.uint32(13)
    spread *= np.uint32(0xC2B2AE35)
    spread ^= spread >> np.uint32(16)
    return spread


_MURMUR3 = HashFunction(_murmur_ints, _murmur_longs, _murmur_bytes)


_STRIPE_BYTES = 32

_Hashes64 = npt.NDArray[np.uint64]
_U = np.uint64

_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)
_P1_PLUS_P2 = _U((int(_P1) + int(_P2)) % (1 << 64))


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Compute Spark's `xxhash64` of the key in each row, as unsigned numbers; Spark's are signed.

    Takes the same columns as `key_hash`, and raises the same errors.
    """
    return hash_columns(columns, _XXHASH64, _U(_SEED))


def _xx_ints(words: npt.NDArray[np.uint32], hashes: _Hashes64) -> _Hashes64:
    return _xx_finalize(_mix_int(hashes + (_P5 + _U(4)), words))


def _xx_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes64) -> _Hashes64:
    return _xx_finalize(_mix_long(hashes + (_P5 + _U(8)), longs))


def _xx_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes64
) -> _Hashes64:
    """Hash a range of bytes in each row: stripes of 32, then longs, then an int, then bytes."""
    results = hashes + _P5
    striped = np.flatnonzero(lengths >= _STRIPE_BYTES)
    if len(striped):
        stripes = lengths[striped] >> 5
        results[striped] = _xx_stripes(data, starts[striped], stripes, hashes[striped])
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
    return _xx_finalize(results)


def _xx_stripes(
    data: npt.NDArray[np.uint8], starts: Integers, stripes: Integers, hashes: _Hashes64
) -> _Hashes64:
    """Hash the whole stripes of ranges: each of the four longs of a stripe is hashed separately."""
    lanes: list[_Hashes64] = [hashes + _P1_PLUS_P2, hashes + _P2, hashes.copy(), hashes - _P1]
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
def _mix_long(hashes: _Hashes64, longs: npt.NDArray[np.uint64]) -> _Hashes64:
    mixed = _rotate(longs * _P2, 31)
    mixed *= _P1
    mixed ^= hashes
    mixed = _rotate(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _mix_int(hashes: _Hashes64, ints: npt.NDArray[np.uint32]) -> _Hashes64:
    return _rotate(hashes ^ ints.astype(_U) * _P1, 23) * _P2 + _P3


def _rotate(words: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    number = words.dtype.type
    rotated: npt.NDArray[Any] = words << number(bits)
    rotated |= words >> number(8 * words.dtype.itemsize - bits)
    return rotated


def _xx_finalize(hashes: _Hashes64) -> _Hashes64:
    """Mix each bit into all others."""
    spread = hashes ^ hashes >> _U(33)
    spread *= _P2
    spread ^= spread >> _U(29)
    spread *= _P3
    spread ^= spread >> _U(32)
    return spread


_XXHASH64 = HashFunction(_xx_ints, _xx_longs, _xx_bytes)
