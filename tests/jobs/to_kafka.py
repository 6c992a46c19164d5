"""A driver that dies at every point of the way to Kafka: `python -m jobs.to_kafka DIR BOOTSTRAP`.

It runs a job for each point, over the files that the job's directory has, into a topic of the job's
name. Each blocks at its point in its second batch; when all do, the driver is killed, with its JVM.
"""

import sys
from pathlib import Path
from typing import Any
from unittest import mock

from confluent_kafka import Producer
from jobs.job import Job, local_spark
from jobs.killed import BATCH, die_with_blocked_jobs
from jobs.operators import Groups
from jobs.processes import wait_until_blocked
from jobs.two_phases import COMMIT, GROUP, BlockingGroups, Death, block_at_commit, job_of
from pyspark.sql import DataFrame

from holdfast.spark.query import StatefulOperator
from holdfast.spark.sinks.kafka import KafkaSink

POINTS = {
    "in_a_task": "in a task",
    "after_outbox": "after the outbox is written",
    "before_metadata": "before the metadata",
    "after_metadata": "after the metadata",
    "before_transaction": "before the transaction",
    "in_transaction": "in the transaction",
    "before_commit": "before the transaction is committed",
    "after_commit": "after the transaction is committed",
    "after_deletion": "after the outbox is deleted",
    "late": "before the metadata",
}
"""The point at which the job of a name blocks."""

CORES = 8
_SECOND_BATCH = 3
"""The number of the transaction; the first one stores that nothing was sent."""


class MessageSink(KafkaSink):
    """Makes messages of the rows of jobs."""

    def __init__(self, bootstrap: str, topic: str, **settings: str) -> None:
        settings = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(
            {"bootstrap.servers": bootstrap} | settings, topic, id_prefix=topic, timeout_s=10
        )

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(rows.selectExpr("string(id % 5) AS key", "string(id) AS value"), batch_id)


def sending(job: Job, sink: KafkaSink, **options: object) -> StatefulOperator:
    """Return the operator of a job whose rows go to Kafka."""
    return job.operator(Groups(GROUP), sink=sink, **options)


class DyingSink(MessageSink):
    """Blocks before and after the calls of the query."""

    def __init__(self, bootstrap: str, topic: str, death: Death) -> None:
        super().__init__(bootstrap, topic)
        self.death = death

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(rows, batch_id)
        if batch_id == BATCH:
            self.death.at("after the outbox is written")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        if checkpoint_id == BATCH + 1:
            self.death.at("after the outbox is deleted")


class DyingProducer(Producer):
    """Blocks at the steps of the second batch's transaction."""

    directory: Path

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        name = str(settings["transactional.id"]).partition("-")[0]
        self._death = Death(self.directory / name, POINTS[name])
        self._transactions = 0

    def begin_transaction(self) -> None:
        self._transactions += 1
        self._at("before the transaction")
        super().begin_transaction()

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        super().flush()
        self._at("in the transaction")
        super().send_offsets_to_transaction(*arguments)

    def commit_transaction(self, *arguments: Any) -> None:
        self._at("before the transaction is committed")
        super().commit_transaction(*arguments)
        self._at("after the transaction is committed")

    def _at(self, point: str) -> None:
        if self._transactions == _SECOND_BATCH:
            self._death.at(point)


def main(directory: Path, bootstrap: str) -> None:
    """Bring all jobs to where they are to die."""
    spark = local_spark(cores=CORES)
    DyingProducer.directory = directory
    with (
        die_with_blocked_jobs(spark, len(POINTS)) as pool,
        mock.patch(COMMIT, block_at_commit(POINTS)),
        mock.patch("confluent_kafka.Producer", DyingProducer),
    ):
        jobs = {name: job_of(spark, directory, name) for name in POINTS}
        deaths = {name: Death(job.directory, POINTS[name]) for name, job in jobs.items()}
        ran = {
            name: pool.submit(
                job.run,
                job.operator(
                    BlockingGroups(GROUP, deaths[name]),
                    sink=DyingSink(bootstrap, name, deaths[name]),
                ),
            )
            for name, job in jobs.items()
        }
        wait_until_blocked(ran, lambda name: deaths[name].signals.is_given("blocked"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
