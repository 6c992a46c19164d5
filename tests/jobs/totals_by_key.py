"""A query that keeps totals by key, and a check of them; `python -m jobs.totals_by_key DIR BACKEND` is killed."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import pyarrow.parquet as pq
from jobs.job import Job, local_spark
from jobs.operators import Totals
from jobs.two_phases import die_at_commits
from pyspark.sql.streaming.state import GroupState

import holdfast
from holdfast.spark.operators import Sink
from holdfast.spark.processors import GroupStateFunction
from holdfast.spark.query import StatefulOperator

KEYS = 4000
ROWS = 10_000
"""Rows of a file: enough for segments that are files."""


Function = Literal["totals", "state"]
"""The function that keeps totals, by the name of its state: one over columns, or one for `applyInPandasWithState`."""

FUNCTIONS: tuple[Function, ...] = get_args(Function)


def add_up(key: tuple[Any], frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Keep the number of rows and the sum of ids, and a timeout that is never reached."""
    rows, ids = state.getOption or (0, 0)
    for frame in frames:
        rows, ids = rows + len(frame), ids + int(frame["id"].sum())
    state.update((rows, ids))
    state.setTimeoutDuration(1_000_000_000)
    yield pd.DataFrame({"key": [key[0]], "rows": [rows], "ids": [ids]})


def totals(
    job: Job, sink: Sink | None = None, function: Function = "totals", **options: object
) -> StatefulOperator:
    """Return the operator."""
    schema, state = "key long, rows long, ids long", "rows long, ids long"
    by_groups = (schema, state, "update", "ProcessingTimeTimeout")
    return job.operator(
        Totals() if function == "totals" else GroupStateFunction(add_up, *by_groups),
        sink=sink or job.write,
        key="key",
        schema=schema,
        **options,
    )


def run(job: Job, operator: StatefulOperator) -> None:
    """Run everything that was fed through the operator."""
    rows = job.stream().selectExpr("*", f"id % {KEYS} as key")
    job.start(operator, rows, availableNow=True).awaitTermination()


def check_totals(job: Job, function: Function = "totals") -> None:
    """Check that the state, and the last output row of each key, are the totals of all rows."""
    fed = len(job.ids_fed)
    expected = {key: (len(ids), sum(ids)) for key in range(KEYS) if (ids := range(key, fed, KEYS))}
    pointer = job.latest().location.external_pointer
    state = holdfast.read_state(pointer, "operator", function)
    values = zip(*(state.column(name).to_pylist() for name in ("key", "value")), strict=True)
    assert {key: (value["rows"], value["ids"]) for key, value in values} == expected
    last: dict[int, tuple[int, int]] = {}
    for batch in sorted(job.output.glob("batch=*"), key=lambda path: int(path.name[6:])):
        for file in batch.glob("*.parquet"):
            for row in pq.read_table(file).to_pylist():
                last[row["key"]] = row["rows"], row["ids"]
    assert last == expected


def main(directory: Path, backend: str) -> None:
    """Run a job for each function, with the function's name, until they die."""
    spark = local_spark(4)
    jobs = {function: Job(spark.newSession(), directory / function) for function in FUNCTIONS}
    for job in jobs.values():
        job.spark.conf.set("spark.holdfast.state.backend", backend)
    runs: dict[str, Callable[[], None]] = {
        name: partial(run, job, totals(job, function=name)) for name, job in jobs.items()
    }
    die_at_commits(spark, directory, dict.fromkeys(runs, "before the metadata"), runs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
