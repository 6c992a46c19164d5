"""The order of rows by a column, for operators that choose rows of a key."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from holdfast.backends.keyed import Keys, combine_chunks
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import order_problem

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
