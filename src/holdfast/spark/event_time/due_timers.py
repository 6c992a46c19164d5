"""When the next batch has to come for timers, if no rows bring it. Pure.

All times are in milliseconds since 1970.
"""

from collections.abc import Iterable

from holdfast.backends.functions import BatchTimes

NextTimers = tuple[int | None, int | None]
"""The earliest timers of event time and of processing time that are left; None where there is none."""

NO_TIMERS: NextTimers = (None, None)


def earliest(timers: Iterable[NextTimers]) -> NextTimers:
    """The earliest timers of several subtasks."""
    event, processing = zip(NO_TIMERS, *timers, strict=True)
    return (
        min((time for time in event if time is not None), default=None),
        min((time for time in processing if time is not None), default=None),
    )


def is_due(next_event: int | None, next_processing: int | None, times: BatchTimes) -> bool:
    """Whether a timer that was left before a batch fires in it."""
    return (next_event is not None and next_event <= times.watermark) or (
        next_processing is not None and next_processing <= times.batch_time
    )


def due(
    next_event: int | None,
    next_processing: int | None,
    times: BatchTimes,
    *,
    rows_came: bool,
) -> int | None:
    """When the next batch has to come.

    Spark moves its watermark by the rows of a batch when that is over, and tells nobody before it plans the
    next one. So the next batch comes at once where rows came and a timer waits for the watermark: if none turns
    out to be due there, that batch has nothing to do.

    Args:
        next_event: The earliest timer of event time that a batch has left.
        next_processing: The earliest timer of processing time that it has left.
        times: The times of that batch.
        rows_came: Whether a source gave that batch something to read, which can move the watermark.

    Returns:
        A time; 0 means at once, also if the clock has gone back behind the batch's time. None if no timer
        needs a batch.
    """
    if next_event is not None and (rows_came or next_event <= times.watermark):
        return 0
    if next_processing is not None and next_processing <= times.batch_time:
        return 0
    return next_processing
