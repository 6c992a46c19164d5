"""Event time: the times of a batch, rows that come too late, and batches for timers when no rows come.

Spark computes the watermark; `batch_times` reads it from Spark's log of the batch. `late_rows` says which rows
are late. `due_timers` says when the next batch has to come for timers; `wake_ups` asks for it, by way of a data
source in the query's plan (the package `pyspark_holdfast_wake`). `operators/` and `query/` use all of this.
"""

from holdfast.spark.event_time.batch_times import times_of_batch
from holdfast.spark.event_time.due_timers import NO_TIMERS, NextTimers, due, earliest, is_due
from holdfast.spark.event_time.late_rows import LateRows, has_watermark
from holdfast.spark.event_time.wake_ups import WakeUps, check_rows_per_batch, wakes_only

__all__ = [
    "NO_TIMERS",
    "LateRows",
    "NextTimers",
    "WakeUps",
    "check_rows_per_batch",
    "due",
    "earliest",
    "has_watermark",
    "is_due",
    "times_of_batch",
    "wakes_only",
]
