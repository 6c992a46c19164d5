"""Rows of two streams in one: each row has the key, and a struct with the columns of its stream; the other is null."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.spark.sessions import column_named

FIRST, SECOND, TIME = "first", "second", "event_time"
"""The columns besides the key: the rows of both streams, and the time that decides whether a row is late."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """The rows of one of the streams.

    Attributes:
        parts: The rows, with the columns of the stream.
        positions: The positions of these rows among the rows of both streams.
    """

    parts: list[pa.RecordBatch]
    positions: npt.NDArray[np.int64]


def rows_of_input(parts: Sequence[pa.RecordBatch], name: str) -> InputRows:
    """Return the rows of a stream, `FIRST` or `SECOND`, among those of both."""
    structs = [part.column(name) for part in parts]
    present = [column.is_valid() for column in structs]
    rows = [
        pa.RecordBatch.from_struct_array(column.filter(is_present))
        for column, is_present in zip(structs, present, strict=True)
    ]
    flags = [is_present.to_numpy(zero_copy_only=False) for is_present in present]
    return InputRows(
        [batch for batch in rows if batch.num_rows],
        np.flatnonzero(np.concatenate(flags)) if flags else np.empty(0, np.int64),
    )


@dataclass(frozen=True, slots=True)
class StreamInput:
    """One of two streams.

    Attributes:
        rows: The rows, or other rows with their schema.
        key: The names of the key's columns.
        time: Computes the event time of a row; None if no row is late.
    """

    rows: DataFrame
    key: tuple[str, ...]
    time: Column | None


def union_inputs(first: StreamInput, second: StreamInput) -> DataFrame:
    """Return the rows of both streams; the key has the names of the first one."""

    def select(own: StreamInput, name: str) -> DataFrame:
        structs = {
            FIRST: F.lit(None).cast(first.rows.schema),
            SECOND: F.lit(None).cast(second.rows.schema),
            name: F.struct(*map(column_named, own.rows.columns)),
        }
        time = F.lit(None).cast("timestamp") if own.time is None else own.time
        keys = zip(own.key, first.key, strict=True)
        return own.rows.select(
            *(column_named(column).alias(key) for column, key in keys),
            *(structs[each].alias(each) for each in (FIRST, SECOND)),
            time.alias(TIME),
        )

    return select(first, FIRST).union(select(second, SECOND))
