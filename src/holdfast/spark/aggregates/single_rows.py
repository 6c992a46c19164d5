"""Accumulators of single rows, as Spark would make them of groups of one row."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates.descriptions import Aggregate

_MOST_DIGITS = 38
_MORE_DIGITS = 10
"""So many more digits has Spark's sum of decimals."""


def accumulators_of_rows(aggregate: Aggregate, rows: pa.RecordBatch) -> list[pa.Array]:
    """The accumulators of an aggregate, one for each row.

    Raises:
        InvalidRequestError: The aggregate is not of the type of its column, or is made by Spark alone.
    """
    if aggregate.column is None:
        return [pa.array(np.ones(rows.num_rows, np.int64))]
    if aggregate.kind == "approx_count_distinct":
        message = (
            f"approx_count_distinct of column {aggregate.column!r} is made of combined rows; give the operator those "
            "of operands_of(…, combine=True)"
        )
        raise InvalidRequestError(message)
    column = rows.column(aggregate.column)
    if aggregate.by is not None:
        return [_pairs(rows.column(aggregate.by), column)]
    if aggregate.kind == "count":
        return [_counted(column)]
    if aggregate.kind == "sum":
        return [_summand(aggregate, column)]
    if aggregate.kind == "avg":
        summand = _summand(aggregate, column)
        if not pa.types.is_decimal(summand.type):
            summand = summand.cast(pa.float64(), safe=False)
        return [summand, _counted(column)]
    return [_lists(column)] if aggregate.kind == "collect" else [column]


def _counted(column: pa.Array) -> pa.Array:
    return column.is_valid().cast(pa.int64())


def _summand(aggregate: Aggregate, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_decimal128(kind):
        digits = min(kind.precision + _MORE_DIGITS, _MOST_DIGITS)
        return column.cast(pa.decimal128(digits, kind.scale))
    message = (
        f"{aggregate.kind} of column {aggregate.column!r}: it has type {kind}, which is no number"
    )
    raise InvalidRequestError(message)


def _pairs(by: pa.Array, column: pa.Array) -> pa.Array:
    mask = by.is_null() if by.null_count else None
    return pa.StructArray.from_arrays([by, column], names=["by", "value"], mask=mask)


def _lists(column: pa.Array) -> pa.Array:
    ends = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.int32)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
    return pa.ListArray.from_arrays(offsets, pc.drop_null(column))
