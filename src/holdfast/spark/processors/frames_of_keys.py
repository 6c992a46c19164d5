"""Frames of pandas in and out: the rows of keys as processors read them, and what they give as columns."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_integer_dtype
from pyarrow import types
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.types import (
    _create_converter_from_pandas,
    _create_converter_to_pandas,
    from_arrow_type,
)
from pyspark.sql.types import StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.column_objects import objects_of
from holdfast.spark.processors.frame_parts import column_values, part_of_frame
from holdfast.spark.processors.input_of_keys import InputSettings, in_zone
from holdfast.spark.processors.key_order import Turns
from holdfast.spark.processors.value_types import struct_type

_BLOCK = 1 << 16
_MOST_WAITING = 1 << 13


class FramesOfKeys:
    """Frames of pandas, cut as Spark cuts them.

    Args:
        table: The rows.
        turns: Which rows each key has.
        settings: How they become frames.
    """

    def __init__(self, table: pa.Table, turns: Turns, settings: InputSettings) -> None:
        self._table = table
        self._turns = turns
        self._zone = settings.time_zone
        row_bytes = table.nbytes / table.num_rows if table.num_rows else 0
        by_bytes = int(settings.most_bytes // row_bytes) if row_bytes else table.num_rows
        most_rows = settings.most_rows if settings.most_rows > 0 else table.num_rows
        self._most_rows = max(1, min(most_rows, by_bytes))
        self._block = pd.DataFrame()
        self._first = 0

    def of(self, turn: int) -> Iterator[Any]:
        # A generator: a frame is made when it is asked for.
        first, end = self._turns.bounds[turn], self._turns.bounds[turn + 1]
        for start in range(first, end, self._most_rows):
            yield self._frame(start, min(start + self._most_rows, end))

    def _frame(self, first: int, end: int) -> Any:
        if end > self._first + len(self._block) or first < self._first:
            self._first = first
            self._block = self._frames(first, max(end, first + _BLOCK))
        return part_of_frame(self._block, first - self._first, end - self._first)

    def _frames(self, first: int, end: int) -> Any:
        block = self._table.take(pa.array(self._turns.rows[first:end]))
        return pd.DataFrame(
            {
                name: series_of(column, self._zone)
                for name, column in zip(block.column_names, block.columns, strict=True)
            }
        )


def values_in_frames(column: pa.Array, zone: str) -> list[Any]:
    """The values of a column, as frames have them; a missing number is NaN, whatever else is in the column."""
    if types.is_timestamp(column.type):
        return list(series_of(column, zone))
    values = objects_of(column)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return [math.nan if value is None else value for value in values]
    return values


def series_of(column: pa.Array | pa.ChunkedArray, zone: str) -> Any:
    """A column as Spark makes it one of pandas; times are naive, in the session's zone."""
    kind = from_arrow_type(column.type)
    convert = _create_converter_to_pandas(
        kind, timezone=zone, struct_in_pandas="dict", error_on_duplicated_field_names=False
    )
    series = in_zone(column, "UTC").to_pandas(
        date_as_object=True,
        coerce_temporal_nanoseconds=True,
        # Whole numbers inside structs, maps and lists stay such when another row has a null, as with Spark.
        integer_object_nulls=types.is_nested(column.type),
    )
    return convert(series)


class FramesOut:
    """Frames that a processor gives, as batches of the output schema.

    Args:
        schema: The output schema.
        settings: How times without a zone are meant, and whether integers can become decimals.
    """

    def __init__(self, schema: StructType, settings: InputSettings) -> None:
        self._names = schema.names
        self._arrow = pa.schema(list(struct_type(schema).arrow))
        self._converters = [
            _create_converter_from_pandas(
                field.dataType,
                timezone=settings.time_zone,
                error_on_duplicated_field_names=False,
            )
            for field in schema.fields
        ]
        self._integers_as_decimals = settings.integers_as_decimals
        self._positions: dict[tuple[Any, ...], Sequence[int]] = {}
        self._parts: list[list[Any]] = []
        self._kinds: list[Any] = []
        self._waiting = 0

    def add(self, frames: Any) -> Iterator[pa.RecordBatch]:
        """Take the frames of a call; gives a batch now and then."""
        for frame in frames:
            columns = self._columns(frame)
            if not len(frame):
                continue
            kinds = [column.dtype for column in columns]
            if kinds != self._kinds or self._waiting >= _MOST_WAITING:
                yield from self.flush()
                self._kinds = kinds
            self._parts.append(columns)
            self._waiting += len(frame)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows that wait."""
        parts, self._parts, self._waiting = self._parts, [], 0
        if not parts:
            return
        arrays = [
            self._array(number, [part[number] for part in parts])
            for number in range(len(self._names))
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _columns(self, frame: Any) -> list[Any]:
        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(
                "Invalid return type. Please make sure that the UDF returns a "
                "pandas.DataFrame when the specified return type is StructType."
            )
        labels = tuple(frame.columns.tolist())
        positions = self._positions.get(labels)
        if positions is None:
            positions = self._positions[labels] = self._positions_in(labels)
        return [column_values(frame, position) for position in positions]

    def _positions_in(self, labels: tuple[Any, ...]) -> Sequence[int]:
        """Where the columns of the schema are in frames with these labels."""
        if not labels:
            return ()
        if not any(isinstance(label, str) for label in labels):
            return range(len(self._names))
        missing = [name for name in self._names if name not in labels]
        if missing:
            message = f"{missing} not in index"
            raise KeyError(message)
        repeated = [name for name in self._names if labels.count(name) > 1]
        if repeated:
            message = f"a processor gave a frame with several columns {repeated}"
            raise InvalidRequestError(message)
        return [labels.index(name) for name in self._names]

    def _array(self, number: int, parts: Sequence[Any]) -> pa.Array:
        kind, name = self._arrow.field(number).type, self._names[number]
        if isinstance(parts[0], np.ndarray):
            values: Any = pd.Series(np.concatenate(parts))
        else:
            values = pd.concat([pd.Series(part) for part in parts], ignore_index=True)
            if isinstance(values.dtype, pd.CategoricalDtype):
                values = values.astype(values.dtype.categories.dtype)
        values = self._converters[number](values)
        if self._integers_as_decimals and types.is_decimal(kind) and is_integer_dtype(values.dtype):
            # Arrow casts integers only where the decimal has room for every integer of their type.
            values = values.map(lambda each: Decimal(int(each)), na_action="ignore").astype(object)
        mask = None if hasattr(values.array, "__arrow_array__") else values.isna()
        try:
            try:
                array = pa.Array.from_pandas(values, mask=mask, type=kind, safe=True)
            except pa.ArrowInvalid:
                array = pa.Array.from_pandas(values, mask=mask).cast(kind, safe=True)
        except pa.ArrowException as error:
            message = (
                f"Failed to convert the value of the column '{name}' with type '{values.dtype}' to Arrow type "
                f"'{kind}': {error}"
            )
            raise PySparkValueError(message) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
