"""Columns of rows, known by position.

A column of numbers or times without nulls is a NumPy array of what Arrow stores of them: a time is a
number there. Any other column is an Arrow array. NumPy takes and compares numbers in a third of the time.
"""

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow import conform, equal_numbers, equal_rows, mapped_type
from holdfast.errors import InvalidRequestError

Column: TypeAlias = npt.NDArray[Any] | pa.Array
Rows = npt.NDArray[np.int64]
"""Positions of rows."""

_TIMES = (
    types.is_timestamp,
    types.is_time,
    types.is_duration,
    types.is_date,
)


def plain_type(type: pa.DataType) -> np.dtype[Any] | None:
    """How NumPy holds a column of that type without nulls; None if Arrow keeps it."""
    if types.is_integer(type) or types.is_floating(type):
        dtype: np.dtype[Any] = np.dtype(type.to_pandas_dtype())
        return dtype
    if any(is_kind(type) for is_kind in _TIMES):
        return np.dtype(f"<i{type.bit_width // 8}")
    return None


def from_arrow(array: pa.Array | pa.ChunkedArray) -> Column:
    """The column of an Arrow array, without a copy where that is possible. Raises what `side_by_side` does."""
    array = whole(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    held = held_type(array.type)
    if types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    elif held != array.type:
        array = conform(array, held)
    plain = plain_type(array.type)
    if plain is None or array.null_count:
        return array
    if not len(array):
        return np.empty(0, plain)
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, plain, len(array), array.offset * plain.itemsize)


def to_arrow(
    column: Column, type: pa.DataType, present: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """The column as an Arrow array of the type that it was made of.

    Args:
        column: The column.
        type: The type.
        present: Which rows are there, for a column of NumPy; the others become null. None if all are.
    """
    if isinstance(column, np.ndarray):
        data = pa.py_buffer(np.ascontiguousarray(column))
        bits = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        column = pa.Array.from_buffers(held_type(type), len(column), [bits, data])
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, to_arrow(column, type.storage_type))
    if types.is_run_end_encoded(type):
        return pc.run_end_encode(column, run_end_type=type.run_end_type)
    return conform(column, type)


def held_type(type: pa.DataType) -> pa.DataType:
    """The type of an Arrow column that is made of arrays of a type: Arrow can't take rows of all types."""
    if isinstance(type, pa.BaseExtensionType):
        return held_type(type.storage_type)
    if types.is_run_end_encoded(type):
        return type.value_type
    return mapped_type(type, _without_views)


def _without_views(type: pa.DataType) -> pa.DataType:
    if types.is_string_view(type):
        return pa.large_string()
    return pa.large_binary() if types.is_binary_view(type) else type


def take(column: Column, rows: npt.NDArray[Any]) -> Column:
    """The column's values at these rows."""
    if isinstance(column, np.ndarray):
        return column.take(rows)
    return column.take(pa.array(rows))


def take_arrow(array: pa.Array, rows: Rows) -> pa.Array:
    """The values of an Arrow array at these rows, by NumPy where it holds them: with less memory than Arrow."""
    return to_arrow(take(from_arrow(array), rows), array.type)


def take_or_null(column: Column, rows: Rows, type: pa.DataType) -> pa.Array:
    """The values at these rows as an Arrow array; null where a row is negative."""
    array = to_arrow(column, held_type(type))
    return to_arrow(array.take(pa.array(rows, mask=rows < 0)), type)


def cut(column: Column, first: int, end: int) -> Column:
    """The rows from `first` up to `end`, without a copy."""
    if isinstance(column, np.ndarray):
        return column[first:end]
    return column.slice(first, end - first)


def concatenated(columns: Sequence[Column], type: pa.DataType) -> Column:
    """All rows, one column behind the other; there is at least one."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(cast("list[npt.NDArray[Any]]", columns))
    held = held_type(type)
    return side_by_side([to_arrow(column, held) for column in columns])


def side_by_side(arrays: Sequence[pa.Array]) -> pa.Array:
    """The arrays, one behind the other; there is at least one.

    Raises:
        InvalidRequestError: They are more than one array of their type holds.
    """
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:  # types are alike, so offsets have no room
        message = (
            f"a state has more values of type {arrays[0].type} in one place than the 2 GiB that such a column "
            "holds; give it large_string or large_binary, which stored values can become, or its operator more "
            "subtasks"
        )
        raise InvalidRequestError(message) from error


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as a single array. Raises what `side_by_side` does."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return side_by_side(column.chunks) if column.num_chunks else pa.array([], column.type)


def same_rows(
    left: Sequence[Column], left_rows: Rows, right: Sequence[Column], right_rows: Rows
) -> npt.NDArray[np.bool_]:
    """Row by row: whether all columns are equal. Null equals null, NaN equals NaN, 0.0 equals -0.0."""
    same = np.ones(len(left_rows), bool)
    for left_column, right_column in zip(left, right, strict=True):
        same &= _same(take(left_column, left_rows), take(right_column, right_rows))
    return same


def _same(left: Column, right: Column) -> npt.NDArray[np.bool_]:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return equal_numbers(left, right)
    type = left.type if isinstance(left, pa.Array) else cast("pa.Array", right).type
    return equal_rows(to_arrow(left, type), to_arrow(right, type))


def _values_of(column: Column) -> list[Hashable]:
    """Values that are equal, as Python has it, where the rows are."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "f":
            column = np.where(column == 0, column.dtype.type(0), column)  # 0.0 and -0.0
            nan = np.isnan(column)
            bits = column.view(f"<i{column.itemsize}")
            return cast("list[Hashable]", np.where(nan, np.int64(-1), bits).tolist())
        return cast("list[Hashable]", column.tolist())
    return [_hashable(value) for value in column.to_pylist()]


def values_of_rows(columns: Sequence[Column], rows: Rows) -> list[tuple[Hashable, ...]]:
    """The rows as tuples that are equal where the rows are: for few rows, by Python."""
    return list(zip(*(_values_of(take(column, rows)) for column in columns), strict=True))


def _hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, float) and value != value:  # noqa: PLR0124  # NaN
        return "NaN"
    return value
