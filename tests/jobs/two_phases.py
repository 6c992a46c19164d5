"""A driver that dies at every point of a commit in two phases: `python -m jobs.two_phases DIR DSN`.

It runs a job for each point, over the files that the job's directory has, into a table of the job's
name. Each blocks at its point in its second batch; when all do, the driver is killed, with its JVM.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import psycopg
import pyarrow as pa
from jobs.job import Job, local_spark
from jobs.killed import BATCH, die_with_blocked_jobs
from jobs.operators import Groups
from jobs.processes import Signals, wait_until_blocked
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership
from holdfast.locations.metadata import encode_metadata
from holdfast.spark.sinks.postgres import Connect, TwoPhaseCommitSink

GROUP = 30
COMMIT = "holdfast.spark.query.coordinator.complete_checkpoint"
SECOND = f"-{BATCH + 1}-"
"""Part of the names of transactions of the second batch."""

POINTS = {
    "in_a_task": "in a task",
    "before_prepare": "before it is prepared",
    "after_prepare": "after it is prepared",
    "before_metadata": "before the metadata",
    "after_metadata": "after the metadata",
    "before_commit": "before it is committed",
    "between_commits": "between two commits",
    "after_commit": "after it is committed",
    "late": "before the metadata",
}
"""The point at which the job of a name blocks."""

CORES = 8
"""The cores of a session, on which two tasks of three jobs are blocked."""


@dataclass(frozen=True, slots=True)
class Death:
    """The point at which a job is to die, in the process that reaches it first."""

    directory: Path
    point: str

    @property
    def signals(self) -> Signals:
        return Signals(self.directory / "signals")

    def at(self, point: str) -> None:
        """Block until the driver is killed, if it is to die here."""
        if point == self.point:
            self.block()

    def block(self) -> NoReturn:
        self.signals.give("blocked")
        while True:
            threading.Event().wait()


class BlockingGroups(Groups):
    """Blocks in a task that has restored state, when rows of the batch are through."""

    def __init__(self, size: int, death: Death) -> None:
        super().__init__(size)
        self.death = death

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_restored = len(self.rows) > 0
        yield from super().process(batches)
        if is_restored:
            self.death.at("in a task")


class SignedSink(TwoPhaseCommitSink):
    """Adds a column with the driver's name."""

    def __init__(self, connect: Connect, table: str, *, driver: str) -> None:
        super().__init__(connect, table, job=table)
        self.driver = driver

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(rows.withColumn("driver", F.lit(self.driver)), batch_id)


class DyingConnection(psycopg.Connection[Any]):
    """Blocks at the points of the protocol."""

    death: Death
    name = ""

    def tpc_begin(self, xid: Any) -> None:
        self.name = str(xid)
        super().tpc_begin(xid)

    def tpc_prepare(self) -> None:
        self._at("before it is prepared", self.name)
        super().tpc_prepare()
        self._at("after it is prepared", self.name)

    def tpc_commit(self, xid: Any = None) -> None:
        self._at("before it is committed", str(xid))
        super().tpc_commit(xid)
        self._at("between two commits", str(xid))

    def _at(self, point: str, name: str) -> None:
        if SECOND in name:
            self.death.at(point)


@dataclass(frozen=True)
class Dying:
    """Opens connections that block."""

    dsn: str
    death: Death

    def __call__(self) -> DyingConnection:
        connection = DyingConnection.connect(self.dsn)
        connection.death = self.death
        return connection


class DyingSink(SignedSink):
    """Blocks after the commit, too."""

    def __init__(self, dsn: str, table: str, death: Death) -> None:
        super().__init__(Dying(dsn, death), table, driver="killed")
        self.death = death

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        if checkpoint_id == BATCH + 1:
            self.death.at("after it is committed")


def job_of(spark: SparkSession, directory: Path, name: str) -> Job:
    """Return one of the jobs, in its own session."""
    job = Job(spark.newSession(), directory / name)
    job.settings["spark.holdfast.checkpoint.num-retained"] = "9"
    return job


def run(job: Job, dsn: str, table: str, death: Death) -> None:
    """Run a job until it blocks."""
    job.run(job.operator(BlockingGroups(GROUP, death), sink=DyingSink(dsn, table, death)))


def block_at_commit(points: Mapping[str, str]) -> Callable[..., CompletedCheckpoint]:
    """Return a commit that blocks before or after the second commit of some jobs, given their points by name."""

    def commit(
        location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        pointer = Path(location.external_pointer.removeprefix("file://"))
        directory = pointer.parents[2]
        death = Death(directory, points[directory.name])
        second = metadata.checkpoint_id == BATCH + 1
        if second and death.point == "before the metadata":
            (directory / "late").write_bytes(encode_metadata(metadata, location.external_pointer))
            death.block()
        completed = complete_checkpoint(location, metadata, ownership)
        if second:
            death.at("after the metadata")
        return completed

    return commit


def die_at_commits(
    spark: SparkSession,
    directory: Path,
    points: Mapping[str, str],
    runs: Mapping[str, Callable[[], None]],
) -> None:
    """Run jobs at once, and kill this driver and its JVM when each is at its point of the second commit.

    Args:
        spark: Spark.
        directory: It has the directory of each job.
        points: The point of each job, by its name.
        runs: Runs each job, by its name.
    """
    with (
        die_with_blocked_jobs(spark, len(runs)) as pool,
        mock.patch(COMMIT, block_at_commit(points)),
    ):
        ran = {name: pool.submit(run) for name, run in runs.items()}
        wait_until_blocked(
            ran, lambda name: Death(directory / name, "").signals.is_given("blocked")
        )


def main(directory: Path, dsn: str) -> None:
    """Bring all jobs to where they are to die."""
    spark = local_spark(cores=CORES)
    with (
        die_with_blocked_jobs(spark, len(POINTS)) as pool,
        mock.patch(COMMIT, block_at_commit(POINTS)),
    ):
        jobs = {name: job_of(spark, directory, name) for name in POINTS}
        deaths = {name: Death(job.directory, POINTS[name]) for name, job in jobs.items()}
        ran = {name: pool.submit(run, jobs[name], dsn, name, deaths[name]) for name in jobs}
        wait_until_blocked(ran, lambda name: deaths[name].signals.is_given("blocked"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
