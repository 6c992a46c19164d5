"""A query with every kind of state that runs until somebody says that it is enough: `python -m proof.kinds_job DIR …`.

Started again, it goes on where it was, with another parallelism if it is told so.
"""

import argparse
import logging
import os
import threading
from pathlib import Path

import pyarrow.parquet as pq
from jobs.job import LOCAL, connect
from pyspark.sql import DataFrame

from holdfast.spark import checkpointed, stateful
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


def main() -> None:
    """Run the query until the file `enough` is in its directory, and a batch more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkpoints", required=True, help="URI of the checkpoint directory")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--master", default="local[2,2]")
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
    done = threading.Event()
    shared = {"parallelism": options.parallelism, "max_parallelism": MAX_PARALLELISM}
    sample = stateful(Sample(SIZES), uid="sample", **shared)
    by_key = stateful(ByKeyWithUnion(SIZES), uid="by key", key="key", schema=ROWS, **shared)
    marks = stateful(Marks(), uid="marks", schema=f"{ROWS}, mark long", **shared)

    def process(rows: DataFrame, batch_id: int) -> None:
        marked = rows.where(MARKS_OF_BATCH).selectExpr("value as mark")
        totals = by_key.apply(sample.apply(rows))
        write(marks.apply(totals, broadcast=marked), options.directory, batch_id)
        if (options.directory / ENOUGH).exists():
            done.set()

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH_ROWS)
        .option("numPartitions", 1)
        .load()
        .selectExpr("value", f"{SIZES.key_in_sql} as key")
    )
    query = (
        rows.writeStream.foreachBatch(checkpointed(process, sample, by_key, marks))
        .option("checkpointLocation", str(options.directory / "spark"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    while not done.wait(0.2) and query.isActive:
        pass
    query.stop()
    problem = query.exception()
    if problem is not None and not done.is_set():
        raise SystemExit(f"the query has failed: {problem}")
    spark.stop()


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
