"""A query that drops duplicates, and splits the rest into two outputs; `python -m jobs.side_outputs DIR` is killed."""

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jobs.job import Job, local_spark
from jobs.two_phases import die_at_commits
from pyspark.sql import DataFrame

from holdfast import StatefulFunction, keyed, stateful, stateful_query
from holdfast.backends import FunctionInitializationContext
from holdfast.spark.compat import read_arrow
from holdfast.spark.query import StatefulQuery

KEYS = 25_000
ROWS = 10_000
"""Rows of a file: enough for segments that are files."""


class Parity(StatefulFunction):
    """Yields the rows with even ids, and emits the others to the side output "odd"."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.odd = context.side_output("odd")

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            is_odd = pc.equal(pc.bit_wise_and(rows["id"], 1), 1)
            self.odd.emit(rows.filter(is_odd).select(["id"]))
            yield rows.filter(pc.invert(is_odd))


def query(job: Job, parallelism: int = 2) -> StatefulQuery:
    """Return the query, which replaces the output of a batch."""
    once = keyed("key long, id long", "key", uid="once", parallelism=parallelism)
    first = once.deduplicate().operator
    split = stateful(
        Parity(), uid="split", parallelism=parallelism, side_outputs={"odd": "id long"}
    )

    def process(rows: DataFrame, batch_id: int) -> None:
        even = split.apply(first.apply(rows))
        for name, output in (("odd", split.side_output("odd")), ("even", even)):
            directory = job.output / name / f"batch={batch_id}"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            pq.write_table(read_arrow(output), directory / "rows.parquet")

    made: StatefulQuery = stateful_query(process, first, split)
    return made


def run(job: Job, parallelism: int = 2) -> None:
    """Run everything that was fed through the query."""
    rows = job.stream().selectExpr(f"id % {KEYS} as key", "id")
    job.start(query(job, parallelism), rows, availableNow=True).awaitTermination()


def ids_of(job: Job, name: str) -> list[int]:
    """Return all ids in an output, sorted."""
    files = (job.output / name).glob("batch=*/*.parquet")
    return sorted(i for file in files for i in pq.read_table(file)["id"].to_pylist())


def main(directory: Path) -> None:
    """Run a job for each backend, with the backend's name, until they die."""
    spark = local_spark(4)
    jobs = {path.name: Job(spark.newSession(), path) for path in directory.iterdir()}
    for backend, job in jobs.items():
        job.spark.conf.set("spark.holdfast.state.backend", backend)
    runs = {name: partial(run, job) for name, job in jobs.items()}
    die_at_commits(spark, directory, dict.fromkeys(runs, "before the metadata"), runs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
