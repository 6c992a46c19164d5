"""The times of a batch, by Spark's log of it and by the checkpoint before."""

from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.spark_progress import SparkProgress, logged_times


def times_of_batch(offsets: str, last: SparkProgress | None) -> BatchTimes:
    """Return the times of a batch. All operators of a query share them, and a repeated batch has the same.

    Neither is below that of the checkpoint before, whatever the clock of this driver says: state that has expired
    stays expired, and a timer that has fired stays in the past.

    Args:
        offsets: Spark's offset log entry of the batch, which is written before the batch runs.
        last: Spark's side of the checkpoint that the batch goes on from; None without one. Under a new
            checkpointLocation Spark's watermark begins at 0; state that comes from a savepoint has seen a
            higher one, which holds until Spark's has passed it.
    """
    batch_time, watermark = logged_times(offsets)
    batch_time_before, before = (0, 0) if last is None else last.times
    return BatchTimes(
        max(batch_time, batch_time_before), _known(max(watermark, before)), _known(before)
    )


def _known(watermark: int) -> int:
    """Spark's watermark. Spark logs 0 until rows have brought one that is later than 1970, and never an earlier one."""
    return watermark or NO_WATERMARK
