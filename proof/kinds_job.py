"""A query with every kind of state that runs until somebody says that it is enough: `python -m proof.kinds_job DIR …`.

Started again, it goes on where it was, with another parallelism if it is told so.
"""

import argparse
import logging
import os
import threading
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from jobs.job import LOCAL, connect
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.spark import stateful, stateful_query
from proof.kinds import (
    BATCH_ROWS,
    MARKS_OF_BATCH,
    MAX_PARALLELISM,
    ROWS,
    ByKeyWithUnion,
    Marks,
    Sample,
    Sizes,
)

SIZES = Sizes(keys=400, rounds=3)
MOST_SUBTASKS = 4
OPERATORS = {
    "sample": "sample",
    "totals": "by key",
    "last": "by key",
    "recent": "by key",
    "places": "by key",
    "shared sample": "by key",
    "marks": "marks",
}
"""Which operator has which state."""

JOB = "kinds"
ENOUGH = "enough"
DRIVER = "driver"
"""File with the id of the driver that was started last."""
FAILED = "failed"
"""File with a line for each query of a driver that has failed and was to be started again."""


def main() -> None:
    """Run the query until the file `enough` is in its directory, and a batch more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkpoints", required=True, help="URI of the checkpoint directory")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--master", default="local[2,2]")
    parser.add_argument(
        "--again", action="store_true", help="start a query that fails again, in the same Spark"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = LOCAL | {
        "spark.holdfast.checkpoint.dir": options.checkpoints,
        "spark.holdfast.checkpoint.num-retained": "3",
        "spark.holdfast.job.id": JOB,
        "spark.holdfast.state.inline-threshold": "1k",
        **dict(setting.split("=", 1) for setting in options.conf),
    }
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(options.directory / "scratch"))
    spark = connect(options.master, settings)
    (options.directory / DRIVER).write_text(f"{os.getpid()}")
    parallelism = options.parallelism
    while problem := run(spark, options.directory, parallelism):
        if not options.again or not _may_go_on(options.directory):
            raise SystemExit(f"the query has failed: {problem}")
        print(f"the query has failed, and is started again: {problem}", flush=True)
        parallelism = parallelism % MOST_SUBTASKS + 1
    spark.stop()


def run(spark: SparkSession, directory: Path, parallelism: int) -> str:
    """Run the query to its end; why it has failed, or empty if it has not."""
    done = threading.Event()
    query = start(spark, directory, parallelism, done)
    while not done.wait(0.2) and query.isActive:
        pass
    query.stop()
    problem = query.exception()
    return "" if problem is None or done.is_set() else str(problem)


def start(
    spark: SparkSession, directory: Path, parallelism: int, done: threading.Event
) -> StreamingQuery:
    """Start the query, which says in a batch when it has done enough."""
    operator = partial(stateful, parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
    sample = operator(Sample(SIZES), uid="sample")
    by_key = operator(ByKeyWithUnion(SIZES), uid="by key", key="key", schema=ROWS)
    marks = operator(Marks(), uid="marks", schema=f"{ROWS}, mark long")

    def process(rows: DataFrame, batch_id: int) -> None:
        marked = rows.where(MARKS_OF_BATCH).selectExpr("value as mark")
        totals = by_key.apply(sample.apply(rows))
        write(marks.apply(totals, broadcast=marked), directory, batch_id)
        if (directory / ENOUGH).exists():
            done.set()

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH_ROWS)
        .option("numPartitions", 1)
        .load()
        .selectExpr("value", f"{SIZES.key_in_sql} as key")
    )
    return (
        rows.writeStream.foreachBatch(stateful_query(process, sample, by_key, marks))
        .option(
            "checkpointLocation", (directory / "spark").as_uri()
        )  # not on HDFS, by its settings
        .trigger(processingTime="0 seconds")
        .start()
    )


def _may_go_on(directory: Path) -> bool:
    """Whether no other driver was started meanwhile, which would be fenced off by another start.

    Noted first: who stops this process then sees that it may be about to start again.
    """
    with (directory / FAILED).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    return (directory / DRIVER).read_text() == f"{os.getpid()}"


def write(rows: DataFrame, directory: Path, batch_id: int) -> None:
    """Replace what was written for the batch before, in a single step."""
    table = rows.toArrow()
    file = output_file(directory, batch_id)
    new = file.with_suffix(f".{os.getpid()}")
    new.parent.mkdir(exist_ok=True)
    pq.write_table(table, new)
    new.replace(file)


def output_file(directory: Path, batch_id: int) -> Path:
    """Where the output of a batch is."""
    return directory / "output" / f"batch={batch_id}.parquet"


if __name__ == "__main__":
    main()
