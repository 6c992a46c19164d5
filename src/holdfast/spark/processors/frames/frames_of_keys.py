"""The rows of keys as frames of pandas."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

from holdfast.backends.arrow import named_conversion, take_rows
from holdfast.spark.processors.frames.frame_parts import part_of_frame
from holdfast.spark.processors.rows import InputSettings, in_zone
from holdfast.spark.processors.turns import Turns
from holdfast.spark.processors.values import objects_of

_BLOCK = 1 << 16


class FramesOfKeys:
    """Frames of pandas, cut as Spark cuts them.

    Args:
        table: The rows.
        turns: Which rows each key has.
        settings: How they become frames.
    """

    def __init__(self, table: pa.Table, turns: Turns, settings: InputSettings) -> None:
        self._parts = table.to_batches()
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
        block = pa.Table.from_batches(take_rows(self._parts, self._turns.rows[first:end]))
        series = {}
        for name, column in zip(block.column_names, block.columns, strict=True):
            with named_conversion(f"column {name!r}", column.type):
                series[name] = series_of(column, self._zone)
        return pd.DataFrame(series)


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
