"""Streams by key: `keyed(rows, "k", …)` corresponds to Spark's `rows.groupBy("k")`.

    rows_by_key    rows by key, and operators on them: processors, functions, aggregates, windows
    initial_state  rows with the initial state of keys
    keyed_output   the output: a stream to write, or the operator for queries with several operators

Start with `rows_by_key`.
"""

from holdfast.spark.by_key.keyed_output import KeyedOutput, KeyedStreamWriter
from holdfast.spark.by_key.rows_by_key import KeyedRows, WindowedRows, keyed
from holdfast.spark.event_time import IdleTicks

__all__ = [
    "IdleTicks",
    "KeyedOutput",
    "KeyedRows",
    "KeyedStreamWriter",
    "WindowedRows",
    "keyed",
]
