"""A driver that kills itself, and its JVM, in its second batch, when nothing of it is missing but its metadata."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from jobs.inside_spark import jvm_of
from jobs.job import Job, local_spark
from jobs.operators import Groups

from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership

FILES = 4
ROWS = 100
GROUP = 70
BATCH = 1
"""The batch in which all happens; the first leaves state to restore from."""


def kill(victims: list[int]) -> None:
    """End the processes as a power cut would."""
    for victim in victims:
        os.kill(victim, signal.SIGKILL)


def main(directory: Path) -> None:
    """Run the job until it dies."""
    spark = local_spark()
    job = Job(spark, directory)
    victims = [jvm_of(spark), os.getpid()]

    commit = "holdfast.spark.query.coordinator.complete_checkpoint"
    with mock.patch(commit, killing(victims)):
        job.run(job.operator(Groups(GROUP)))


def killing(victims: list[int]) -> Callable[..., object]:
    """The real commit, with death just before it in the second batch."""

    def committing(
        location: CheckpointStorageLocation,
        metadata: CheckpointMetadata,
        ownership: JobOwnership,
    ) -> CompletedCheckpoint:
        if metadata.checkpoint_id == BATCH + 1:
            kill(victims)
        return complete_checkpoint(location, metadata, ownership)

    return committing
