"""The rows of a batch as processors read them, key by key: rows of Spark, or frames of pandas."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import (
    conform,
    conform_column,
    mapped_type,
    named_conversion,
    take_rows,
)
from holdfast.spark.processors.turns import Turns
from holdfast.spark.processors.values import many_objects, objects_of, row_maker

_BLOCK = 1 << 14
"""So many rows are made objects at a time."""


@dataclass(frozen=True)
class InputSettings:
    """How rows become Python objects, and those become rows: settings of the session.

    Attributes:
        time_zone: The zone of times in rows, `spark.sql.session.timeZone`.
        most_rows: Most rows of a frame of pandas, `spark.sql.execution.arrow.maxRecordsPerBatch`.
        most_bytes: About as many bytes can a frame have in Arrow, `spark.sql.execution.arrow.maxBytesPerBatch`.
        integers_as_decimals: Whether integers of a frame can become decimals,
            `spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled`.
    """

    time_zone: str = "UTC"
    most_rows: int = 10_000
    most_bytes: int = 64 << 20
    integers_as_decimals: bool = False


class InputOfKeys(Protocol):
    """The rows of a batch, in the turns of their keys."""

    def of(self, turn: int) -> Iterator[Any]:
        """What a processor is given for the key of a turn."""
        ...


class RowsOfKeys:
    """Rows of Spark.

    Args:
        table: The rows.
        turns: Which rows each key has.
        settings: How they become objects.
    """

    def __init__(self, table: pa.Table, turns: Turns, settings: InputSettings) -> None:
        self._parts = table.to_batches()
        self._turns = turns
        self._zone = settings.time_zone
        self._make = row_maker(table.column_names)
        self._block: list[Any] = []
        self._first = 0

    def of(self, turn: int) -> Iterator[Any]:
        first, end = self._turns.bounds[turn], self._turns.bounds[turn + 1]
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
        with many_objects():
            for block in take_rows(self._parts, self._turns.rows[first:end]):
                columns = []
                for name, column in zip(block.schema.names, block.columns, strict=True):
                    with named_conversion(f"column {name!r}", column.type):
                        columns.append(values_in_rows(column, self._zone))
                rows.extend(map(self._make, zip(*columns, strict=True)))
        return rows


def values_in_rows(column: pa.Array | pa.ChunkedArray, zone: str) -> list[Any]:
    """The values of a column, as rows have them."""
    return objects_of(in_zone(column, zone))


def in_zone(column: pa.Array | pa.ChunkedArray, zone: str) -> pa.Array | pa.ChunkedArray:
    """The column with its instants in a zone; those are in UTC before."""
    kind = zoned(column.type, zone)
    if isinstance(column, pa.ChunkedArray):
        return conform_column(column, kind)
    return conform(column, kind)


def zoned(kind: pa.DataType, zone: str) -> pa.DataType:
    """The type with its instants in a zone."""

    def moved(inner: pa.DataType) -> pa.DataType:
        is_instant = types.is_timestamp(inner) and inner.tz is not None
        return pa.timestamp(inner.unit, zone) if is_instant else inner

    return mapped_type(kind, moved)
