"""The stored form of aggregates: a struct of accumulators, whose fields fold by known functions."""

import decimal
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import estimates_of_sketches
from holdfast.backends.descriptors import (
    KnownFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
)
from holdfast.backends.keyed import TableSpec
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates.changes import AggregateChanges, described_field
from holdfast.spark.aggregates.descriptions import Aggregate, check_columns, operand
from holdfast.spark.aggregates.single_rows import accumulators_of_rows

_MOST_DIGITS = 38
_MORE_DIGITS = 4
"""So many more digits behind the point has Spark's mean of decimals."""


class Accumulators:
    """The accumulators of some aggregates.

    Args:
        aggregates: The aggregates by name.
        schema: Schema of the rows that come: operands that Spark has combined, or else the columns that are aggregated.

    Raises:
        InvalidRequestError: The rows lack a column, or an aggregate is not of its type.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self._aggregates = dict(aggregates)
        self._functions: dict[str, KnownFunction] = {}
        self._of_no_rows: dict[str, Any] = {}
        for name, aggregate in aggregates.items():
            self._functions |= aggregate.accumulators(name)
            self._of_no_rows |= aggregate.accumulators_of_no_rows(name)
        self._are_combined = all(operand(name) in schema.names for name in self._functions)
        if not self._are_combined:
            check_columns(aggregates, schema.names)
        columns = self._columns(_no_rows(schema))
        self._type = pa.struct(
            [
                described_field(column, columns[column].type, name, aggregate)
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
        """The state that has them.

        Args:
            name: The state's name.
            stored: The state as it is stored; None if it is new.
            changes: How the aggregates differ from the stored ones.
            metadata: More to store with each column.
            ttl: How long a value lives.

        Raises:
            InvalidRequestError: An aggregate is not of values of its type.
            StateMigrationError: The aggregates are not the stored ones, and the changes don't say so.
        """
        type = self._type
        if metadata is not None:
            type = pa.struct([each.with_metadata({**each.metadata, **metadata}) for each in type])
        columns = changes.of_columns(stored, self._aggregates, type)
        return ReducingStateDescriptor(
            name, self._functions, type, defaults=self._of_no_rows, ttl=ttl, **columns
        )

    def operands(self, rows: pa.RecordBatch) -> pa.StructArray:
        """The rows as values that the state takes."""
        columns = self._columns(rows)
        return pa.StructArray.from_arrays(
            [columns[name] for name in self._functions], fields=list(self._type)
        )

    def _columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The accumulators of each row, by their names."""
        if self._are_combined:
            return {name: rows.column(operand(name)) for name in self._functions}
        columns: dict[str, pa.Array] = {}
        for name, aggregate in self._aggregates.items():
            values = accumulators_of_rows(aggregate, rows)
            columns |= dict(zip(aggregate.accumulators(name), values, strict=True))
        return columns

    def results(self, accumulators: pa.StructArray) -> dict[str, pa.Array]:
        """The results of the aggregates, by name. None of the accumulators is null.

        Raises:
            InvalidRequestError: A mean of decimals does not fit its type.
        """
        columns = dict(zip(self._functions, accumulators.flatten(), strict=True))
        return {
            name: _result(
                name, aggregate, [columns[column] for column in aggregate.accumulators(name)]
            )
            for name, aggregate in self._aggregates.items()
        }


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


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
    return pc.divide(total, count.cast(pa.float64()))  # where the count is 0, the sum is null


def _mean_of_decimals(name: str, total: pa.Array, count: pa.Array) -> pa.Array:
    """Means with as many digits as Spark gives, rounded half up. Raises `InvalidRequestError`."""
    scale = min(total.type.scale + _MORE_DIGITS, _MOST_DIGITS)
    step = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=2 * _MOST_DIGITS, rounding=decimal.ROUND_HALF_UP)
    means = [
        None
        if numerator is None
        else context.divide(numerator, divisor).quantize(step, context=context)
        for numerator, divisor in zip(total.to_pylist(), count.to_pylist(), strict=True)
    ]
    kind = pa.decimal128(_MOST_DIGITS, scale)
    try:
        return pa.array(means, kind)
    except pa.ArrowInvalid as error:
        message = (
            f"aggregate {name!r}: a mean does not fit its type {kind}; cast the column to double, or to a decimal "
            "with fewer digits behind the point"
        )
        raise InvalidRequestError(message) from error
