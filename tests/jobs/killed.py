"""A driver that kills itself and its JVM in its second batch, when only the metadata is missing."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from jobs.job import Job, local_spark
from jobs.operators import Groups
from jobs.session import jvm_of
from pyspark.sql import SparkSession

from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership

FILES = 4
ROWS = 100
GROUP = 70
BATCH = 1
"""The disturbed batch; the first one leaves state to restore from."""


def kill(victims: list[int]) -> None:
    """End the processes as a power cut would."""
    for victim in victims:
        os.kill(victim, signal.SIGKILL)


@contextmanager
def die_with_blocked_jobs(spark: SparkSession, jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Kill this driver and its JVM after the block, while threads of the pool block; an error ends it with 1."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
        kill([jvm_of(spark), os.getpid()])
    except BaseException:  # noqa: BLE001  # printed; the process ends
        traceback.print_exc()
        os._exit(1)  # the pool would wait for blocked threads


def main(directory: Path) -> None:
    """Run the job until it dies."""
    spark = local_spark()
    job = Job(spark, directory)
    victims = [jvm_of(spark), os.getpid()]

    commit = "holdfast.spark.query.coordinator.complete_checkpoint"
    with mock.patch(commit, kill_before_commit(victims)):
        job.run(job.operator(Groups(GROUP)))


def kill_before_commit(victims: list[int]) -> Callable[..., object]:
    """Return the real commit, which kills the processes first in the second batch."""

    def commit(
        location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        if metadata.checkpoint_id == BATCH + 1:
            kill(victims)
        return complete_checkpoint(location, metadata, ownership)

    return commit
