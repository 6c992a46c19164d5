"""Streams by key over a job's files, and what comes of each batch."""

from typing import Any

from jobs.job import Job
from jobs.session import session_with
from pyspark.sql import DataFrame

from holdfast.spark.by_key import KeyedOutput


class Batches:
    """A sink that keeps the rows of each batch."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[Any, ...]]] = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.rows[batch_id] = sorted(tuple(row) for row in rows.collect())


def stream(job: Job) -> DataFrame:
    """The rows of the source with a key, which has three values, and a watermark."""
    rows = job.stream().selectExpr("id % 3 as key", "id as value", "at")
    return rows.withWatermark("at", "0 seconds")


def run(job: Job, output: KeyedOutput) -> dict[int, list[tuple[Any, ...]]]:
    """Read everything that is there."""
    batches = Batches()
    with session_with(job.spark, job.settings):
        writer = output.writeStream.queryName("by key").outputMode("update")
        writer = writer.option("checkpointLocation", str(job.spark_checkpoint))
        writer.foreachBatch(batches).trigger(availableNow=True).start().awaitTermination()
    return batches.rows
