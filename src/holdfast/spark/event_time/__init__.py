"""Event time: the times of a batch, late rows, and batches for timers of idle queries.

Spark computes the watermark; `batch_times` reads it from Spark's log of the batch, and computes when the timers need
the next batch. `late_rows` has the rule for late rows. `idle_ticks` asks Spark for batches, through a data source in
the query's plan (the package `pyspark_holdfast_ticks`).
"""

from holdfast.spark.event_time.batch_times import (
    NO_TIMERS,
    NextTimers,
    earliest_timers,
    is_due,
    next_batch_time,
    times_of_batch,
)
from holdfast.spark.event_time.idle_ticks import IdleTicks, check_rows_per_batch, is_tick_only
from holdfast.spark.event_time.late_rows import LateRows, has_watermark

__all__ = [
    "NO_TIMERS",
    "IdleTicks",
    "LateRows",
    "NextTimers",
    "check_rows_per_batch",
    "earliest_timers",
    "has_watermark",
    "is_due",
    "is_tick_only",
    "next_batch_time",
    "times_of_batch",
]
