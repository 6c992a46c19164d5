"""Operands that become one value, for many rows at once.

A null is no operand: where all operands of a row are null, so is the value. Of floats NaN is the greatest,
as Spark has it: `max` gives NaN where one is, `min` only where all are. Structs are compared field by field;
there a null is less than any value.
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
from holdfast.backends.keyed.columns.columns import (
    Column,
    Rows,
    from_arrow,
    held_type,
    plain_type,
    side_by_side,
    take,
    to_arrow,
)
from holdfast.backends.keyed.table import Flags, Fold, TableSpec
from holdfast.errors import InvalidRequestError

_HALF = np.int64(0xFFFF_FFFF)


class _FoldOverflowError(ArithmeticError):
    """A sum is not among the numbers of its type."""


def fold_values(values: Sequence[Column], bounds: Rows, spec: TableSpec) -> list[Column]:
    """A row of values for each group of a table's operands. Arguments and errors are those of `folded`."""
    return [
        folded(column, field.type, bounds, fold, state=spec.name)
        for column, field, fold in zip(values, spec.values, spec.folds, strict=True)
    ]


def fold_behind(
    before: Sequence[pa.Array], added: Sequence[pa.Array], is_behind: Flags, spec: TableSpec
) -> list[pa.Array]:
    """Rows of a table that are added to rows before them.

    Args:
        before: The columns of values of the rows before.
        added: The values of the rows that are added, as many.
        is_behind: Which rows are folded with those before; the others stay what they are.
        spec: The table's name, columns and types.

    Raises:
        InvalidRequestError: A sum is too large for its type.
    """
    count = len(is_behind)
    rows = np.arange(2 * count)
    rows = rows // 2 + rows % 2 * count  # of two columns: before, added, before, added …
    kept = np.repeat(is_behind, 2)
    kept[1::2] = True
    at = rows[kept]
    bounds = np.concatenate([[0], np.cumsum(is_behind.astype(np.int64) + 1)])
    operands = [
        take(from_arrow(side_by_side([old, new])), at)
        for old, new in zip(before, added, strict=True)
    ]
    return [
        to_arrow(column, field.type)
        for column, field in zip(fold_values(operands, bounds, spec), spec.values, strict=True)
    ]


def folded(column: Column, type: pa.DataType, bounds: Rows, fold: Fold, *, state: str) -> Column:
    """One value for each group of operands that follow each other.

    Args:
        column: The operands, oldest first in each group.
        type: Their type, and the type of the values.
        bounds: Where each group begins; behind the last of them, where it ends. A group without operands
            gives null, or any number.
        fold: How two operands become one.
        state: The name of the state that they are of, for errors.

    Raises:
        InvalidRequestError: A sum is too large for the type, or bytes are no sketch.
    """
    try:
        return _folded(column, held_type(type), bounds, fold)
    except _FoldOverflowError as error:
        message = f"state {state!r}: {error}; give the state a wider type, or floats"
        raise InvalidRequestError(message) from error
    except IncompatibleValueError as error:
        raise InvalidRequestError(f"state {state!r}: {error}") from error


def _folded(column: Column, type: pa.DataType, bounds: Rows, fold: Fold) -> Column:
    if fold == "concatenate":
        return _concatenated(to_arrow(column, type), bounds)
    if fold == "hll_union":
        return _unions(to_arrow(column, type), type, bounds)
    if isinstance(column, np.ndarray):
        return _folded_numbers(column, bounds, fold)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        counts = np.concatenate([[0], np.cumsum(valid)])
        bounds = counts.take(bounds)
        column = column.filter(pa.array(valid))
    empty = bounds[1:] == bounds[:-1]
    plain = plain_type(type)
    if plain is not None:
        numbers = np.frombuffer(
            column.buffers()[1], plain, len(column), column.offset * plain.itemsize
        )
        values = to_arrow(_folded_numbers(numbers, bounds, fold), type)
    elif types.is_boolean(type):
        flags = column.to_numpy(zero_copy_only=False).astype(np.uint8)
        values = pa.array(_folded_numbers(flags, bounds, fold).astype(bool))
    else:
        return _folded_by_arrow(column, type, bounds, fold)
    return pc.if_else(pa.array(~empty), values, pa.scalar(None, type)) if empty.any() else values


def _folded_numbers(numbers: npt.NDArray[Any], bounds: Rows, fold: Fold) -> npt.NDArray[Any]:
    """Folds numbers; a group without operands gives 0."""
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
        with np.errstate(over="ignore", invalid="ignore"):  # floats have infinity and NaN for that
            return np.add.reduceat(numbers, starts)
    most = int(np.diff(bounds).max())
    limits = np.iinfo(numbers.dtype)
    if most * int(numbers.max()) <= limits.max and most * int(numbers.min()) >= limits.min:
        return np.add.reduceat(numbers, starts, dtype=numbers.dtype)
    if numbers.dtype == np.uint64:
        low = np.add.reduceat((numbers & np.uint64(_HALF)).view(np.int64), starts)
        high = np.add.reduceat((numbers >> np.uint64(32)).view(np.int64), starts)
    else:
        wide = numbers.astype(np.int64, copy=False)
        low = np.add.reduceat(wide & _HALF, starts)
        high = np.add.reduceat(wide >> np.int64(32), starts)
    high += low >> np.int64(
        32
    )  # the sum is high * 2**32 + (low & _HALF), neither of which overflows
    low &= _HALF
    least, greatest = limits.min, limits.max
    over = (high > greatest >> 32) | ((high == greatest >> 32) & (low > greatest & int(_HALF)))
    under = (high < least >> 32) | ((high == least >> 32) & (low < least & int(_HALF)))
    if (over | under).any():
        message = f"a sum is less than {least} or more than {greatest}"
        raise _FoldOverflowError(message)
    return ((high << np.int64(32)) | low).astype(numbers.dtype)


def _concatenated(lists: pa.Array, bounds: Rows) -> pa.Array:
    """Lists one behind the other; a group of nulls alone gives null."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    offsets = ends.take(bounds)
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    present = np.concatenate([[0], np.cumsum(valid)])
    absent = present.take(bounds[1:]) == present.take(bounds[:-1])
    mask = pa.array(absent) if absent.any() else None
    make = pa.LargeListArray if types.is_large_list(lists.type) else pa.ListArray
    width = pa.int64() if types.is_large_list(lists.type) else pa.int32()
    return make.from_arrays(pa.array(offsets, width), lists.flatten(), type=lists.type, mask=mask)


def _unions(sketches: pa.Array, type: pa.DataType, bounds: Rows) -> pa.Array:
    """Sketches of all values of each group; a lone sketch stays as it is, and a group of nulls alone gives null."""
    unions: list[bytes | None] = []
    for first, end in itertools.pairwise(bounds.tolist()):
        operands = [data for data in sketches[first:end].to_pylist() if data is not None]
        unions.append(
            union_of_sketches(operands) if len(operands) > 1 else next(iter(operands), None)
        )
    return pa.array(unions, type)


def _folded_by_arrow(column: pa.Array, type: pa.DataType, bounds: Rows, fold: Fold) -> pa.Array:
    """Values of types that are no numbers to NumPy: texts, decimals; without nulls."""
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
            message = f"a sum has more than the {type.precision} digits of {type}"
            raise _FoldOverflowError(message) from error
    else:
        direction = "ascending" if fold in ("min", "all") else "descending"
        keys = [(groups, "ascending"), *((key, direction) for key in _sort_keys(column))]
        named = {str(index): key for index, (key, _) in enumerate(keys)}
        directions = [(str(index), known) for index, (_, known) in enumerate(keys)]
        order = pc.sort_indices(pa.table(named), directions)
        filled = (lengths > 0).nonzero()[0]
        at, values = filled, column.take(order.take(pa.array(bounds.take(filled))))
    where = np.full(len(lengths), -1, np.int64)
    where[at] = np.arange(len(at))
    return values.take(pa.array(where, mask=where < 0))


def _sort_keys(column: pa.Array) -> list[pa.Array]:
    """Columns that are sorted by one after the other: a struct's fields, null first and NaN last."""
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
