"""A driver that kills itself, and its JVM, in its second batch: `python -m jobs.killed DIR POINT`."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
from jobs.job import Job, local_spark
from jobs.operators import Groups
from pyspark.sql import DataFrame, SparkSession

from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    JobOwnership,
    complete_checkpoint,
)

POINTS = ("in a task", "in the sink", "before the metadata", "after the metadata")
GROUP = 70
BATCH = 1


class KillsDriver(Groups):
    """Kills the driver once subtask 0 of the batch has let rows through."""

    def __init__(self, size: int, victims: list[int]) -> None:
        super().__init__(size)
        self.victims = victims

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        restored = len(self.rows)
        yield from super().process(batches)
        if restored:
            kill(self.victims)


def kill(victims: list[int]) -> None:
    """End the processes as a power cut would."""
    for victim in victims:
        os.kill(victim, signal.SIGKILL)


def main(directory: Path, point: str) -> None:
    """Run the job until it dies."""
    spark = local_spark()
    job = Job(spark, directory)
    victims = [jvm_of(spark), os.getpid()]

    def sink(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if point == "in the sink" and batch_id == BATCH:
            kill(victims)

    operator = KillsDriver(GROUP, victims) if point == "in a task" else Groups(GROUP)
    commit = "holdfast.spark._coordinator.complete_checkpoint"
    with mock.patch(commit, killing(point, victims)):
        job.run(job.operator(operator, sink=sink))


def killing(point: str, victims: list[int]) -> Callable[..., object]:
    """The real commit, with death just before or after it in the second batch."""

    def committing(
        location: CheckpointStorageLocation,
        metadata: CheckpointMetadata,
        ownership: JobOwnership,
    ) -> CompletedCheckpoint:
        second = metadata.checkpoint_id == BATCH + 1
        if second and point == "before the metadata":
            kill(victims)
        completed = complete_checkpoint(location, metadata, ownership)
        if second and point == "after the metadata":
            kill(victims)
        return completed

    return committing


def jvm_of(spark: SparkSession) -> int:
    """Process id of the session's JVM."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return int(gateway.proc.pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
