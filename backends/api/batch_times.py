"""The times of a micro-batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times of a micro-batch, in milliseconds since 1970. A repeated batch has the same times.

    Attributes:
        batch_time: When Spark planned the batch, by the driver's clock; not before that of the last checkpoint,
            if the clock has gone back since.
        watermark: The watermark of the batch; 0 if the query has none.
        late_watermark: The watermark of the batch before: rows whose event time is at most this are late.
    """

    batch_time: int
    watermark: int
    late_watermark: int
