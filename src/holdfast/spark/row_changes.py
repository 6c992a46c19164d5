"""The operator of `KeyedRows.changes`: the changes of each key's row, with the rows before and after."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from holdfast.backends.arrow import equal_rows, take_rows
from holdfast.backends.descriptors import ValueStateDescriptor
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys, ValueColumns
from holdfast.errors import InvalidRequestError
from holdfast.spark.keyed_batches import KeyedBatchFunction
from holdfast.spark.row_order import Rows, check_order, column_of, greatest_of, ranks_of

_STATE = "row"
CHANGE, BEFORE, AFTER = "change", "before", "after"
"""The columns of a change besides the key."""


def change_schema(rows: StructType, key: Sequence[str]) -> StructType:
    """Return the columns of changes. Raises `InvalidRequestError` if a key column has the name of one of them."""
    used = sorted({name.lower() for name in key} & {CHANGE, BEFORE, AFTER})
    if used:
        raise InvalidRequestError(f"key columns of changes can't be named {used}; rename them")
    return StructType(
        [
            *(StructField(name, rows[name].dataType) for name in key),
            StructField(CHANGE, StringType()),
            StructField(BEFORE, rows),
            StructField(AFTER, rows),
        ]
    )


def check_deleted(rows: StructType, deleted: str) -> None:
    """Refuse a column that can't tell whether a row is deleted. Raises `InvalidRequestError`."""
    if deleted not in rows.names or not isinstance(rows[deleted].dataType, BooleanType):
        message = f"deleted= must name a boolean column of the rows, got {deleted!r}; they have {rows.names}"
        raise InvalidRequestError(message)


class RowChanges(KeyedBatchFunction):
    """Keeps the latest row of each key, and yields what a batch has changed. Arguments are those of `KeyedRows.changes`."""

    state_names = (_STATE,)

    def __init__(self, schema: StructType, by: str | None, deleted: str | None) -> None:
        if by is not None:
            check_order(schema, by)
        if deleted is not None:
            check_deleted(schema, deleted)
        self._by = by
        self._deleted = deleted

    def open(self, context: FunctionInitializationContext) -> None:
        self._output = context.output_schema
        descriptor = ValueStateDescriptor(_STATE, pa.struct(list(context.input_schema)))
        self._state: ValueColumns = self.store.get_state(descriptor).columns

    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = self._state.get(keys)
        is_known = before.is_valid().to_numpy(zero_copy_only=False)
        rows, is_current = self._choose(keys, parts, before, is_known)
        after = pa.concat_arrays([part.to_struct_array() for part in take_rows(parts, rows)])
        is_deleted = np.zeros(len(keys), np.bool_)
        if self._deleted is not None:
            flags = column_of(parts, self._deleted).fill_null(False).take(pa.array(rows))
            is_deleted = flags.to_numpy(zero_copy_only=False)
        is_put = is_current & ~is_deleted & ~(is_known & equal_rows(before, after))
        is_cleared = is_current & is_deleted & is_known
        put, cleared = np.flatnonzero(is_put), np.flatnonzero(is_cleared)
        self._state.put(keys.take(put), after.take(pa.array(put)))
        self._state.clear(keys.take(cleared))
        changed = np.flatnonzero(is_put | is_cleared)
        if len(changed):
            names = np.where(is_cleared, "delete", np.where(is_known, "update", "insert"))
            at = pa.array(changed)
            columns = [column.take(at) for column in keys.columns]
            after_or_null = after.take(pa.array(changed, mask=is_cleared[changed]))
            columns += [pa.array(names[changed], pa.string()), before.take(at), after_or_null]
            yield pa.RecordBatch.from_arrays(columns, schema=self._output)

    def _choose(
        self,
        keys: Keys,
        parts: Sequence[pa.RecordBatch],
        before: pa.StructArray,
        is_known: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Return the row of each key that counts in the batch, and whether it is not older than the known one."""
        if self._by is None:
            return keys.rows.lasts, np.ones(len(keys), np.bool_)
        ranks = ranks_of(pa.concat_arrays([before.field(self._by), column_of(parts, self._by)]))
        row_ranks = ranks[len(keys) :]
        rows = greatest_of(keys, row_ranks)
        return rows, ~is_known | (row_ranks[rows] >= ranks[: len(keys)])
