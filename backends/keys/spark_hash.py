"""The hash that rows are dealt by, in Python: it says which subtask has the state of a key.

Spark deals rows in the JVM, by `pmod(hash(columns...), max_parallelism)`; here is the same over Arrow,
bit by bit.

Source:
    Spark, HashExpression, Murmur3Hash and Murmur3_x86_32.hashUnsafeBytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.keys.key_groups import key_group_range, operator_index_for_key_group
from holdfast.errors import InvalidRequestError

KEY_HASH = "spark-murmur3-42"
"""Names the hash in checkpoints: Spark's Murmur3, seed 42."""

_SEED = 42
_MOST_DIGITS_OF_A_LONG = 18
_DECIMAL_BYTES = 16

_Hashes = npt.NDArray[np.uint32]
_Integers = npt.NDArray[np.int64]


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
    if len({len(column) for column in columns}) != 1:
        message = "a key needs at least one column, and columns that are equally long"
        raise InvalidRequestError(message)
    hashes = np.full(len(columns[0]), _SEED, np.uint32)
    # Java's integers overflow without a word, as numpy's do in arrays.
    for column in columns:
        hashes = _hashed(column, hashes)
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


def _hashed(column: pa.Array, hashes: _Hashes) -> _Hashes:
    """The hashes of the rows after one more column of their key."""
    kind = column.type
    if pa.types.is_null(kind):
        return hashes
    if pa.types.is_struct(kind):
        for child in column.flatten():  # with nulls where the struct is null
            hashes = _hashed(child, hashes)
        return hashes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_lists(column, hashes)
    result = _function_of(kind)(column, hashes)
    return np.where(_is_valid(column), result, hashes) if column.null_count else result


def _function_of(kind: pa.DataType) -> Callable[[pa.Array, _Hashes], _Hashes]:
    """The function that hashes a column of a type, without regard to nulls."""
    of = pa.types
    if of.is_boolean(kind) or of.is_int8(kind) or of.is_int16(kind) or of.is_int32(kind):
        return _with_ints
    if of.is_date32(kind):
        return _with_ints
    if of.is_int64(kind) or ((of.is_timestamp(kind) or of.is_duration(kind)) and kind.unit == "us"):
        return _with_longs
    if of.is_float32(kind) or of.is_float64(kind):
        return _with_floats
    if of.is_decimal128(kind):
        small = kind.precision <= _MOST_DIGITS_OF_A_LONG
        return _with_small_decimals if small else _with_large_decimals
    if of.is_string(kind) or of.is_binary(kind):
        return _with_bytes
    if of.is_large_string(kind) or of.is_large_binary(kind):
        return _with_bytes
    raise InvalidRequestError(f"a column of type {kind} can't be part of a key; cast it")


def _is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(column: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    """The values, with 0 for nulls: as numbers they would become floats."""
    values = column.cast(kind)
    if values.null_count:
        values = pc.fill_null(values, 0)
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _with_ints(column: pa.Array, hashes: _Hashes) -> _Hashes:
    return _with_words(_numbers(column, pa.int32()).view(np.uint32), hashes)


def _with_longs(column: pa.Array, hashes: _Hashes) -> _Hashes:
    return _with_double_words(_numbers(column, pa.int64()).view(np.uint64), hashes)


def _with_floats(column: pa.Array, hashes: _Hashes) -> _Hashes:
    values = _numbers(column, column.type)
    values = np.where(values == 0, 0, values)  # -0.0 too
    # Java counts every NaN as the one that numpy writes.
    values = np.where(np.isnan(values), np.nan, values).astype(column.type.to_pandas_dtype())
    if pa.types.is_float32(column.type):
        return _with_words(values.view(np.uint32), hashes)
    return _with_double_words(values.view(np.uint64), hashes)


def _with_small_decimals(column: pa.Array, hashes: _Hashes) -> _Hashes:
    return _with_double_words(_unscaled(column).view(np.uint64)[:, 0], hashes)


def _with_large_decimals(column: pa.Array, hashes: _Hashes) -> _Hashes:
    # As Java's BigInteger.toByteArray: the highest byte first, and no more bytes than needed to
    # tell the sign.
    digits = np.ascontiguousarray(_unscaled(column)[:, ::-1])
    negative = digits[:, :1] >> 7
    sign = np.where(negative, np.uint8(0xFF), np.uint8(0))
    spare = (digits[:, :-1] == sign) & (digits[:, 1:] >> 7 == negative)
    skipped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts: _Integers = np.arange(len(column)) * _DECIMAL_BYTES + skipped
    lengths: _Integers = _DECIMAL_BYTES - skipped
    return _with_ranges(digits.reshape(-1), starts, lengths, hashes)


def _unscaled(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The decimals' digits as integers of 16 bytes, the lowest byte first."""
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = column.offset * _DECIMAL_BYTES
    return data[start : start + len(column) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)


def _with_bytes(column: pa.Array, hashes: _Hashes) -> _Hashes:
    _, offsets, data = column.buffers()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    bounds: npt.NDArray[Any] = np.frombuffer(offsets or bytes(8), np.int64 if large else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(bounds) * _is_valid(column)
    return _with_ranges(np.frombuffer(data or b"", np.uint8), bounds[:-1], lengths, hashes)


def _with_ranges(
    data: npt.NDArray[np.uint8], starts: _Integers, lengths: _Integers, hashes: _Hashes
) -> _Hashes:
    """Hash a range of bytes in each row: words of four, then each byte that is left as a word."""
    hashes = hashes.copy()
    words = np.ndarray(max(len(data) - 3, 0), "<u4", data, strides=(1,))  # from each byte on
    for position, rows in _by_position(lengths // 4):
        hashes[rows] = _mixed(hashes[rows], words[starts[rows] + 4 * position])
    whole = lengths - lengths % 4
    signed = data.view(np.int8)  # Spark widens bytes with their sign
    for position, rows in _by_position(lengths % 4):
        left = signed[starts[rows] + whole[rows] + position].astype(np.int32)
        hashes[rows] = _mixed(hashes[rows], left.view(np.uint32))
    return _finished(hashes, lengths.astype(np.uint32))


def _with_lists(column: pa.Array, hashes: _Hashes) -> _Hashes:
    """Hash the elements of each row one after another."""
    hashes = hashes.copy()
    bounds = column.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(bounds) * _is_valid(column)
    _hashed(column.values[:0], hashes[:0])  # refuses the type, whatever the lengths are
    for position, rows in _by_position(lengths):
        elements = column.values.take(pa.array(bounds[rows] + position))
        hashes[rows] = _hashed(elements, hashes[rows])
    return hashes


def _by_position(lengths: _Integers) -> Iterator[tuple[int, _Integers]]:
    """Each position that a row of these lengths has, with the rows that have it."""
    longest_first = np.argsort(-lengths, kind="stable")
    ascending = -lengths[longest_first]
    for position in range(int(lengths.max(initial=0))):
        yield position, longest_first[: np.searchsorted(ascending, -position)]


def _with_words(words: _Hashes, hashes: _Hashes) -> _Hashes:
    return _finished(_mixed(hashes, words), np.uint32(4))


def _with_double_words(longs: npt.NDArray[np.uint64], hashes: _Hashes) -> _Hashes:
    low, high = longs.astype(np.uint32), (longs >> 32).astype(np.uint32)
    return _finished(_mixed(_mixed(hashes, low), high), np.uint32(8))


def _mixed(hashes: _Hashes, words: _Hashes) -> _Hashes:
    words = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashes ^ words, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated(words: _Hashes, bits: int) -> _Hashes:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def _finished(hashes: _Hashes, length: "np.uint32 | _Hashes") -> _Hashes:
    """Spread what each bit says over all bits. `length` is the length of the input in bytes."""
    hashes = hashes ^ length
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)
