"""A query that keeps totals by key, and a check of them; `python -m jobs.totals_by_key DIR BACKEND` is killed."""

import os
import sys
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
from jobs.job import Job, local_spark
from jobs.killed import kill_before_commit
from jobs.operators import Totals
from jobs.session import jvm_of

import holdfast
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator

KEYS = 4000
ROWS = 10_000
"""Rows of a file: enough for segments that are files."""


def totals(job: Job, sink: Sink | None = None, **options: object) -> StatefulOperator:
    """Return the operator."""
    return job.operator(
        Totals(),
        sink=sink or job.write,
        key="key",
        schema="key long, rows long, ids long",
        **options,
    )


def run(job: Job, operator: StatefulOperator) -> None:
    """Run everything that was fed through the operator."""
    rows = job.stream().selectExpr("*", f"id % {KEYS} as key")
    job.start(operator, rows, availableNow=True).awaitTermination()


def check_totals(job: Job) -> None:
    """Check that the state, and the last output row of each key, are the totals of all rows."""
    fed = len(job.ids_fed)
    expected = {key: (len(ids), sum(ids)) for key in range(KEYS) if (ids := range(key, fed, KEYS))}
    pointer = job.latest().location.external_pointer
    state = holdfast.read_state(pointer, "operator", "totals")
    values = zip(*(state.column(name).to_pylist() for name in ("key", "value")), strict=True)
    assert {key: (value["rows"], value["ids"]) for key, value in values} == expected
    last: dict[int, tuple[int, int]] = {}
    for batch in sorted(job.output.glob("batch=*"), key=lambda path: int(path.name[6:])):
        for file in batch.glob("*.parquet"):
            for row in pq.read_table(file).to_pylist():
                last[row["key"]] = row["rows"], row["ids"]
    assert last == expected


def main(directory: Path, backend: str) -> None:
    """Run the job until it dies."""
    spark = local_spark()
    spark.conf.set("spark.holdfast.state.backend", backend)
    job = Job(spark, directory)
    commit = "holdfast.spark.query.coordinator.complete_checkpoint"
    with mock.patch(commit, kill_before_commit([jvm_of(spark), os.getpid()])):
        run(job, totals(job))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
