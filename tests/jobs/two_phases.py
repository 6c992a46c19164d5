"""A job with a sink that commits in two phases; run as a program, it is killed in its second batch.

`python -m jobs.two_phases DIR DSN TABLE POINT`
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pyarrow as pa
from jobs.inside_spark import jvm_of
from jobs.job import Job, local_spark
from jobs.killed import BATCH, kill
from jobs.operators import Groups
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.two_phase_commit import Connect, PostgresSink
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    JobOwnership,
    complete_checkpoint,
)
from holdfast.locations.metadata import encode_metadata

GROUP = 30
COMMIT = "holdfast.spark.query.coordinator.complete_checkpoint"
SECOND = f"-{BATCH + 1}-"
"""In the names of transactions of the second batch."""


class KillsDriver(Groups):
    """Kills the driver when it has state to go on with, and rows of the batch are through."""

    def __init__(self, size: int, victims: list[int]) -> None:
        super().__init__(size)
        self.victims = victims

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_restored = len(self.rows) > 0
        yield from super().process(batches)
        if is_restored:
            kill(self.victims)


class SignedSink(PostgresSink):
    """Also writes which driver it was."""

    def __init__(self, connect: Connect, table: str, *, driver: str) -> None:
        super().__init__(connect, table, job=table)
        self.driver = driver

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(rows.withColumn("driver", F.lit(self.driver)), batch_id)


class DyingConnection(psycopg.Connection[Any]):
    """Kills the driver when it comes to the point."""

    point = ""
    victims: tuple[int, ...] = ()
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
        if point == self.point and SECOND in name:
            # Itself last, and in a task the JVM behind the driver: it takes its tasks with it.
            kill([*(pid for pid in self.victims if pid != os.getpid()), os.getpid()])


@dataclass(frozen=True)
class Dying:
    """Opens connections that kill the driver."""

    dsn: str
    point: str
    victims: tuple[int, ...]

    def __call__(self) -> DyingConnection:
        connection = DyingConnection.connect(self.dsn)
        connection.point = self.point
        connection.victims = self.victims
        return connection


def main(directory: Path, dsn: str, table: str, point: str) -> None:
    """Run the job until it dies."""
    spark = local_spark()
    job = Job(spark, directory)
    job.settings["spark.holdfast.checkpoint.num-retained"] = "9"
    driver, jvm = os.getpid(), jvm_of(spark)

    class Sink(SignedSink):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            super().notify_checkpoint_complete(checkpoint_id)
            if point == "after it is committed" and checkpoint_id == BATCH + 1:
                kill([jvm, driver])

    def committing(
        location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        second = metadata.checkpoint_id == BATCH + 1
        if second and point == "before the metadata":
            late = encode_metadata(metadata, location.external_pointer)
            (directory / "late").write_bytes(late)
            kill([jvm, driver])
        completed = complete_checkpoint(location, metadata, ownership)
        if second and point == "after the metadata":
            kill([jvm, driver])
        return completed

    operator = KillsDriver(GROUP, [driver, jvm]) if point == "in a task" else Groups(GROUP)
    sink = Sink(Dying(dsn, point, (driver, jvm)), table, driver="killed")
    with mock.patch(COMMIT, committing):
        job.run(job.operator(operator, sink=sink))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
