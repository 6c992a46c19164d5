"""Fold operands into values, for many rows at once.

Null operands are ignored; the value is null if all operands are. NaN is the greatest float, as in Spark: `max`
returns NaN if one operand is NaN, `min` only if all are. Structs are compared field by field, and a null field
is less than any value.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow import IncompatibleValueError, union_of_sketches
from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    column_type,
    concatenate_arrays,
    from_arrow,
    list_array,
    numpy_type,
    take,
    to_arrays,
    to_arrow,
)
from holdfast.backends.keyed.table import Flags, Fold, TableSpec
from holdfast.errors import InvalidRequestError


class _FoldOverflowError(ArithmeticError):
    """A sum overflows its type."""


def fold_values(values: Sequence[Column], bounds: Rows, spec: TableSpec) -> list[Column]:
    """Fold each group of a table's operands into a row of values; as `fold_column` for each column."""
    return [
        fold_column(column, field.type, bounds, fold, state=spec.name)
        for column, field, fold in zip(values, spec.values, spec.folds, strict=True)
    ]


def fold_into(
    before: Sequence[pa.Array], added: Sequence[pa.Array], has_before: Flags, spec: TableSpec
) -> tuple[pa.Array, ...]:
    """Fold added values of a table into those before, if the row has some; else they stay as they are.

    Raises `InvalidRequestError` if a sum overflows its type.
    """
    count = len(has_before)
    rows = np.arange(2 * count)
    rows = rows // 2 + rows % 2 * count  # of two columns: before, added, before, added …
    kept = np.repeat(has_before, 2)
    kept[1::2] = True
    at = rows[kept]
    bounds = np.concatenate([[0], np.cumsum(has_before.astype(np.int64) + 1)])
    operands = [
        take(from_arrow(concatenate_arrays([old, new])), at)
        for old, new in zip(before, added, strict=True)
    ]
    return to_arrays(fold_values(operands, bounds, spec), spec.values)


def fold_column(
    column: Column, type: pa.DataType, bounds: Rows, fold: Fold, *, state: str
) -> Column:
    """Fold each group of adjacent operands, oldest first, into one value of the same type.

    `bounds` has the start of each group, then the end of the last one. The value of a group without operands is null,
    or any number. Raises `InvalidRequestError` if a sum overflows the type, or bytes are not a sketch.
    """
    try:
        return _fold(column, column_type(type), bounds, fold)
    except _FoldOverflowError as error:
        message = f"state {state!r}: {error}; use a wider type or floats"
        raise InvalidRequestError(message) from error
    except IncompatibleValueError as error:
        raise InvalidRequestError(f"state {state!r}: {error}") from error


def _fold(column: Column, type: pa.DataType, bounds: Rows, fold: Fold) -> Column:
    if fold == "concatenate":
        return _fold_lists(to_arrow(column, type), bounds)
    if fold == "hll_union":
        return _fold_sketches(to_arrow(column, type), type, bounds)
    if isinstance(column, np.ndarray):
        return _fold_numbers(column, bounds, fold)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        counts = np.concatenate([[0], np.cumsum(valid)])
        bounds = counts.take(bounds)
        column = column.filter(pa.array(valid))
    empty = bounds[1:] == bounds[:-1]
    dtype = numpy_type(type)
    if dtype is not None:
        numbers = np.frombuffer(
            column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize
        )
        values = to_arrow(_fold_numbers(numbers, bounds, fold), type)
    elif types.is_boolean(type):
        flags = column.to_numpy(zero_copy_only=False).astype(np.uint8)
        values = pa.array(_fold_numbers(flags, bounds, fold).astype(bool))
    else:
        return _fold_by_arrow(column, type, bounds, fold)
    return pc.if_else(pa.array(~empty), values, pa.scalar(None, type)) if empty.any() else values


def _fold_numbers(numbers: npt.NDArray[Any], bounds: Rows, fold: Fold) -> npt.NDArray[Any]:
    """Fold numbers; the value of a group without operands is 0."""
    out = np.zeros(len(bounds) - 1, numbers.dtype)
    filled = (bounds[1:] > bounds[:-1]).nonzero()[0]
    if not len(filled):
        return out
    starts = bounds.take(filled)
    if fold in ("sum", "count"):
        out[filled] = _sums(numbers, starts, bounds)
    elif fold in ("min", "all"):
        smaller = np.fmin if numbers.dtype.kind == "f" else np.minimum
        out[filled] = smaller.reduceat(numbers, starts)
    else:
        out[filled] = np.maximum.reduceat(numbers, starts)
    return out


def _sums(numbers: npt.NDArray[Any], starts: Rows, bounds: Rows) -> npt.NDArray[Any]:
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):  # a float sum becomes infinity or NaN
            return np.add.reduceat(numbers, starts)
    max_count = int(np.diff(bounds).max())
    limits = np.iinfo(numbers.dtype)
    if (
        max_count * int(numbers.max()) <= limits.max
        and max_count * int(numbers.min()) >= limits.min
    ):
        return np.add.reduceat(numbers, starts, dtype=numbers.dtype)
    if numbers.dtype.itemsize < 8:
        sums = np.add.reduceat(numbers, starts, dtype=np.int64)
    else:
        sums = np.add.reduceat(numbers.astype(object), starts)  # Python's integers don't overflow
    if (sums < limits.min).any() or (sums > limits.max).any():
        raise _FoldOverflowError(f"a sum is less than {limits.min} or greater than {limits.max}")
    return sums.astype(numbers.dtype)


def _fold_lists(lists: pa.Array, bounds: Rows) -> pa.Array:
    """Concatenate the lists of each group; null if all are null."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    offsets = ends.take(bounds)
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    present = np.concatenate([[0], np.cumsum(valid)])
    absent = present.take(bounds[1:]) == present.take(bounds[:-1])
    mask = pa.array(absent) if absent.any() else None
    return list_array(offsets, lists.flatten(), lists.type, mask)


def _fold_sketches(sketches: pa.Array, type: pa.DataType, bounds: Rows) -> pa.Array:
    """Unite the sketches of each group; a single sketch stays as it is, and null if all are null."""
    unions: list[bytes | None] = []
    for first, end in itertools.pairwise(bounds.tolist()):
        operands = [data for data in sketches[first:end].to_pylist() if data is not None]
        unions.append(
            union_of_sketches(operands) if len(operands) > 1 else next(iter(operands), None)
        )
    return pa.array(unions, type)


def _fold_by_arrow(column: pa.Array, type: pa.DataType, bounds: Rows, fold: Fold) -> pa.Array:
    """Fold values without nulls of types that NumPy doesn't have, such as texts and decimals."""
    lengths = np.diff(bounds)
    groups = np.repeat(np.arange(len(lengths)), lengths)
    if fold == "sum":
        # Arrow wraps sums around without an error. 2**32 decimals of 38 digits need no more than 48.
        wide = column.cast(pa.decimal256(76, type.scale))
        table = pa.table({"group": groups, "value": wide})
        sums = table.group_by("group", use_threads=False).aggregate([("value", "sum")])
        at = sums["group"].to_numpy()
        try:
            values = sums["value_sum"].combine_chunks().cast(type)
        except pa.ArrowInvalid as error:
            message = f"a sum exceeds the {type.precision} digits of {type}"
            raise _FoldOverflowError(message) from error
    else:
        direction = "ascending" if fold in ("min", "all") else "descending"
        keys = [(groups, "ascending"), *((key, direction) for key in _sort_keys(column))]
        named = {str(index): key for index, (key, _) in enumerate(keys)}
        directions = [(str(index), direction) for index, (_, direction) in enumerate(keys)]
        order = pc.sort_indices(pa.table(named), directions)
        filled = (lengths > 0).nonzero()[0]
        at, values = filled, column.take(order.take(pa.array(bounds.take(filled))))
    rows = np.full(len(lengths), -1, np.int64)
    rows[at] = np.arange(len(at))
    return values.take(pa.array(rows, mask=rows < 0))


def _sort_keys(column: pa.Array) -> list[pa.Array]:
    """Return the columns to sort by: of a struct its fields, with null first and NaN last."""
    if not types.is_struct(column.type):
        return [column]
    keys = []
    for field in column.flatten():
        if field.null_count:
            keys.append(field.is_valid().cast(pa.int8()))
        if types.is_floating(field.type):
            keys.append(pc.is_nan(field).cast(pa.int8()))
        keys += _sort_keys(field)
    return keys
