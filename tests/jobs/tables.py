"""Jobs that write tables of Delta and Iceberg, in the process of a Spark that has both.

Each job reads three files of 100 rows in three batches, and writes them by one of the sinks.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from jobs.job import LOCAL, Job, connect
from jobs.operators import Groups
from jobs.two_phases import GROUP
from pyspark.sql import DataFrame, SparkSession

from holdfast import roll_back
from holdfast.spark.operators import Sink
from holdfast.spark.sinks import delta, iceberg

FILES = 3
KINDS = ("delta_append", "delta_merge", "iceberg_append", "iceberg_merge")
KEYS = 49
DELETED = "value % 5 = 0"

CATALOG = "lake"
"""The Iceberg catalog; its tables are directories of the warehouse."""

_EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
)


def table_settings(jars: Path, warehouse: Path) -> dict[str, str]:
    """Settings of a Spark that has both."""
    return {
        "spark.jars": ",".join(map(str, sorted(jars.iterdir()))),
        "spark.sql.extensions": _EXTENSIONS,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse),
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
        # Else each read of a small table's log takes fifty tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def start_spark(jars: Path, warehouse: Path, *, cores: int = 4) -> SparkSession:
    """Start the Spark of this process, and its catalog."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    return connect(f"local[{cores},2]", LOCAL | table_settings(jars, warehouse))


def this_spark() -> SparkSession:
    """Return the Spark of this process."""
    return SparkSession.builder.getOrCreate()


def table_of(kind: str, directory: Path, name: str) -> str:
    """Return the name of a table; Delta's is its path."""
    return f"{CATALOG}.db.{name}" if kind.startswith("iceberg") else str(directory / name / "table")


def sink_of(kind: str, table: str) -> Sink:
    """Return a sink of this kind."""
    match kind:
        case "delta_append":
            return delta.append_once(table)
        case "delta_merge":
            return delta.merge(table, on=["key"], deletes="deleted", latest="value")
        case "iceberg_append":
            return iceberg.append_once(table)
        case _:
            return iceberg.merge(table, on=["key"], deletes="deleted", latest="value")


def output_of(kind: str, rows: DataFrame) -> DataFrame:
    """Return the rows for a sink of this kind."""
    if kind.endswith("append"):
        return rows.select("id")
    return rows.selectExpr(f"id % {KEYS} AS key", "id AS value").selectExpr(
        "*", f"{DELETED} AS deleted"
    )


def job_of(spark: SparkSession, directory: Path, name: str) -> Job:
    """Return one of the jobs, in its own session."""
    job = Job(spark.newSession(), directory / name)
    job.settings["spark.holdfast.checkpoint.num-retained"] = "9"
    return job


def query_of(job: Job, kind: str, sink: Sink, function: Groups | None = None) -> Any:
    """Return the query of a job."""
    operator = job.part(function or Groups(GROUP), "operator", parallelism=2)
    return job.chain(operator, sink=lambda rows, batch_id: sink(output_of(kind, rows), batch_id))


def run_job(directory: Path, name: str, kind: str, *, files: int = 0) -> None:
    """Feed a job with files, and run it until all are read."""
    job = job_of(this_spark(), directory, name)
    job.feed(files)
    job.run(query_of(job, kind, sink_of(kind, table_of(kind, directory, name))))


def restart_jobs(directory: Path, kinds: dict[str, str]) -> list[list[int]]:
    """Run jobs that were killed until all files are read; returns the ids that the operator emits in each batch.

    With another number of subtasks it would emit others: it groups the rows of a subtask.
    """
    job = job_of(this_spark(), directory, "undisturbed")
    job.feed(FILES)
    batches: list[list[int]] = []

    def write(rows: DataFrame, batch_id: int) -> None:
        batches.append([row.id for row in rows.collect()])

    with ThreadPoolExecutor(4) as pool:
        undisturbed = pool.submit(job.run, query_of(job, "delta_append", write))
        restarted = [pool.submit(run_job, directory, name, kind) for name, kind in kinds.items()]
        for ran in [undisturbed, *restarted]:
            ran.result()
    return batches


def roll_back_job(directory: Path, name: str, checkpoint: int) -> None:
    """Roll a job back."""
    roll_back(f"file://{directory / name / 'spark'}", checkpoint=checkpoint)


@contextmanager
def batch(application_id: str) -> Iterator[None]:
    """Run the block as a batch of a query with this application id."""
    running = SimpleNamespace(application_id=lambda: application_id, targets=set())
    with mock.patch("holdfast.spark.sinks.batches.current_batch", return_value=running):
        yield
