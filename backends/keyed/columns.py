"""Columns of keyed rows: rows are known by position, and nothing is known of keys.

A column of numbers or times without nulls is a NumPy array of Arrow's storage values, so that a time is a
number there. Any other column is an Arrow array. NumPy takes and compares numbers in a third of Arrow's time.

Cells are rows as Python values: hashable, equal where the rows are, and converted back without a change.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow import (
    conform,
    equal_numbers,
    equal_rows,
    is_bytes,
    is_text,
    mapped_type,
    plain_floats,
    run_starts,
)
from holdfast.errors import InvalidRequestError

Column: TypeAlias = npt.NDArray[Any] | pa.Array
Rows = npt.NDArray[np.int64]
"""Positions of rows."""

_TIMES = (types.is_timestamp, types.is_time, types.is_duration, types.is_date)
_INTEGERS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_PLAIN_CELLS = (
    types.is_null,
    types.is_boolean,
    types.is_integer,
    types.is_fixed_size_binary,
    is_text,
    is_bytes,
)


def numpy_type(type: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type of columns of an Arrow type without nulls; None if they are Arrow arrays."""
    if types.is_integer(type) or types.is_floating(type):
        dtype: np.dtype[Any] = np.dtype(type.to_pandas_dtype())
        return dtype
    if any(is_type(type) for is_type in _TIMES):
        return np.dtype(f"<i{type.bit_width // 8}")
    return None


def from_arrow(array: pa.Array | pa.ChunkedArray) -> Column:
    """Make a column of an Arrow array, without a copy where possible. Raises as `concatenate_arrays`."""
    array = combine_chunks(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type = column_type(array.type)
    if types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    elif type != array.type:
        array = conform(array, type)
    dtype = numpy_type(array.type)
    if dtype is None or array.null_count:
        return array
    if not len(array):
        return np.empty(0, dtype)
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def to_arrow(
    column: Column, type: pa.DataType, present: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Make an Arrow array of a column; `type` is that of the array that the column was made of.

    Rows of a NumPy array become null if they are not `present`.
    """
    if isinstance(column, np.ndarray):
        data = pa.py_buffer(np.ascontiguousarray(column))
        bits = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        column = pa.Array.from_buffers(column_type(type), len(column), [bits, data])
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, to_arrow(column, type.storage_type))
    if types.is_run_end_encoded(type):
        return pc.run_end_encode(column, run_end_type=type.run_end_type)
    return conform(column, type)


def to_arrays(columns: Iterable[Column], fields: Iterable[pa.Field]) -> tuple[pa.Array, ...]:
    """Make Arrow arrays of columns of these fields."""
    pairs = zip(columns, fields, strict=True)
    return tuple(to_arrow(column, field.type) for column, field in pairs)


def column_type(type: pa.DataType) -> pa.DataType:
    """Return the Arrow type of columns made of arrays of a type: Arrow can't take rows of all types."""
    if isinstance(type, pa.BaseExtensionType):
        return column_type(type.storage_type)
    if types.is_run_end_encoded(type):
        return type.value_type
    return mapped_type(type, _without_views)


def _without_views(type: pa.DataType) -> pa.DataType:
    if types.is_string_view(type):
        return pa.large_string()
    return pa.large_binary() if types.is_binary_view(type) else type


def take(column: Column, rows: npt.NDArray[Any]) -> Column:
    if isinstance(column, np.ndarray):
        return column.take(rows)
    return column.take(pa.array(rows))


def positions_between(starts: Rows, ends: Rows) -> Rows:
    """Return all positions of ranges, concatenated; an end before its start is an empty range."""
    lengths = np.maximum(ends, starts) - starts
    positions = np.repeat(starts + lengths - np.cumsum(lengths), lengths)
    positions += np.arange(len(positions))
    return positions


def take_arrow(array: pa.Array, rows: Rows) -> pa.Array:
    """Return the values of an Arrow array at these rows; through NumPy, with less memory, where possible."""
    return to_arrow(take(from_arrow(array), rows), array.type)


def take_or_null(column: Column, rows: Rows, type: pa.DataType) -> pa.Array:
    """Return the values at these rows as an Arrow array; null where a row is negative."""
    array = to_arrow(column, column_type(type))
    return to_arrow(array.take(pa.array(rows, mask=rows < 0)), type)


def cut(column: Column, first: int, end: int) -> Column:
    """Return the rows from `first` up to `end`, without a copy."""
    if isinstance(column, np.ndarray):
        return column[first:end]
    return column.slice(first, end - first)


def concatenate(columns: Sequence[Column], type: pa.DataType) -> Column:
    """Concatenate columns of a type; there must be at least one."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(cast("list[npt.NDArray[Any]]", columns))
    arrow_type = column_type(type)
    return concatenate_arrays([to_arrow(column, arrow_type) for column in columns])


def concatenate_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate Arrow arrays of one type; there must be at least one.

    Raises `InvalidRequestError` if the values exceed one array of their type.
    """
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:  # the types are equal, so the offsets overflow
        message = (
            f"state values of type {arrays[0].type} in one place exceed 2 GiB, the limit of such a column; "
            "use large_string or large_binary, which stored values can be migrated to, or run the operator "
            "with more subtasks"
        )
        raise InvalidRequestError(message) from error


def combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as a single array. Raises as `concatenate_arrays`."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return concatenate_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def same_rows(
    left: Sequence[Column], left_rows: Rows, right: Sequence[Column], right_rows: Rows
) -> npt.NDArray[np.bool_]:
    """Compare rows in all columns. Null equals null, NaN equals NaN, 0.0 equals -0.0."""
    same = np.ones(len(left_rows), bool)
    for left_column, right_column in zip(left, right, strict=True):
        same &= _same(take(left_column, left_rows), take(right_column, right_rows))
    return same


def _same(left: Column, right: Column) -> npt.NDArray[np.bool_]:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return equal_numbers(left, right)
    type = left.type if isinstance(left, pa.Array) else cast("pa.Array", right).type
    return equal_rows(to_arrow(left, type), to_arrow(right, type))


def group_equal_rows(
    order: Rows, sort_keys: npt.NDArray[np.uint64], columns: Sequence[Column]
) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Bring rows with equal columns together, also where unequal rows share a sort key.

    Rows are in ascending order of their sort keys, which are given in this order; equal rows have equal ones. Returns
    the order in which equal rows are adjacent, and in the given order; and whether each row is the first of its group.
    """
    is_first = run_starts(sort_keys)
    alike = (~is_first).nonzero()[0]
    if not len(alike):
        return order, is_first
    same = same_rows(columns, order.take(alike), columns, order.take(alike - 1))
    if not same.all():
        order = _resolve_hash_collisions(order, is_first, columns, alike[~same])
        same = same_rows(columns, order.take(alike), columns, order.take(alike - 1))
        is_first[alike[~same]] = True
    return order, is_first


def _resolve_hash_collisions(
    order: Rows, is_new: npt.NDArray[np.bool_], columns: Sequence[Column], unlike: Rows
) -> Rows:
    """Bring equal rows together within the sort keys of the positions `unlike` in the order.

    `is_new` is true where the sort key changes.
    """
    group = np.cumsum(is_new) - 1
    has_collision = np.zeros(int(group[-1]) + 1, bool)
    has_collision[group.take(unlike)] = True
    at = has_collision.take(group).nonzero()[0]
    rows, groups = order.take(at), group.take(at)
    sorted_at = _sort_by_arrow(groups, [take(column, rows) for column in columns])
    if sorted_at is None:
        numbers: dict[tuple[object, ...], int] = {}
        cells = (_comparable_cells(take(column, rows)) for column in columns)
        values = zip(groups.tolist(), *cells, strict=True)
        number = [numbers.setdefault(row, len(numbers)) for row in values]
        sorted_at = np.lexsort((np.array(number), groups))  # stable
    order = order.copy()
    order[at] = rows.take(sorted_at)
    return order


def _sort_by_arrow(groups: Rows, columns: Sequence[Column]) -> Rows | None:
    """Sort positions by group, by row, and then as they are; return None if Arrow can't sort a column."""
    sorted_by = [key for column in columns for key in _columns_to_sort_by(column)]
    table = {f"column {number}": column for number, column in enumerate(sorted_by)}
    keys = [(name, "ascending") for name in ("group", *table, "row")]
    table |= {"group": groups, "row": np.arange(len(groups))}
    try:
        indices = pc.sort_indices(pa.table(table), keys)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    return cast("Rows", indices.to_numpy().astype(np.int64))


def _columns_to_sort_by(column: Column) -> Iterator[Column]:
    """Yield the column; of structs validity and each field, since Arrow takes null for a struct of nulls."""
    if isinstance(column, pa.StructArray):
        yield column.is_valid()
        for field in column.flatten():
            yield from _columns_to_sort_by(field)
    elif isinstance(column, np.ndarray) and column.dtype.kind == "f":
        yield column + column.dtype.type(0)  # -0.0 becomes 0.0, its equal
    else:
        yield column


def _comparable_cells(column: Column) -> list[Any]:
    """Return cells that are equal where the rows are; in Python, so for few rows."""
    return to_cells(plain_floats(pa.array(column) if isinstance(column, np.ndarray) else column))


def to_cells(column: pa.Array) -> list[Any]:
    """Return each row as a Python value; None for null.

    Floats and times become the integers that Arrow stores for them, and decimals their bytes: Python can't represent
    all times, and NaN is unequal to itself. Lists and structs become tuples. Rows of other types, such as maps, become
    arrays of one row, which are not hashable.
    """
    type = column.type
    if isinstance(column, pa.ExtensionArray):
        return to_cells(column.storage)
    if _storage_type(type) is not None:
        return list(column.view(_storage_type(type)).to_pylist())
    if types.is_struct(type):
        children = [to_cells(column.field(index)) for index in range(type.num_fields)]
        rows: list[Any] = list(zip(*children, strict=True)) if children else [()] * len(column)
        return _with_nulls(rows, column)
    if _is_list(type):
        offsets = column.offsets.to_pylist()
        elements = to_cells(column.values)
        lists = [tuple(elements[first:end]) for first, end in pairwise(offsets)]
        return _with_nulls(lists, column)
    if any(is_type(type) for is_type in _PLAIN_CELLS):
        return list(column.to_pylist())
    # A copy, because a slice would keep the whole column in memory.
    return [pa.concat_arrays([column.slice(row, 1)]) for row in range(len(column))]


def from_cells(cells: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Make a column of cells; None becomes null."""
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, from_cells(cells, type.storage_type))
    if _storage_type(type) is not None:
        return pa.array(cells, _storage_type(type)).view(type)
    if types.is_struct(type):
        children = [
            from_cells([None if cell is None else cell[index] for cell in cells], field.type)
            for index, field in enumerate(type)
        ]
        if not children:
            return pa.array([None if cell is None else {} for cell in cells], type)
        return pa.StructArray.from_arrays(children, fields=list(type), mask=_missing(cells))
    if _is_list(type):
        lengths = [0 if cell is None else len(cell) for cell in cells]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        elements = [element for cell in cells if cell is not None for element in cell]
        return list_array(offsets, from_cells(elements, type.value_type), type, _missing(cells))
    if any(is_type(type) for is_type in _PLAIN_CELLS):
        column = pa.array(cells, type)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    null = pa.nulls(1, type)
    rows = [null if cell is None else cell for cell in cells]
    return pa.concat_arrays(rows) if rows else pa.array([], type)


def _storage_type(type: pa.DataType) -> pa.DataType | None:
    """Return the integers that Arrow stores for floats and times, and the bytes of decimals; None for other types."""
    if types.is_decimal(type):
        return pa.binary(type.byte_width)
    if types.is_floating(type) or types.is_temporal(type):
        return None if types.is_interval(type) else _INTEGERS[type.bit_width]
    return None


def list_array(
    offsets: Rows, elements: pa.Array, type: pa.DataType, missing: pa.Array | None
) -> pa.Array:
    """Return an array of lists or large lists; null where the flags are set."""
    make, width = pa.ListArray, pa.int32()
    if types.is_large_list(type):
        make, width = pa.LargeListArray, pa.int64()
    return make.from_arrays(pa.array(offsets, width), elements, type=type, mask=missing)


def _missing(cells: Sequence[Any]) -> pa.Array:
    return pa.array([cell is None for cell in cells], pa.bool_())


def _is_list(type: pa.DataType) -> bool:
    return bool(types.is_list(type) or types.is_large_list(type))


def _with_nulls(rows: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return rows
    valid = column.is_valid().to_pylist()
    return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
