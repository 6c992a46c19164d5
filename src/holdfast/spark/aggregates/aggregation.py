"""The operator that keeps aggregates of each key, and the stored form of aggregates.

A value in state is a struct of accumulators, whose fields are folded by known functions. An aggregate has one or two
accumulators. Input rows are either combined by Spark, with a column for each accumulator, or single.
"""

import decimal
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import estimates_of_sketches, gather
from holdfast.backends.descriptors import KnownFunction, ReducingStateDescriptor, StateTtlConfig
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys, TableSpec
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates.changes import AggregateChanges, aggregate_field, check_own_states
from holdfast.spark.aggregates.functions import Aggregate, check_columns, operand
from holdfast.spark.operators import StatefulFunction

ROWS_AT_ONCE = 1 << 20
"""Number of rows to gather before they are folded: few large steps are faster than many small ones."""

_MAX_DIGITS = 38
_MEAN_DIGITS = 4  # additional fractional digits of Spark's mean of decimals
_SUM_DIGITS = 10  # additional digits of Spark's sum of decimals

_STATE = "aggregates"


class Aggregation(StatefulFunction):
    """Folds rows into the aggregates of each key, and yields the keys of the batch with their new values.

    Input rows are those of `operands_of`, combined or single. The operator needs a key. Arguments are those of
    `KeyedRows.agg`; it raises `InvalidRequestError` if the changes contradict the aggregates.
    """

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        *,
        ttl: StateTtlConfig | None = None,
        renamed: Mapping[str, str] | None = None,
        added: Collection[str] = (),
        dropped: Collection[str] = (),
    ) -> None:
        self._aggregates = dict(aggregates)
        self._ttl = ttl
        self._changes = AggregateChanges.of(aggregates, renamed, added, dropped)

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._store = context.keyed_state_store
        check_own_states(self._store, [_STATE])
        self._accumulators = Accumulators(self._aggregates, context.input_schema)
        stored = self._store.specs().get(_STATE)
        self._state = self._store.get_reducing_state(
            self._accumulators.descriptor(_STATE, stored, self._changes, ttl=self._ttl)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changed: list[Keys] = []
        for rows in gather(batches, ROWS_AT_ONCE):
            keys = self._store.keys(rows)
            self._state.columns.add(keys, self._accumulators.operands(rows))
            changed.append(keys)
        if not changed:
            return
        keys = changed[0]
        if len(changed) > 1:
            columns = zip(*(some.columns for some in changed), strict=True)
            keys = self._store.keys([pa.chunked_array(column) for column in columns])
        results = self._accumulators.results(self._state.columns.get(keys))
        yield pa.RecordBatch.from_arrays(
            [*keys.columns, *results.values()], names=[*self._store.key.names, *results]
        )


class Accumulators:
    """The accumulators of some aggregates.

    Args:
        aggregates: The aggregates by name.
        schema: Schema of input rows: operands that Spark has combined, or else the aggregated columns.

    Raises:
        InvalidRequestError: The rows lack a column, or an aggregate doesn't support its type.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self._aggregates = dict(aggregates)
        self._functions: dict[str, KnownFunction] = {}
        self._defaults: dict[str, Any] = {}
        for name, aggregate in aggregates.items():
            self._functions |= aggregate.accumulators(name)
            self._defaults |= aggregate.defaults(name)
        self._is_combined = all(operand(name) in schema.names for name in self._functions)
        if not self._is_combined:
            check_columns(aggregates, schema.names)
        columns = self._columns(pa.RecordBatch.from_pylist([], schema))
        self._type = pa.struct(
            [
                aggregate_field(column, columns[column].type, name, aggregate)
                for name, aggregate in aggregates.items()
                for column in aggregate.accumulators(name)
            ]
        )

    def descriptor(
        self,
        name: str,
        stored: TableSpec | None,
        changes: AggregateChanges,
        *,
        metadata: Mapping[bytes, bytes] | None = None,
        ttl: StateTtlConfig | None = None,
    ) -> ReducingStateDescriptor:
        """Return the descriptor of their state, with further metadata of each column.

        Raises:
            InvalidRequestError: An aggregate doesn't support its type.
            StateMigrationError: The aggregates differ from the stored ones in another way than the changes.
        """
        type = self._type
        if metadata is not None:
            type = pa.struct([each.with_metadata({**each.metadata, **metadata}) for each in type])
        columns = changes.column_changes(stored, self._aggregates, type)
        return ReducingStateDescriptor(
            name, self._functions, type, defaults=self._defaults, ttl=ttl, **columns
        )

    def operands(self, rows: pa.RecordBatch) -> pa.StructArray:
        columns = self._columns(rows)
        return pa.StructArray.from_arrays(
            [columns[name] for name in self._functions], fields=list(self._type)
        )

    def _columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the accumulators of each row, by their names."""
        if self._is_combined:
            return {name: rows.column(operand(name)) for name in self._functions}
        columns: dict[str, pa.Array] = {}
        for name, aggregate in self._aggregates.items():
            values = accumulators_of_rows(aggregate, rows)
            columns |= dict(zip(aggregate.accumulators(name), values, strict=True))
        return columns

    def results(self, accumulators: pa.StructArray) -> dict[str, pa.Array]:
        """Return the results of the aggregates, by name. No accumulator may be null.

        Raises `InvalidRequestError` if a mean of decimals does not fit its type.
        """
        columns = dict(zip(self._functions, accumulators.flatten(), strict=True))
        return {
            name: _result(
                name, aggregate, [columns[column] for column in aggregate.accumulators(name)]
            )
            for name, aggregate in self._aggregates.items()
        }


def _result(name: str, aggregate: Aggregate, columns: list[pa.Array]) -> pa.Array:
    if aggregate.by is not None:
        return pc.struct_field(columns[0], "value")
    if aggregate.kind == "approx_count_distinct":
        return estimates_of_sketches(columns[0].to_pylist())
    if aggregate.kind != "avg":
        return columns[0]
    total, count = columns
    if pa.types.is_decimal(total.type):
        return _mean_of_decimals(name, total, count)
    return pc.divide(total, count.cast(pa.float64()))  # if the count is 0, the sum is null


def _mean_of_decimals(name: str, total: pa.Array, count: pa.Array) -> pa.Array:
    """Compute means with the digits of Spark, rounded half up. Raises `InvalidRequestError`."""
    scale = min(total.type.scale + _MEAN_DIGITS, _MAX_DIGITS)
    step = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=2 * _MAX_DIGITS, rounding=decimal.ROUND_HALF_UP)
    means = [
        None
        if numerator is None
        else context.divide(numerator, divisor).quantize(step, context=context)
        for numerator, divisor in zip(total.to_pylist(), count.to_pylist(), strict=True)
    ]
    kind = pa.decimal128(_MAX_DIGITS, scale)
    try:
        return pa.array(means, kind)
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(
            f"aggregate {name!r}: a mean does not fit its type {kind}; cast the column to double, or to a decimal "
            "with fewer fractional digits"
        ) from error


def accumulators_of_rows(aggregate: Aggregate, rows: pa.RecordBatch) -> list[pa.Array]:
    """Return the accumulators of an aggregate for each row, as Spark would make them of groups of one row."""
    if aggregate.column is None:
        return [pa.array(np.ones(rows.num_rows, np.int64))]
    if aggregate.kind == "approx_count_distinct":
        raise InvalidRequestError(
            f"approx_count_distinct of column {aggregate.column!r} needs combined rows; give the operator the rows "
            "of operands_of(…, combine=True)"
        )
    column = rows.column(aggregate.column)
    if aggregate.by is not None:
        return [_pairs(rows.column(aggregate.by), column)]
    if aggregate.kind == "count":
        return [_count_valid(column)]
    if aggregate.kind == "sum":
        return [_summand(aggregate, column)]
    if aggregate.kind == "avg":
        summand = _summand(aggregate, column)
        if not pa.types.is_decimal(summand.type):
            summand = summand.cast(pa.float64(), safe=False)
        return [summand, _count_valid(column)]
    return [_lists(column)] if aggregate.kind == "collect" else [column]


def _count_valid(column: pa.Array) -> pa.Array:
    return column.is_valid().cast(pa.int64())


def _summand(aggregate: Aggregate, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_decimal128(kind):
        digits = min(kind.precision + _SUM_DIGITS, _MAX_DIGITS)
        return column.cast(pa.decimal128(digits, kind.scale))
    message = f"{aggregate.kind} of column {aggregate.column!r}: it has type {kind}, which is not a number"
    raise InvalidRequestError(message)


def _pairs(by: pa.Array, column: pa.Array) -> pa.Array:
    mask = by.is_null() if by.null_count else None
    return pa.StructArray.from_arrays([by, column], names=["by", "value"], mask=mask)


def _lists(column: pa.Array) -> pa.Array:
    ends = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.int32)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
    return pa.ListArray.from_arrays(offsets, pc.drop_null(column))
