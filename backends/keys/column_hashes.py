"""Spark's hashing of a key's columns, for any hash function: the bytes of each value, and their order.

A value is hashed as an int, a long or a range of bytes, seeded with the hash of the previous values. A null leaves the
hash unchanged.

Source:
    Spark, HashExpression and InterpretedHashFunction.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidRequestError

Hashes = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Rows = slice | Integers

_CHUNK_ROWS = 1 << 15
"""Few enough that intermediate results stay in the processor's cache, which halves the time."""

_MAX_LONG_DIGITS = 18
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class HashFunction:
    """A hash function for three kinds of values; each takes the previous hashes of the rows, and returns the next.

    Attributes:
        hash_ints: Hashes 32 bits of each row, given as uint32.
        hash_longs: Hashes 64 bits of each row, given as uint64.
        hash_bytes: Hashes a range of bytes of each row, given as all bytes, starts and lengths.
    """

    hash_ints: Callable[[npt.NDArray[np.uint32], Hashes], Hashes]
    hash_longs: Callable[[npt.NDArray[np.uint64], Hashes], Hashes]
    hash_bytes: Callable[[npt.NDArray[np.uint8], Integers, Integers, Hashes], Hashes]


def hash_columns(columns: Sequence[pa.Array], function: HashFunction, seed: np.generic) -> Hashes:
    """Hash the key in each row; the hashes have the type of `seed`.

    Raises `InvalidRequestError` if there are no columns, they differ in length, or Spark doesn't hash a column's type
    by value.
    """
    if len({len(column) for column in columns}) != 1:
        raise InvalidRequestError("a key must have one or more columns of equal length")
    for column in columns:
        check_key_type(column.type)
    hashes = np.full(len(columns[0]), seed)
    for first in range(0, len(hashes), _CHUNK_ROWS):
        chunk = slice(first, first + _CHUNK_ROWS)
        for column in columns:
            hashes[chunk] = _hash_column(column[chunk], function, hashes[chunk])
    return hashes


def check_key_type(kind: pa.DataType) -> None:
    """Reject a type that can't be part of a key. Raises `InvalidRequestError`."""
    if kind.id in _HASHERS:
        return
    if pa.types.is_struct(kind):
        for field in kind:
            check_key_type(field.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check_key_type(kind.value_type)
    elif not pa.types.is_null(kind):
        _hasher_of(kind)


def read_numbers(data: npt.NDArray[np.uint8], kind: str, at: Integers) -> npt.NDArray[Any]:
    """Read numbers of a type, such as `<u8`, at these byte positions."""
    step = int(at[1] - at[0]) if len(at) > 1 else 0
    if step > 0 and at[-1] - at[0] == step * (len(at) - 1) and (np.diff(at) == step).all():
        # Identifiers usually have equal lengths: a view takes a tenth of the time of gathering.
        return np.ndarray(len(at), kind, data, int(at[0]), (step,))
    places = max(len(data) - np.dtype(kind).itemsize + 1, 0)
    numbers: npt.NDArray[Any] = np.ndarray(places, kind, data, strides=(1,))[at]
    return numbers


def by_position(lengths: Integers) -> Iterator[tuple[int, Rows]]:
    """Iterate over positions below the maximum length, with the rows that are longer than the position."""
    longest = int(lengths.max(initial=0))
    if not longest:
        return
    if longest == lengths.min():
        for position in range(longest):
            yield position, slice(None)
        return
    longest_first = np.argsort(-lengths, kind="stable")
    ascending = -lengths[longest_first]
    for position in range(longest):
        yield position, longest_first[: np.searchsorted(ascending, -position)]


def _hash_column(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    """Update the hashes of the rows with a column."""
    kind = column.type
    if pa.types.is_null(kind):
        return hashes
    if pa.types.is_struct(kind):
        for child in column.flatten():  # with nulls where the struct is null
            hashes = _hash_column(child, function, hashes)
        return hashes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_lists(column, function, hashes)
    result = _hasher_of(kind)(column, function, hashes)
    return np.where(_is_valid(column), result, hashes) if column.null_count else result


def _hasher_of(kind: pa.DataType) -> Callable[[pa.Array, HashFunction, Hashes], Hashes]:
    """Return the function that hashes columns of a type, regardless of nulls."""
    hasher = _HASHERS.get(kind.id)
    if hasher is not None:
        return hasher
    types = pa.types
    if (types.is_timestamp(kind) or types.is_duration(kind)) and kind.unit == "us":
        return _hash_longs
    if types.is_decimal128(kind):
        is_small = kind.precision <= _MAX_LONG_DIGITS
        return _hash_small_decimals if is_small else _hash_large_decimals
    suggestion = "cast it"
    if types.is_map(kind):
        suggestion = (
            "equal maps can have their entries in different orders. Use a sorted list of its entries instead, "
            "such as array_sort(map_entries(…)) in Spark, or text, such as json.dumps(…, sort_keys=True)"
        )
    raise InvalidRequestError(f"a column of type {kind} can't be part of a key; {suggestion}")


def _is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(column: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    """Return the values as numbers, with 0 for nulls, which would turn integers into floats."""
    values = column.cast(kind)
    if values.null_count:
        values = pc.fill_null(values, 0)
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _hash_ints(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.hash_ints(_numbers(column, pa.int32()).view(np.uint32), hashes)


def _hash_longs(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.hash_longs(_numbers(column, pa.int64()).view(np.uint64), hashes)


def _hash_floats(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    values = _numbers(column, column.type)
    values = np.where(values == 0, 0, values)  # also -0.0
    # Java hashes every NaN as the one that NumPy writes.
    values = np.where(np.isnan(values), np.nan, values).astype(column.type.to_pandas_dtype())
    if pa.types.is_float32(column.type):
        return function.hash_ints(values.view(np.uint32), hashes)
    return function.hash_longs(values.view(np.uint64), hashes)


def _hash_small_decimals(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.hash_longs(_unscaled_values(column).view(np.uint64)[:, 0], hashes)


def _hash_large_decimals(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    # As Java's BigInteger.toByteArray: big-endian, with the fewest bytes that keep the sign.
    digits = np.ascontiguousarray(_unscaled_values(column)[:, ::-1])
    negative = digits[:, :1] >> 7
    sign = np.where(negative, np.uint8(0xFF), np.uint8(0))
    spare = (digits[:, :-1] == sign) & (digits[:, 1:] >> 7 == negative)
    skipped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts: Integers = np.arange(len(column)) * _DECIMAL_BYTES + skipped
    lengths: Integers = _DECIMAL_BYTES - skipped
    return function.hash_bytes(digits.reshape(-1), starts, lengths, hashes)


def _unscaled_values(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the unscaled values of decimals as little-endian integers of 16 bytes."""
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = column.offset * _DECIMAL_BYTES
    return data[start : start + len(column) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)


def _hash_bytes(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    _, offsets, data = column.buffers()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    bounds: npt.NDArray[Any] = np.frombuffer(offsets or bytes(8), np.int64 if large else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(bounds) * _is_valid(column)
    return function.hash_bytes(np.frombuffer(data or b"", np.uint8), bounds[:-1], lengths, hashes)


def _hash_lists(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    """Hash the elements of each row in order."""
    hashes = hashes.copy()
    bounds = column.offsets.to_numpy().astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds) * _is_valid(column)
    for position, rows in by_position(lengths):
        elements = column.values.take(pa.array(starts[rows] + position))
        hashes[rows] = _hash_column(elements, function, hashes[rows])
    return hashes


_HASHERS: Mapping[int, Callable[[pa.Array, HashFunction, Hashes], Hashes]] = {
    kind.id: hasher
    for hasher, kinds in (
        (_hash_ints, (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())),
        (_hash_longs, (pa.int64(),)),
        (_hash_floats, (pa.float32(), pa.float64())),
        (_hash_bytes, (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())),
    )
    for kind in kinds
}
"""The functions for types without parameters, by Arrow's number of the type."""
