"""The times of a batch, and the time at which timers need the next one. Pure; all times are in ms since 1970."""

from collections.abc import Iterable

from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.spark_progress import SparkProgress, logged_times

NextTimers = tuple[int | None, int | None]
"""The earliest pending timers of event time and of processing time; None where no timer is pending."""

NO_TIMERS: NextTimers = (None, None)


def times_of_batch(offsets: str, last: SparkProgress | None) -> BatchTimes:
    """Return the times of a batch. All operators of a query share them, and a repeated batch has the same.

    Neither is lower than in the checkpoint before, even if this driver's clock is slow: expired state stays
    expired, and a fired timer stays in the past.

    Args:
        offsets: Spark's offset log entry of the batch, which is written before the batch runs.
        last: Spark's side of the checkpoint that the batch resumes from; None without one. Under a new
            checkpointLocation Spark's watermark begins at 0; state restored from a savepoint has seen a
            higher one, which holds until Spark's has passed it.
    """
    batch_time, watermark = logged_times(offsets)
    batch_time_before, before = (0, 0) if last is None else last.times
    return BatchTimes(
        max(batch_time, batch_time_before),
        _watermark_or_none_yet(max(watermark, before)),
        _watermark_or_none_yet(before),
    )


def earliest_timers(timers: Iterable[NextTimers]) -> NextTimers:
    """Return the earliest timers of several subtasks."""
    event, processing = zip(NO_TIMERS, *timers, strict=True)
    return (
        min((time for time in event if time is not None), default=None),
        min((time for time in processing if time is not None), default=None),
    )


def is_due(next_event: int | None, next_processing: int | None, times: BatchTimes) -> bool:
    """Return whether a timer that was pending before a batch fires in it."""
    return (next_event is not None and next_event <= times.watermark) or (
        next_processing is not None and next_processing <= times.batch_time
    )


def next_batch_time(
    next_event: int | None,
    next_processing: int | None,
    times: BatchTimes,
    *,
    has_input: bool,
) -> int | None:
    """Return the time at which timers need the next batch.

    Spark advances its watermark after a batch, by the rows of that batch, and publishes it only when it plans the
    next one. So after a batch with input, a pending event-time timer needs a batch at once; if the timer is not due
    there, that batch does nothing.

    Args:
        next_event: The earliest event-time timer pending after a batch.
        next_processing: The earliest processing-time timer pending after it.
        times: The times of that batch.
        has_input: Whether a source had new data in that batch, which can advance the watermark.

    Returns:
        A time; 0 means at once, even if the clock was set back since the batch. None if no timer needs a batch.
    """
    if next_event is not None and (has_input or next_event <= times.watermark):
        return 0
    if next_processing is not None and next_processing <= times.batch_time:
        return 0
    return next_processing


def _watermark_or_none_yet(logged: int) -> int:
    """Translate the 0 that Spark logs until it has seen an event time after 1970; it logs no earlier watermark."""
    return logged or NO_WATERMARK
