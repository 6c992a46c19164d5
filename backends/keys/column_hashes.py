"""How Spark hashes the columns of a key, whichever hash it is: what is hashed of a value, and in which order.

A value is hashed as an int, a long or a range of bytes, beginning with the hash of what stands before it. A null
leaves that hash as it is.

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
"""So few that what is computed of them stays in the processor's cache: it halves the time."""

_MOST_DIGITS_OF_A_LONG = 18
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class HashFunction:
    """A hash, by the three kinds of values; each takes the hashes before, and returns those after.

    Attributes:
        of_ints: Hashes 32 bits of each row, given as uint32.
        of_longs: Hashes 64 bits of each row, given as uint64.
        of_bytes: Hashes a range of bytes of each row: all bytes, where each range starts, how long it is.
    """

    of_ints: Callable[[npt.NDArray[np.uint32], Hashes], Hashes]
    of_longs: Callable[[npt.NDArray[np.uint64], Hashes], Hashes]
    of_bytes: Callable[[npt.NDArray[np.uint8], Integers, Integers, Hashes], Hashes]


def hashes_of(columns: Sequence[pa.Array], function: HashFunction, seed: np.generic) -> Hashes:
    """The hash of the key in each row, of the type of `seed`.

    Raises:
        InvalidRequestError: There are no columns, or they differ in length, or one is of a type that
            Spark doesn't hash, or not by its value.
    """
    if len({len(column) for column in columns}) != 1:
        message = "a key needs at least one column, and columns that are equally long"
        raise InvalidRequestError(message)
    for column in columns:
        check_hashed(column.type)
    hashes = np.full(len(columns[0]), seed)
    for first in range(0, len(hashes), _CHUNK_ROWS):
        chunk = slice(first, first + _CHUNK_ROWS)
        for column in columns:
            hashes[chunk] = _hashed(column[chunk], function, hashes[chunk])
    return hashes


def check_hashed(kind: pa.DataType) -> None:
    """Refuse a type that can't be part of a key. Raises `InvalidRequestError`."""
    if kind.id in _WAYS:
        return
    if pa.types.is_struct(kind):
        for field in kind:
            check_hashed(field.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check_hashed(kind.value_type)
    elif not pa.types.is_null(kind):
        _way_of(kind)


def numbers_at(data: npt.NDArray[np.uint8], kind: str, at: Integers) -> npt.NDArray[Any]:
    """The numbers of a type, such as `<u8`, that begin at these bytes of the data."""
    step = int(at[1] - at[0]) if len(at) > 1 else 0
    if step > 0 and at[-1] - at[0] == step * (len(at) - 1) and (np.diff(at) == step).all():
        # Identifiers usually are of one length: a view takes a tenth of what gathering takes.
        return np.ndarray(len(at), kind, data, int(at[0]), (step,))
    places = max(len(data) - np.dtype(kind).itemsize + 1, 0)
    numbers: npt.NDArray[Any] = np.ndarray(places, kind, data, strides=(1,))[at]
    return numbers


def by_position(lengths: Integers) -> Iterator[tuple[int, Rows]]:
    """Each position that a row of these lengths has, with the rows that have it."""
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


def _hashed(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    """The hashes of the rows after one more column of their key."""
    kind = column.type
    if pa.types.is_null(kind):
        return hashes
    if pa.types.is_struct(kind):
        for child in column.flatten():  # with nulls where the struct is null
            hashes = _hashed(child, function, hashes)
        return hashes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_lists(column, function, hashes)
    result = _way_of(kind)(column, function, hashes)
    return np.where(_is_valid(column), result, hashes) if column.null_count else result


def _way_of(kind: pa.DataType) -> Callable[[pa.Array, HashFunction, Hashes], Hashes]:
    """How a column of a type is hashed, without regard to nulls."""
    way = _WAYS.get(kind.id)
    if way is not None:
        return way
    of = pa.types
    if (of.is_timestamp(kind) or of.is_duration(kind)) and kind.unit == "us":
        return _with_longs
    if of.is_decimal128(kind):
        small = kind.precision <= _MOST_DIGITS_OF_A_LONG
        return _with_small_decimals if small else _with_large_decimals
    way_out = "cast it"
    if of.is_map(kind):
        way_out = (
            "equal maps can have their entries in different orders. Take a sorted list of its entries instead, "
            "as array_sort(map_entries(…)) makes in Spark, or text, as json.dumps(…, sort_keys=True) does"
        )
    raise InvalidRequestError(f"a column of type {kind} can't be part of a key; {way_out}")


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


def _with_ints(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.of_ints(_numbers(column, pa.int32()).view(np.uint32), hashes)


def _with_longs(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.of_longs(_numbers(column, pa.int64()).view(np.uint64), hashes)


def _with_floats(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    values = _numbers(column, column.type)
    values = np.where(values == 0, 0, values)  # -0.0 too
    # Java counts every NaN as the one that numpy writes.
    values = np.where(np.isnan(values), np.nan, values).astype(column.type.to_pandas_dtype())
    if pa.types.is_float32(column.type):
        return function.of_ints(values.view(np.uint32), hashes)
    return function.of_longs(values.view(np.uint64), hashes)


def _with_small_decimals(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    return function.of_longs(_unscaled(column).view(np.uint64)[:, 0], hashes)


def _with_large_decimals(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    # As Java's BigInteger.toByteArray: the highest byte first, and no more bytes than needed to
    # tell the sign.
    digits = np.ascontiguousarray(_unscaled(column)[:, ::-1])
    negative = digits[:, :1] >> 7
    sign = np.where(negative, np.uint8(0xFF), np.uint8(0))
    spare = (digits[:, :-1] == sign) & (digits[:, 1:] >> 7 == negative)
    skipped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts: Integers = np.arange(len(column)) * _DECIMAL_BYTES + skipped
    lengths: Integers = _DECIMAL_BYTES - skipped
    return function.of_bytes(digits.reshape(-1), starts, lengths, hashes)


def _unscaled(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The decimals' digits as integers of 16 bytes, the lowest byte first."""
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = column.offset * _DECIMAL_BYTES
    return data[start : start + len(column) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)


def _with_bytes(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    _, offsets, data = column.buffers()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    bounds: npt.NDArray[Any] = np.frombuffer(offsets or bytes(8), np.int64 if large else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(bounds) * _is_valid(column)
    return function.of_bytes(np.frombuffer(data or b"", np.uint8), bounds[:-1], lengths, hashes)


def _with_lists(column: pa.Array, function: HashFunction, hashes: Hashes) -> Hashes:
    """Hash the elements of each row one after another."""
    hashes = hashes.copy()
    bounds = column.offsets.to_numpy().astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds) * _is_valid(column)
    for position, rows in by_position(lengths):
        elements = column.values.take(pa.array(starts[rows] + position))
        hashes[rows] = _hashed(elements, function, hashes[rows])
    return hashes


_WAYS: Mapping[int, Callable[[pa.Array, HashFunction, Hashes], Hashes]] = {
    kind.id: way
    for way, kinds in (
        (_with_ints, (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())),
        (_with_longs, (pa.int64(),)),
        (_with_floats, (pa.float32(), pa.float64())),
        (_with_bytes, (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())),
    )
    for kind in kinds
}
"""How columns are hashed whose type has no parameters, by the number that Arrow has for the type."""
