"""Frames of pandas: the input of each call of a processor, and its output. Imports pandas, which is slow: import it late.

A key with few rows has its own frame, in and out. The public functions of pandas check properties
that are known here, so frames are cut and read by private ones, several times as fast. If a version of pandas
has no such functions, the public ones are used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
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

from holdfast.backends.arrow import named_conversion, objects_of, take_rows
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.rows import CallRows, InputSettings, in_zone
from holdfast.spark.processors.value_types import struct_type


def part_of_frame(frame: Any, first: int, end: int) -> Any:
    """Return a new frame of consecutive rows, numbered from 0."""
    rows, index = slice(first, end), pd.RangeIndex.from_range(range(end - first))
    try:
        manager = frame._mgr  # noqa: SLF001  # pandas has no public access to it
        # Copies, because a processor may change them.
        blocks = tuple(block.slice_block_rows(rows).copy() for block in manager.blocks)
        axes = [frame.columns.view(), index]
        copied = type(manager)(blocks, axes, verify_integrity=False)
        return pd.DataFrame._from_mgr(copied, axes=axes)  # noqa: SLF001  # pandas has no public access to it
    except (AttributeError, TypeError):
        part = frame.iloc[rows].copy()
        part.index = index
        return part


def column_values(frame: Any, number: int) -> Any:
    """Return a copy of the values of a column, if possible as a NumPy array: the processor may change the frame later."""
    try:
        values = frame._get_column_array(number)  # noqa: SLF001  # pandas has no public access to it
    except AttributeError:
        values = frame.iloc[:, number]
    if isinstance(values.dtype, np.dtype):
        values = values if isinstance(values, np.ndarray) else values.to_numpy()
    elif isinstance(values, pd.Series):
        values = values.array
    return values.copy()


_BLOCK = 1 << 16


class Input:
    """Frames of pandas, cut as Spark cuts them."""

    def __init__(self, table: pa.Table, by_call: CallRows, settings: InputSettings) -> None:
        self._parts = table.to_batches()
        self._by_call = by_call
        self._zone = settings.time_zone
        row_bytes = table.nbytes / table.num_rows if table.num_rows else 0
        by_bytes = int(settings.max_bytes // row_bytes) if row_bytes else table.num_rows
        max_rows = settings.max_rows if settings.max_rows > 0 else table.num_rows
        self._max_rows = max(1, min(max_rows, by_bytes))
        self._block = pd.DataFrame()
        self._first = 0
        self._with_nulls: dict[int, tuple[Any, Any]] = {}

    def of(self, call: int) -> Iterator[Any]:
        """Return the frames of a call, each made when it is requested."""
        first, end = self._by_call.bounds[call], self._by_call.bounds[call + 1]
        for start in range(first, end, self._max_rows):
            yield self._frame(start, min(start + self._max_rows, end))

    def _frame(self, first: int, end: int) -> Any:
        if end > self._first + len(self._block) or first < self._first:
            self._first = first
            self._block = self._frames(first, max(end, first + _BLOCK))
        first, end = first - self._first, end - self._first
        part = part_of_frame(self._block, first, end)
        for number, (is_null, values) in self._with_nulls.items():
            if is_null[first:end].any():
                part.isetitem(number, values[first:end].copy())
        return part

    def _frames(self, first: int, end: int) -> Any:
        block = pa.Table.from_batches(take_rows(self._parts, self._by_call.rows[first:end]))
        series = {}
        self._with_nulls = {}
        for number, (name, column) in enumerate(
            zip(block.column_names, block.columns, strict=True)
        ):
            with named_conversion(f"column {name!r}", column.type):
                if column.null_count and _changes_with_nulls(column.type):
                    # The column of a frame has a type for nulls only if the frame has nulls.
                    is_null = column.is_null().to_numpy()
                    self._with_nulls[number] = is_null, series_of(column, self._zone).to_numpy()
                    column = _without_nulls(column)  # noqa: PLW2901  # the column, converted
                series[name] = series_of(column, self._zone)
        return pd.DataFrame(series)


def _changes_with_nulls(kind: pa.DataType) -> bool:
    """Return whether a column with nulls has another type in pandas: numbers become floats, truth values objects."""
    return bool(types.is_integer(kind) or types.is_boolean(kind))


def _without_nulls(column: Any) -> Any:
    """Return a column with zeros in place of nulls."""
    return column.fill_null(pa.scalar(0).cast(column.type))


def objects_in(column: pa.Array, zone: str) -> list[Any]:
    """Convert a column to the values that frames have; a null is NaN in columns of numbers."""
    if types.is_timestamp(column.type):
        return list(series_of(column, zone))
    values = objects_of(column)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return [math.nan if value is None else value for value in values]
    return values


def scalars_of(column: pa.Array, zone: str) -> list[Any]:
    """Convert a column to the scalars of pandas that a frame of a single row would have; a null is NaN in numbers."""
    if not _changes_with_nulls(column.type):
        series = series_of(column, zone)
        return list(series.to_numpy() if series.dtype.kind == "f" else series)
    null = None if types.is_boolean(column.type) else np.float64(math.nan)
    scalars = list(_without_nulls(column).to_numpy(zero_copy_only=False))
    for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        scalars[index] = null
    return scalars


def empty_frames(names: Sequence[str]) -> Callable[[], Any]:
    """Return a function that makes frames of these columns without rows."""
    empty = pd.DataFrame(columns=list(names))
    return lambda: part_of_frame(empty, 0, 0)


def series_of(column: pa.Array | pa.ChunkedArray, zone: str) -> Any:
    """Convert a column to pandas as Spark does; times are naive, in the session's time zone."""
    kind = from_arrow_type(column.type, prefer_timestamp_ntz=True)
    convert = _create_converter_to_pandas(
        kind, timezone=zone, struct_in_pandas="dict", error_on_duplicated_field_names=False
    )
    series = in_zone(column, "UTC").to_pandas(
        date_as_object=True,
        coerce_temporal_nanoseconds=True,
        # As in Spark, integers inside structs, maps and lists stay integers if another row has a null.
        integer_object_nulls=types.is_nested(column.type),
    )
    return convert(series)


_BATCH_ROWS = 1 << 13


class Output:
    """Converts frames of pandas to batches of the output schema."""

    def __init__(self, schema: StructType, settings: InputSettings) -> None:
        self._names = schema.names
        self._arrow = pa.schema(list(struct_type(schema).arrow))
        self._converters = [
            _create_converter_from_pandas(
                field.dataType, timezone=settings.time_zone, error_on_duplicated_field_names=False
            )
            for field in schema.fields
        ]
        self._integers_as_decimals = settings.integers_as_decimals
        self._positions: dict[tuple[Any, ...], Sequence[int]] = {}
        self._parts: list[list[Any]] = []
        self._kinds: list[Any] = []
        self._waiting = 0

    def add(self, frames: Any) -> Iterator[pa.RecordBatch]:
        """Add the frames of a call, and yield batches that are full."""
        for frame in frames:
            columns = self._columns(frame)
            if not len(frame):
                continue
            kinds = [column.dtype for column in columns]
            if kinds != self._kinds or self._waiting >= _BATCH_ROWS:
                yield from self.flush()
                self._kinds = kinds
            self._parts.append(columns)
            self._waiting += len(frame)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were added last."""
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
        """Return the positions of the schema's columns in frames with these labels."""
        if not labels:
            return ()
        if not any(isinstance(label, str) for label in labels):
            return range(len(self._names))
        missing = [name for name in self._names if name not in labels]
        if missing:
            raise KeyError(f"{missing} not in index")
        repeated = [name for name in self._names if labels.count(name) > 1]
        if repeated:
            message = f"a processor returned a frame with several columns {repeated}"
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
            raise_shortage(error)
            raise PySparkValueError(
                f"Failed to convert the value of the column '{name}' with type '{values.dtype}' to Arrow type "
                f"'{kind}': {error}"
            ) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
