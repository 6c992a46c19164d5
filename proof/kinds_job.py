"""A query with all types of state that runs until a file appears: `python -m proof.kinds_job DIR …`.

It resumes when it is started again, possibly with another parallelism.
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

from holdfast import stateful, stateful_query
from proof.kinds import (
    BATCH_ROWS,
    MARKS_OF_BATCH,
    MAX_PARALLELISM,
    ROWS,
    Marks,
    Sample,
    Sizes,
    UnionKeyedTotals,
)

SIZES = Sizes(keys=400, rounds=3)
MAX_SUBTASKS = 4
OPERATORS = {
    "sample": "sample",
    "totals": "by key",
    "last": "by key",
    "recent": "by key",
    "places": "by key",
    "shared sample": "by key",
    "marks": "marks",
}
"""The operator of each state."""

JOB = "kinds"
STOP_FILE = "enough"
DRIVER_FILE = "driver"
"""File with the process id of the last driver."""
FAILED_FILE = "failed"
"""File with a line for each failed query that its driver restarts."""


def main() -> None:
    """Run the query until its directory has the file `enough`, and for one more batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkpoints", required=True, help="URI of the checkpoint directory")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--master", default="local[2,2]")
    parser.add_argument(
        "--again", action="store_true", help="restart a failed query in the same Spark"
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
    (options.directory / DRIVER_FILE).write_text(f"{os.getpid()}")
    parallelism = options.parallelism
    while problem := run(spark, options.directory, parallelism):
        if not options.again or not _may_restart(options.directory):
            raise SystemExit(f"the query has failed: {problem}")
        print(f"the query has failed, and is restarted: {problem}", flush=True)
        parallelism = parallelism % MAX_SUBTASKS + 1
    spark.stop()


def run(spark: SparkSession, directory: Path, parallelism: int) -> str:
    """Run the query to its end; returns its error, or an empty string."""
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
    """Start the query, which sets the event when it is done."""
    operator = partial(stateful, parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
    sample = operator(Sample(SIZES), uid="sample")
    by_key = operator(UnionKeyedTotals(SIZES), uid="by key", key="key", schema=ROWS)
    marks = operator(Marks(), uid="marks", schema=f"{ROWS}, mark long")

    def process(rows: DataFrame, batch_id: int) -> None:
        marked = rows.where(MARKS_OF_BATCH).selectExpr("value as mark")
        totals = by_key.apply(sample.apply(rows))
        write(marks.apply(totals, broadcast=marked), directory, batch_id)
        if (directory / STOP_FILE).exists():
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
        )  # not on HDFS, which its settings would choose
        .trigger(processingTime="0 seconds")
        .start()
    )


def _may_restart(directory: Path) -> bool:
    """Return whether no other driver was started concurrently, which a restart would fence off.

    The restart is recorded first, so that a test that stops this process sees it.
    """
    with (directory / FAILED_FILE).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    return (directory / DRIVER_FILE).read_text() == f"{os.getpid()}"


def write(rows: DataFrame, directory: Path, batch_id: int) -> None:
    """Replace the output of the batch atomically."""
    table = rows.toArrow()
    file = output_file(directory, batch_id)
    new = file.with_suffix(f".{os.getpid()}")
    new.parent.mkdir(exist_ok=True)
    pq.write_table(table, new)
    new.replace(file)


def output_file(directory: Path, batch_id: int) -> Path:
    """Return the file with the output of a batch."""
    return directory / "output" / f"batch={batch_id}.parquet"


if __name__ == "__main__":
    main()
