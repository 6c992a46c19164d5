"""The order of rows by a column, for operators that choose or number rows of a key."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from holdfast.backends.arrow import places_in_runs, run_starts
from holdfast.backends.keyed import Keys, combine_chunks
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import order_problem
from holdfast.spark.event_time import micros_of

Rows = npt.NDArray[np.int64]
"""Positions of rows in a batch, or of its keys, or their ranks."""


def check_order(schema: StructType, by: str) -> None:
    """Refuse a column that rows can't be ordered by. Raises `InvalidRequestError`."""
    if by not in schema.names:
        raise InvalidRequestError(f"rows have no column by={by!r}; they have {schema.names}")
    kind = schema[by].dataType
    problem = order_problem(kind)
    if isinstance(kind, StructType):
        problem = f"it has type {kind.simpleString()}; name one of its fields as a column"
    if problem:
        raise InvalidRequestError(f"rows can't be ordered by column {by!r}: {problem}")


def column_of(parts: Sequence[pa.RecordBatch], name: str) -> pa.Array:
    """Return a column of all rows of a batch."""
    columns = [part.column(name) for part in parts]
    return combine_chunks(pa.chunked_array(columns))


def ranks_of(values: pa.Array) -> Rows:
    """Return the rank of each value, from 1; 0 for null. NaN has the greatest rank."""
    dense = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    ranks: Rows = dense.to_numpy().astype(np.int64)
    ranks[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return ranks


def greatest_of(keys: Keys, ranks: Rows) -> Rows:
    """Return the row of each key with the greatest rank; of equal ones the first to arrive."""
    codes = keys.codes
    order = np.lexsort((-ranks, codes))  # stable
    greatest: Rows = order[np.searchsorted(codes[order], np.arange(len(keys)))]
    return greatest


def places_by_key(codes: Rows, order: Rows) -> Rows:
    """Return the place of each row among those of its key, from 0.

    Args:
        codes: The number of each row's key.
        order: The rows by key.
    """
    places: Rows = np.empty(len(codes), np.int64)
    places[order] = places_in_runs(codes[order])
    return places


def order_by_time(keys: Keys, parts: Sequence[pa.RecordBatch], time: str) -> Rows:
    """Return the rows by key and time.

    Rows of a key with the same time are ordered by their other columns, from the first to the last, null first. So the
    order doesn't depend on that of their arrival, unless they only differ in columns that are nested.
    """
    codes, times = keys.codes, micros_of(column_of(parts, time)).to_numpy()
    order: Rows = np.lexsort((times, codes))
    is_tie = ~(run_starts(codes[order]) | run_starts(times[order]))
    if is_tie.any():
        others = [
            field.name
            for field in parts[0].schema
            if field.name != time and not _has_no_rank(field.type)
        ]
        ranks = [ranks_of(column_of(parts, name)) for name in reversed(others)]
        order = np.lexsort((*ranks, times, codes))
    return order


def _has_no_rank(kind: pa.DataType) -> bool:
    types = pa.types
    return any(is_kind(kind) for is_kind in (types.is_nested, types.is_null, types.is_interval))
