"""The hash that rows are dealt by, in Python: it says which subtask has the state of a key.

Spark deals rows in the JVM, by `pmod(hash(columns...), max_parallelism)`; here is the same over Arrow,
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
    hashes_of,
    numbers_at,
)
from holdfast.backends.keys.key_groups import key_group_range, operator_index_for_key_group
from holdfast.errors import InvalidRequestError

KEY_HASH = "spark-murmur3-42"
"""Names the hash in checkpoints: Spark's Murmur3, seed 42."""

_SEED = 42

_Hashes = npt.NDArray[np.uint32]


def key_hash(columns: Sequence[pa.Array]) -> pa.Int32Array:
    """Spark's `hash` of the key in each row.

    Booleans, signed integers, floats, decimals of 128 bits, strings, bytes, dates, timestamps and
    durations in microseconds, nulls; arrays and structs of these. A null leaves the hash as it is;
    0.0 and -0.0 are one key, and so are all NaNs. Strings are hashed by their UTF-8: columns with a
    collation have another hash in Spark.

    Args:
        columns: The key's columns, all of one length; in another order they have another hash.

    Returns:
        As many hashes as there are rows.

    Raises:
        InvalidRequestError: There are no columns, or they differ in length, or one is of another
            type, such as a map, which Spark doesn't hash either.
    """
    hashes = hashes_of(columns, _MURMUR3, np.uint32(_SEED))
    return pa.array(hashes.view(np.int32), pa.int32())


def key_group_of(key: Mapping[str, object], schema: pa.Schema, max_parallelism: int) -> int:
    """The key group of one key.

    Args:
        key: A value for each of the key's columns, by name.
        schema: The key's columns alone, in the order in which the operator is keyed by them. Types
            matter: the long 5 has another hash than the int 5.
        max_parallelism: Number of key groups, 1 to 32768.

    Returns:
        0 <= group < max_parallelism.

    Raises:
        InvalidRequestError: `key` and `schema` name different columns, a value doesn't fit its
            column's type, the type can't be a key's, or `max_parallelism` is out of bounds.
    """
    groups = key_group_range(max_parallelism, 1, 0)
    if key.keys() != set(schema.names) or len(schema.names) != len(key):
        message = (
            f"the key has {_listed(list(key))}, and the schema {_listed(schema.names)}; both name "
            "the columns that the operator is keyed by, and no others"
        )
        raise InvalidRequestError(message)
    columns = [_column(key[field.name], field) for field in schema]
    return int(key_hash(columns)[0].as_py()) % len(groups)


def subtask_of_key(
    key: Mapping[str, object], schema: pa.Schema, *, max_parallelism: int, parallelism: int
) -> int:
    """The subtask that has the state of one key.

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


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "no column"


def _column(value: object, field: pa.Field) -> pa.Array:
    """A column of one row. Errors don't show the value: a key may be private."""
    if isinstance(value, datetime) and pa.types.is_timestamp(field.type):
        has, wants = value.tzinfo is not None, field.type.tz is not None
        if has != wants:  # Arrow would guess
            message = (
                f"key column {field.name!r} is of type {field.type}; give it a datetime "
                f"{'with' if wants else 'without'} a time zone"
            )
            raise InvalidRequestError(message)
    try:
        column = pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fits = False
    else:  # Arrow makes 0 of 0.5, but floats may lose digits
        lossy = pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
        fits = lossy or column[0].as_py() == value
    if not fits:
        message = (
            f"key column {field.name!r} is of type {field.type}, and the {type(value).__name__} "
            "that was given doesn't fit it"
        )
        raise InvalidRequestError(message)
    return column


# Java's integers overflow without a word, as numpy's do in arrays.
def _of_ints(words: _Hashes, hashes: _Hashes) -> _Hashes:
    return _finished(_mixed(hashes, words), np.uint32(4))


def _of_longs(longs: npt.NDArray[np.uint64], hashes: _Hashes) -> _Hashes:
    low, high = longs.astype(np.uint32), (longs >> 32).astype(np.uint32)
    return _finished(_mixed(_mixed(hashes, low), high), np.uint32(8))


def _of_bytes(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, hashes: _Hashes
) -> _Hashes:
    """Hash a range of bytes in each row: words of four, then each byte that is left as a word."""
    hashes = hashes.copy()
    for position, rows in by_position(lengths >> 2):  # a shift, because NumPy divides slowly
        words = numbers_at(data, "<u4", starts[rows] + 4 * position)
        hashes[rows] = _mixed(hashes[rows], words)
    at = starts + (lengths & ~3)
    signed = data.view(np.int8)  # Spark widens bytes with their sign
    for position, rows in by_position(lengths & 3):
        left = signed[at[rows] + position].astype(np.int32)
        hashes[rows] = _mixed(hashes[rows], left.view(np.uint32))
    return _finished(hashes, lengths.astype(np.uint32))


# What is new here is changed in place, as in `spark_xxhash64`.
def _mixed(hashes: _Hashes, words: _Hashes) -> _Hashes:
    mixed = _rotated(words * np.uint32(0xCC9E2D51), 15)
    mixed *= np.uint32(0x1B873593)
    mixed ^= hashes
    mixed = _rotated(mixed, 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    return mixed


def _rotated(words: _Hashes, bits: int) -> _Hashes:
    rotated = words << np.uint32(bits)
    rotated |= words >> np.uint32(32 - bits)
    return rotated


def _finished(hashes: _Hashes, length: "np.uint32 | _Hashes") -> _Hashes:
    """Spread what each bit says over all bits. `length` is the length of the input in bytes."""
    spread = hashes ^ length
    spread ^= spread >> np.uint32(16)
    spread *= np.uint32(0x85EBCA6B)
    spread ^= spread >> np.uint32(13)
    spread *= np.uint32(0xC2B2AE35)
    spread ^= spread >> np.uint32(16)
    return spread


_MURMUR3 = HashFunction(_of_ints, _of_longs, _of_bytes)
