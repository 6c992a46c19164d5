"""Rows of Spark: the order of calls of a processor, the input of each call, and the output."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql.types import StructType

from holdfast.backends.arrow import (
    conform,
    conform_column,
    mapped_type,
    named_conversion,
    objects_of,
    order_of,
    take_rows,
)
from holdfast.common import gc_paused, raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Order
from holdfast.spark.processors.value_types import row_maker, struct_type

_BATCH_ROWS = 1 << 13
_BLOCK = 1 << 14
"""The number of rows that are converted at once."""


def ascending(columns: Sequence[pa.Array]) -> Order:
    """Return the order of Spark for keys: ascending, null first, NaN last, text by its bytes.

    Keys of types that Arrow can't sort, such as structs, keep their order.
    """
    table: dict[str, pa.Array] = {}
    for number, column in enumerate(columns):
        # With these columns it doesn't matter where Arrow sorts null and NaN.
        if column.null_count:
            table[f"{number} is valid"] = column.is_valid()
        if types.is_floating(column.type):
            table[f"{number} is nan"] = pc.is_nan(column)
        table[f"{number}"] = column
    try:
        order = pc.sort_indices(pa.table(table), [(name, "ascending") for name in table])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return np.arange(len(columns[0]))
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CallRows:
    """The rows of each call.

    Attributes:
        rows: The positions of rows, call by call, in their order of arrival.
        bounds: The start of each call in `rows`, and the end of the last one.
    """

    rows: Order
    bounds: list[int]

    @classmethod
    def of(cls, calls: Order, count: int) -> "CallRows":
        """Group rows by the call of each, 0 <= call < count."""
        ends = np.cumsum(np.bincount(calls, minlength=count))
        return cls(order_of(calls, count), [0, *ends.tolist()])


@dataclass(frozen=True)
class InputSettings:
    """Settings of the session for the conversion between rows and Python objects.

    Attributes:
        time_zone: The time zone of rows, `spark.sql.session.timeZone`.
        max_rows: The maximum number of rows of a frame of pandas, `spark.sql.execution.arrow.maxRecordsPerBatch`.
        max_bytes: The approximate maximum of a frame's bytes in Arrow, `spark.sql.execution.arrow.maxBytesPerBatch`.
        integers_as_decimals: Whether integers of a frame can become decimals,
            `spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled`.
    """

    time_zone: str = "UTC"
    max_rows: int = 10_000
    max_bytes: int = 64 << 20
    integers_as_decimals: bool = False


class Input:
    """Rows of Spark, by call."""

    def __init__(self, table: pa.Table, by_call: CallRows, settings: InputSettings) -> None:
        self._parts = table.to_batches()
        self._by_call = by_call
        self._zone = settings.time_zone
        self._make = row_maker(table.column_names)
        self._block: list[Any] = []
        self._first = 0

    def of(self, call: int) -> Iterator[Any]:
        """Return the rows of a call."""
        first, end = self._by_call.bounds[call], self._by_call.bounds[call + 1]
        if end > self._first + len(self._block) or first < self._first:
            if end - first > _BLOCK:
                return self._long(first, end)
            self._first = first
            self._block = self._rows(first, first + _BLOCK)
        return iter(self._block[first - self._first : end - self._first])

    def _long(self, first: int, end: int) -> Iterator[Any]:
        for start in range(first, end, _BLOCK):
            yield from self._rows(start, min(start + _BLOCK, end))

    def _rows(self, first: int, end: int) -> list[Any]:
        rows: list[Any] = []
        with gc_paused():
            for block in take_rows(self._parts, self._by_call.rows[first:end]):
                columns = []
                for name, column in zip(block.schema.names, block.columns, strict=True):
                    with named_conversion(f"column {name!r}", column.type):
                        columns.append(objects_in(column, self._zone))
                rows.extend(map(self._make, zip(*columns, strict=True)))
        return rows


def objects_in(column: pa.Array | pa.ChunkedArray, zone: str) -> list[Any]:
    """Convert a column to the values that rows have."""
    return objects_of(in_zone(column, zone))


def in_zone(column: pa.Array | pa.ChunkedArray, zone: str) -> pa.Array | pa.ChunkedArray:
    """Convert instants in a column from UTC to a time zone."""

    def replace_zone(inner: pa.DataType) -> pa.DataType:
        is_instant = types.is_timestamp(inner) and inner.tz is not None
        return pa.timestamp(inner.unit, zone) if is_instant else inner

    kind = mapped_type(column.type, replace_zone)
    return (conform_column if isinstance(column, pa.ChunkedArray) else conform)(column, kind)


class Output:
    """Converts rows of Spark to batches of the output schema; fields are found by their names."""

    def __init__(self, schema: StructType, settings: InputSettings) -> None:  # noqa: ARG002  # frames need them
        self._names = schema.names
        self._fields = schema.fields
        self._arrow = pa.schema(list(struct_type(schema).arrow))
        self._pick: dict[tuple[str, ...], Any] = {}
        self._rows: list[Any] = []

    def add(self, rows: Any) -> Iterator[pa.RecordBatch]:
        """Add the rows of a call, and yield batches that are full."""
        names, waiting = self._names, self._rows
        for row in rows:
            try:
                given = row.__fields__
            except AttributeError:
                raise self._row_error(row) from None
            waiting.append(row if given == names else self._reorder(row, given))
        if len(waiting) >= _BATCH_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were added last."""
        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        arrays = [self._array(number, list(column)) for number, column in enumerate(columns)]
        self._rows.clear()
        yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _reorder(self, row: Any, given: Sequence[str]) -> Any:
        """Return a row's values in the order of the schema."""
        names = tuple(given)
        pick = self._pick.get(names)
        if pick is None:
            missing = [name for name in self._names if name not in names]
            if missing:
                raise InvalidRequestError(
                    f"a processor returned a row with fields {list(names)}, and the output schema has {self._names}: "
                    f"set {missing} too, to None where they are null; Spark would set them to null"
                )
            positions = [names.index(name) for name in self._names]
            pick = itemgetter(*positions)
            if len(positions) == 1:
                single = pick
                pick = lambda values: (single(values),)  # noqa: E731
            self._pick[names] = pick
        return pick(tuple(row))

    def _array(self, number: int, values: list[Any]) -> pa.Array:
        field = self._arrow.field(number)
        if types.is_nested(field.type):
            values = list(map(_without_rows, values))
        if types.is_integer(field.type) and float in set(map(type, values)):
            for value in values:
                if type(value) is float and not value.is_integer():
                    raise self._type_error(number, f"{value} is not an integer")
        try:
            array = pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise_shortage(error)
            raise self._type_error(number, error) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    def _type_error(self, number: int, reason: object) -> InvalidRequestError:
        field = self._fields[number]
        message = (
            f"a processor returned rows that don't fit the output schema: column {field.name!r} of type "
            f"{field.dataType.simpleString()}: {reason}"
        )
        return InvalidRequestError(message)

    def _row_error(self, row: object) -> Exception:
        if isinstance(row, Row):
            # By position, because PySpark 3.5 has other names for the arguments.
            parameters = {"from_type": "Row", "to_type": "dict"}
            return PySparkTypeError(None, "CANNOT_CONVERT_TYPE", parameters)
        if type(row).__name__ == "DataFrame":
            message = (
                "a processor returned a frame of pandas; run it with transformWithStateInPandas"
            )
            return InvalidRequestError(message)
        message = (
            f"a processor returned {row!r} of type {type(row).__name__}; it must return rows with field names, such as "
            f"Row({', '.join(f'{name}=…' for name in self._names)})"
        )
        return InvalidRequestError(message)


def _without_rows(value: Any) -> Any:
    """Replace rows with field names inside of a value by dictionaries."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return {
            name: _without_rows(part) for name, part in zip(value.__fields__, value, strict=False)
        }
    if isinstance(value, list):
        return list(map(_without_rows, value))
    if isinstance(value, dict):
        return {key: _without_rows(part) for key, part in value.items()}
    return value
