"""Streams by key: `keyed(rows, "k", …)` where Spark's own way begins with `rows.groupBy("k")`.

    rows_by_key    rows by key, and what can keep state of them: processors, functions, aggregates, windows
    initial_state  rows that are state of keys from the beginning
    keyed_output   the output: a stream to write, and the operator for queries with several operators
    stream_writer  Spark's writer of the stream, whose `foreachBatch` function is the operator's sink

Start with `rows_by_key`. All of it makes a `StatefulFunction` and calls `stateful`.
"""

from holdfast.spark.by_key.keyed_output import KeyedOutput
from holdfast.spark.by_key.rows_by_key import KeyedRows, WindowedRows, keyed
from holdfast.spark.by_key.stream_writer import KeyedStreamWriter
from holdfast.spark.event_time import IdleTicks

__all__ = [
    "IdleTicks",
    "KeyedOutput",
    "KeyedRows",
    "KeyedStreamWriter",
    "WindowedRows",
    "keyed",
]
