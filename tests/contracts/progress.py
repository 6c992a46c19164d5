"""Spark progress of checkpoints that are written without Spark."""

import msgspec

from holdfast.spark_progress import SPARK, SparkProgress


def progress_after_batch(batch_id: int) -> dict[str, bytes]:
    """Return the coordinator's states of a checkpoint that completes the batch."""
    progress = SparkProgress(
        query_id="query",
        run_id="run",
        batch_id=batch_id,
        offsets="v1\n{}",
        checkpoint_location="file:///spark",
        spark_version="4.3.0",
    )
    return {SPARK: msgspec.msgpack.encode(progress)}
