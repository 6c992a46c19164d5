"""Rows of Arrow columns as Python values that are hashable, equal where rows are, and exactly the same when they come back."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import is_bytes, is_text

_INTEGERS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_PLAIN = (
    types.is_null,
    types.is_boolean,
    types.is_integer,
    types.is_fixed_size_binary,
    is_text,
    is_bytes,
)


def cells_of(column: pa.Array) -> list[Any]:
    """A value for each row; None for null.

    Floats and times are the integers that Arrow stores of them, and decimals its bytes: Python has no object for some
    times, and no NaN equals another. Lists and structs are tuples. Rows of other types, such as maps, are arrays of one
    row, which are not hashable.
    """
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return cells_of(column.storage)
    if _stored_as(kind) is not None:
        return list(column.view(_stored_as(kind)).to_pylist())
    if types.is_struct(kind):
        children = [cells_of(column.field(index)) for index in range(kind.num_fields)]
        rows: list[Any] = list(zip(*children, strict=True)) if children else [()] * len(column)
        return _with_nulls(rows, column)
    if _is_list(kind):
        offsets = column.offsets.to_pylist()
        elements = cells_of(column.values)
        lists = [tuple(elements[first:end]) for first, end in pairwise(offsets)]
        return _with_nulls(lists, column)
    if any(is_kind(kind) for is_kind in _PLAIN):
        return list(column.to_pylist())
    # A copy, because a slice would keep the whole column in memory.
    return [pa.concat_arrays([column.slice(row, 1)]) for row in range(len(column))]


def column_of(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The column whose cells these are; None is null."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, column_of(cells, kind.storage_type))
    if _stored_as(kind) is not None:
        return pa.array(cells, _stored_as(kind)).view(kind)
    if types.is_struct(kind):
        missing = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
        children = [
            column_of([None if cell is None else cell[index] for cell in cells], field.type)
            for index, field in enumerate(kind)
        ]
        if not children:
            return pa.array([None if cell is None else {} for cell in cells], kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(missing))
    if _is_list(kind):
        missing = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
        lengths = [0 if cell is None else len(cell) for cell in cells]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        elements = [element for cell in cells if cell is not None for element in cell]
        is_large = types.is_large_list(kind)
        make = pa.LargeListArray if is_large else pa.ListArray
        return make.from_arrays(
            pa.array(offsets, pa.int64() if is_large else pa.int32()),
            column_of(elements, kind.value_type),
            type=kind,
            mask=pa.array(missing),
        )
    if any(is_kind(kind) for is_kind in _PLAIN):
        column = pa.array(cells, kind)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    nothing = pa.nulls(1, kind)
    rows = [nothing if cell is None else cell for cell in cells]
    return pa.concat_arrays(rows) if rows else pa.array([], kind)


def _stored_as(kind: pa.DataType) -> pa.DataType | None:
    """The integers that floats and times are stored as, and the bytes of decimals; None for other types."""
    if types.is_decimal(kind):
        return pa.binary(kind.byte_width)
    if types.is_floating(kind) or types.is_temporal(kind):
        return None if types.is_interval(kind) else _INTEGERS[kind.bit_width]
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _with_nulls(rows: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return rows
    valid = column.is_valid().to_pylist()
    return [row if is_there else None for row, is_there in zip(rows, valid, strict=True)]
