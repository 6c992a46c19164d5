"""Rows that a processor gives, as batches of the output schema."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql.types import StructType

from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.values import struct_type

_MOST_WAITING = 1 << 13


class RowsOut:
    """Rows of Spark: fields are looked for by their names.

    Args:
        schema: The output schema.
    """

    def __init__(self, schema: StructType) -> None:
        self._names = schema.names
        self._fields = schema.fields
        self._arrow = pa.schema(list(struct_type(schema).arrow))
        self._pick: dict[tuple[str, ...], Any] = {}
        self._rows: list[Any] = []

    def add(self, rows: Any) -> Iterator[pa.RecordBatch]:
        """Take the rows of a call; gives a batch now and then."""
        names, waiting = self._names, self._rows
        for row in rows:
            try:
                given = row.__fields__
            except AttributeError:
                raise self._no_row(row) from None
            waiting.append(row if given == names else self._picked(row, given))
        if len(waiting) >= _MOST_WAITING:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows that wait."""
        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        arrays = [self._array(number, list(column)) for number, column in enumerate(columns)]
        self._rows.clear()
        yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _picked(self, row: Any, given: Sequence[str]) -> Any:
        """The row's values in the order of the schema."""
        names = tuple(given)
        pick = self._pick.get(names)
        if pick is None:
            missing = [name for name in self._names if name not in names]
            if missing:
                message = (
                    f"a processor gave a row of {list(names)}, and the output schema has {self._names}: "
                    f"{missing} are missing, for which Spark would give null; give them, as None if need be"
                )
                raise InvalidRequestError(message)
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
                    raise self._misfit(number, f"{value} is no whole number")
        try:
            array = pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise_shortage(error)
            raise self._misfit(number, error) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    def _misfit(self, number: int, reason: object) -> InvalidRequestError:
        field = self._fields[number]
        message = (
            f"a processor gave rows that don't fit the output schema: column {field.name!r} of type "
            f"{field.dataType.simpleString()}: {reason}"
        )
        return InvalidRequestError(message)

    def _no_row(self, row: object) -> Exception:
        if isinstance(row, Row):
            return PySparkTypeError(
                errorClass="CANNOT_CONVERT_TYPE",
                messageParameters={"from_type": "Row", "to_type": "dict"},
            )
        if type(row).__name__ == "DataFrame":
            message = "a processor gave a frame of pandas; run it by transformWithStateInPandas"
            return InvalidRequestError(message)
        message = (
            f"a processor gave {row!r} of type {type(row).__name__}; it has to give rows with names, such as "
            f"Row({', '.join(f'{name}=…' for name in self._names)})"
        )
        return InvalidRequestError(message)


def _without_rows(value: Any) -> Any:
    """The value with dictionaries in the place of rows with names."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return {
            name: _without_rows(part) for name, part in zip(value.__fields__, value, strict=False)
        }
    if isinstance(value, list):
        return list(map(_without_rows, value))
    if isinstance(value, dict):
        return {key: _without_rows(part) for key, part in value.items()}
    return value
