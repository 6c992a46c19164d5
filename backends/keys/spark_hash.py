"""The hash that partitions rows, in Python: it determines the subtask that has the state of a key.

Spark partitions rows in the JVM, by `pmod(hash(columns...), max_parallelism)`; this is the same hash over Arrow arrays,
bit by bit.

Source:
    Spark, HashExpression, Murmur3Hash and Murmur3_x86_32.hashUnsafeBytes.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

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

_Hashes = npt.NDArray[np.uint32]


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
def _hash_ints(words: _Hashes, hashes: _Hashes) -> _Hashes:
    return _finalize(_mix(hashes, words), np.uint32(4))


def _hash_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes) -> _Hashes:
    low, high = longs.astype(np.uint32), (longs >> 32).astype(np.uint32)
    return _finalize(_mix(_mix(hashes, low), high), np.uint32(8))


def _hash_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes
) -> _Hashes:
    """Hash a range of bytes in each row: words of four bytes, then each remaining byte as a word."""
    hashes = hashes.copy()
    for position, rows in by_position(lengths >> 2):  # a shift, because division is slow in NumPy
        words = read_numbers(data, "<u4", starts[rows] + 4 * position)
        hashes[rows] = _mix(hashes[rows], words)
    at = starts + (lengths & ~3)
    signed = data.view(np.int8)  # Spark widens bytes with their sign
    for position, rows in by_position(lengths & 3):
        rest = signed[at[rows] + position].astype(np.int32)
        hashes[rows] = _mix(hashes[rows], rest.view(np.uint32))
    return _finalize(hashes, lengths.astype(np.uint32))


# New arrays are changed in place, as in `spark_xxhash64`.
def _mix(hashes: _Hashes, words: _Hashes) -> _Hashes:
    mixed = _rotate(words * np.uint32(0xCC9E2D51), 15)
    mixed *= np.uint32(0x1B873593)
    mixed ^= hashes
    mixed = _rotate(mixed, 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    return mixed


def _rotate(words: _Hashes, bits: int) -> _Hashes:
    rotated = words << np.uint32(bits)
    rotated |= words >> np.uint32(32 - bits)
    return rotated


def _finalize(hashes: _Hashes, length: "np.uint32 | _Hashes") -> _Hashes:
    """Mix each bit into all others. `length` is the length of the input in bytes."""
    spread = hashes ^ length
    spread ^= spread >> np.uint32(16)
    spread *= np.uint32(0x85EBCA6B)
    spread ^= spread >> np.uint32(13)
    spread *= np.uint32(0xC2B2AE35)
    spread ^= spread >> np.uint32(16)
    return spread


_MURMUR3 = HashFunction(_hash_ints, _hash_longs, _hash_bytes)
