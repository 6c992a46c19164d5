"""A driver that dies at each step of sinks of tables: `python -m jobs.table_kills DIR JARS`.

It runs a job for each sink and point. Each blocks at its point in its second batch; when all do, the driver is killed,
with its JVM.
"""

import sys
from pathlib import Path
from unittest import mock

from jobs.job import Job
from jobs.killed import BATCH, die_with_blocked_jobs
from jobs.processes import wait_until_blocked
from jobs.tables import job_of, query_of, sink_of, start_spark, table_of
from jobs.two_phases import COMMIT, GROUP, BlockingGroups, Death
from pyspark.sql import DataFrame

from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership
from holdfast.spark.operators import Sink

STAGED = "before the table shows the rows"
"""The point between the two steps of Iceberg's append."""

JOBS = {
    "delta_append_in_task": ("delta_append", "in a task"),
    "delta_append_written": ("delta_append", "before the metadata"),
    "delta_append_completed": ("delta_append", "after the metadata"),
    "delta_merge_written": ("delta_merge", "before the metadata"),
    "iceberg_append_staged": ("iceberg_append", STAGED),
    "iceberg_append_written": ("iceberg_append", "before the metadata"),
    "iceberg_merge_written": ("iceberg_merge", "before the metadata"),
}
"""The sink of a job, and the point at which it dies: before the commit of the table, after it, or after the checkpoint."""


def commit_or_block(
    location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
) -> CompletedCheckpoint:
    """Commit, but block before or after the second commit of some jobs."""
    directory = Path(location.external_pointer.removeprefix("file://")).parents[2]
    death = Death(directory, JOBS[directory.name][1])
    is_second = metadata.checkpoint_id == BATCH + 1
    if is_second:
        death.at("before the metadata")
    completed = complete_checkpoint(location, metadata, ownership)
    if is_second:
        death.at("after the metadata")
    return completed


def blocking_sink(kind: str, table: str, death: Death) -> Sink:
    """Return a sink that blocks between the two steps of Iceberg's append."""
    sink = sink_of(kind, table)
    if death.point != STAGED:
        return sink

    def write(rows: DataFrame, batch_id: int) -> None:
        if batch_id == BATCH:
            session = rows.sparkSession
            attempted = session.sql

            def sql(statement: str) -> DataFrame:
                if statement.startswith("CALL"):
                    death.block()
                return attempted(statement)

            with mock.patch.object(session, "sql", sql):
                sink(rows, batch_id)
        else:
            sink(rows, batch_id)

    return write


def run(job: Job, kind: str, table: str, death: Death) -> None:
    """Run a job until it blocks."""
    job.run(query_of(job, kind, blocking_sink(kind, table, death), BlockingGroups(GROUP, death)))


def main(directory: Path, jars: Path) -> None:
    """Bring all jobs to where they are to die."""
    spark = start_spark(jars, directory / "warehouse", cores=8)
    with die_with_blocked_jobs(spark, len(JOBS)) as pool, mock.patch(COMMIT, commit_or_block):
        jobs = {name: job_of(spark, directory, name) for name in JOBS}
        deaths = {name: Death(job.directory, JOBS[name][1]) for name, job in jobs.items()}
        ran = {
            name: pool.submit(
                run,
                jobs[name],
                JOBS[name][0],
                table_of(JOBS[name][0], directory, name),
                deaths[name],
            )
            for name in jobs
        }
        wait_until_blocked(ran, lambda name: deaths[name].signals.is_given("blocked"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
