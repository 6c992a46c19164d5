"""The operator of `KeyedRows.top_n`: the greatest rows of each key, emitted when they change."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.backends.arrow import places_in_runs
from holdfast.backends.descriptors import ListStateDescriptor
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys, ListColumns
from holdfast.errors import InvalidRequestError
from holdfast.spark.keyed_batches import KeyedBatchFunction
from holdfast.spark.row_order import check_order, ranks_of

_STATE = "top"
RANK = "rank"
"""The column of a row's place among those of its key, from 1."""


def ranked_schema(rows: StructType) -> StructType:
    """Return the columns of ranked rows. Raises `InvalidRequestError` if the rows have a rank already."""
    if RANK in {name.lower() for name in rows.names}:
        raise InvalidRequestError(f"rows already have a column {RANK!r}; rename it")
    return StructType([*rows, StructField(RANK, IntegerType())])


class TopRows(KeyedBatchFunction):
    """Keeps the first rows of each key by a column. Arguments are those of `KeyedRows.top_n`."""

    state_names = (_STATE,)

    def __init__(self, schema: StructType, count: int, by: str, *, ascending: bool) -> None:
        if type(count) is not int or count < 1:
            raise InvalidRequestError(f"n must be an integer >= 1, got {count!r}")
        check_order(schema, by)
        self._count = count
        self._by = by
        self._sign = 1 if ascending else -1

    def open(self, context: FunctionInitializationContext) -> None:
        self._output = context.output_schema
        descriptor = ListStateDescriptor(_STATE, pa.struct(list(context.input_schema)))
        self._state: ListColumns = self.store.get_list_state(descriptor).columns

    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lists = self._state.get(keys)
        stored = lists.flatten()
        rows = pa.concat_arrays([stored, *(part.to_struct_array() for part in parts)])
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        codes = np.concatenate([np.repeat(np.arange(len(keys)), lengths), keys.codes])
        ranks = self._sign * ranks_of(rows.field(self._by))
        is_null = rows.field(self._by).is_null().to_numpy(zero_copy_only=False)
        order = np.lexsort((ranks, is_null, codes))  # stable: of equal rows the first to arrive
        places = places_in_runs(codes[order])
        is_kept = places < self._count
        order, places = order[is_kept], places[is_kept]
        owners = codes[order]
        is_changed = np.zeros(len(keys), np.bool_)
        is_changed[owners[order >= len(stored)]] = True
        changed = np.flatnonzero(is_changed)
        order, places = order[is_changed[owners]], places[is_changed[owners]]
        offsets = np.append(0, np.cumsum(np.bincount(owners, minlength=len(keys))[changed]))
        top = rows.take(pa.array(order))
        self._state.put(
            keys.take(changed), pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), top)
        )
        if len(order):
            ranks_column = pa.array(places + 1, pa.int32())
            yield pa.RecordBatch.from_arrays([*top.flatten(), ranks_column], schema=self._output)
