"""Frames of pandas that a processor gives, as batches of the output schema."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_integer_dtype
from pyarrow import types
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.types import _create_converter_from_pandas
from pyspark.sql.types import StructType

from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.frames.frame_parts import column_values
from holdfast.spark.processors.rows import InputSettings
from holdfast.spark.processors.values import struct_type

_MOST_WAITING = 1 << 13


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
            raise_shortage(error)
            message = (
                f"Failed to convert the value of the column '{name}' with type '{values.dtype}' to Arrow type "
                f"'{kind}': {error}"
            )
            raise PySparkValueError(message) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
