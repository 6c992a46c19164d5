"""Rows of Holdfast's keyed states as rows of initial state, converted in tasks of Spark."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.spark.moving.moved_processor import TIMERS, encode
from holdfast.spark.processors import Declaration

COLUMNS = [
    StructField("holdfast_state", StringType()),
    StructField("holdfast_content", BinaryType()),
]
"""The columns after those of the key: the state's name, and a value of it."""


@dataclass(frozen=True)
class InitialStateRows:
    """Converts rows of a keyed state to rows of initial state.

    Attributes:
        declared: The variable of the rows; None for timers.
        key: Number of the key's columns, which are first, before those of `shown_schema`.
        now_ms: The current time for expired values, milliseconds since 1970.
    """

    declared: Declaration | None
    key: int
    now_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = TIMERS if self.declared is None else self.declared.name
        for batch in batches:
            contents = [
                None if content is None else encode(content) for content in self._contents(batch)
            ]
            names = pa.repeat(pa.scalar(name), len(batch))
            columns = [*batch.columns[: self.key], names, pa.array(contents, pa.binary())]
            fields = [
                *(batch.schema.field(place) for place in range(self.key)),
                *(
                    pa.field(each.name, column.type)
                    for each, column in zip(COLUMNS, columns[self.key :], strict=True)
                ),
            ]
            rows = pa.record_batch(columns, pa.schema(fields))
            yield rows.filter(rows.columns[-1].is_valid())

    def _contents(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Yield the value of each row for the state, or None."""
        columns = [column.to_pylist() for column in batch.columns[self.key :]]
        declared = self.declared
        if declared is None:
            yield from columns[0]
            return
        sub_keys = columns.pop(0) if declared.kind == "map" else []
        values, *others = columns
        changed = _milliseconds(batch.columns[-1]) if others else [None] * len(batch)
        for row, value in enumerate(values):
            if declared.kind == "list":
                yield self._elements(value, has_times=bool(others)) or None
            elif not self._lives(changed[row]):
                yield None
            elif declared.kind == "value":
                yield for_state(declared.schema, value)
            else:
                assert declared.key_schema is not None
                sub_key = for_state(declared.key_schema, sub_keys[row])
                yield sub_key, for_state(declared.schema, value)

    def _elements(self, elements: list[Any], *, has_times: bool) -> list[Any]:
        """Return the elements of a list that have not expired; with times, each is a struct of its time and the element."""
        assert self.declared is not None
        if has_times:
            pairs = (each.values() for each in elements)
            elements = [element for time, element in pairs if self._lives(time)]
        return [for_state(self.declared.schema, element) for element in elements]

    def _lives(self, changed_ms: int | None) -> bool:
        ttl_ms = None if self.declared is None else self.declared.ttl_ms
        return ttl_ms is None or changed_ms is None or self.now_ms < changed_ms + ttl_ms


def for_state(kind: DataType, value: Any) -> Any:
    """Convert a value from Arrow for a Spark state.

    Args:
        kind: The state's type.
        value: The value: a struct is a dict, a map is pairs.
    """
    if value is None:
        return None
    if isinstance(kind, StructType):
        return tuple(for_state(field.dataType, value[field.name]) for field in kind)
    if isinstance(kind, ArrayType):
        return [for_state(kind.elementType, element) for element in value]
    if isinstance(kind, MapType):
        return {
            for_state(kind.keyType, key): for_state(kind.valueType, item) for key, item in value
        }
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)  # another worker may have another time zone
    return value


def _milliseconds(column: pa.Array) -> list[int | None]:
    instants = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return list(instants.to_pylist())
