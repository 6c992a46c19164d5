"""Equality of rows as state needs it: null equals null, NaN equals NaN, and nested values are compared, too."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Flags = npt.NDArray[np.bool_]

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def equal_rows(left: pa.Array, right: pa.Array) -> Flags:
    """Whether each row of one array equals the row of the other at its place.

    Floats are equal if their bits are: see `plain_floats`.

    Args:
        left: An array.
        right: As long, and of the same type.
    """
    kind = left.type
    if types.is_null(kind):
        return np.ones(len(left), np.bool_)
    if types.is_struct(kind):
        return _equal_structs(left, right)
    if types.is_list(kind) or types.is_large_list(kind):
        return _equal_lists(left, right)
    if types.is_floating(kind):
        left, right = left.view(_BITS[kind.bit_width]), right.view(_BITS[kind.bit_width])
    equal = pc.equal(left, right)
    if equal.null_count:
        equal = pc.coalesce(equal, pc.and_(left.is_null(), right.is_null()))
    return _flags(equal)


def plain_floats(array: pa.Array) -> pa.Array:
    """The array with 0.0 in the place of -0.0 and one NaN in the place of all, inside of nested values, too."""
    kind = array.type
    if not _has_floats(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        children = [plain_floats(array.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_list(kind) or types.is_large_list(kind):
        array = pa.concat_arrays([array])  # a slice's offsets would not begin at 0
        make = pa.LargeListArray if types.is_large_list(kind) else pa.ListArray
        return make.from_arrays(array.offsets, plain_floats(array.values), type=kind, mask=mask)
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    numbers = np.where(numbers == 0, numbers.dtype.type(0), numbers)
    numbers = np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)
    return pa.array(numbers, kind, mask=None if mask is None else _flags(mask))


def _equal_structs(left: pa.StructArray, right: pa.StructArray) -> Flags:
    equal: Flags = _flags(left.is_null()) == _flags(right.is_null())
    for child, other in zip(left.flatten(), right.flatten(), strict=True):
        equal &= equal_rows(child, other)
    return equal


def _equal_lists(left: pa.Array, right: pa.Array) -> Flags:
    lengths = [
        pc.fill_null(pc.list_value_length(array), -1).to_numpy().astype(np.int64)
        for array in (left, right)
    ]
    equal: Flags = lengths[0] == lengths[1]
    rows = np.flatnonzero(equal & (lengths[0] > 0))
    if not len(rows):
        return equal
    elements = [array.take(pa.array(rows)).flatten() for array in (left, right)]
    starts = np.concatenate([[0], np.cumsum(lengths[0][rows])[:-1]])
    equal[rows] = np.logical_and.reduceat(equal_rows(elements[0], elements[1]), starts)
    return equal


def _has_floats(kind: pa.DataType) -> bool:
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return bool(types.is_floating(kind)) or any(map(_has_floats, inner))


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags
