"""The times of a micro-batch."""

from dataclasses import dataclass

NO_WATERMARK = -(1 << 63)
"""Stands for the watermark of a query without one, or whose rows have not brought one yet; it is before every time."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times of a micro-batch, in milliseconds since 1970. A repeated batch has the same times.

    Attributes:
        batch_time: When Spark planned the batch, by the driver's clock; not before that of the last checkpoint,
            if the clock has gone back since.
        watermark: The watermark of the batch; `NO_WATERMARK` while there is none.
        late_watermark: The watermark of the batch before: rows whose event time is at most this are late.
            `NO_WATERMARK` while there is none, so that no row is late.
    """

    batch_time: int
    watermark: int
    late_watermark: int
