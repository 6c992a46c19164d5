"""How much longer is a micro-batch with Holdfast than without, on the same source?

Three queries take turns in one Spark, run after run, over the same files: a `foreachBatch` that
only writes Parquet, the same behind a `mapInArrow` after the shuffle that subtasks need, and the
operator of the demo with its state. The figure is the median period of a micro-batch
(Spark's own `triggerExecution`), milliseconds.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.right_size import RightSize
from holdfast.spark import stateful

Batch = Callable[[DataFrame, int], None]
SCHEMA = "id long, at timestamp, name string"
WARM_UP = 5


def main() -> None:
    """Run the queries in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30, help="counted batches of each run")
    parser.add_argument("--rows", type=int, default=8000, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each query")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
            .config("spark.holdfast.checkpoint.dir", f"file://{directory}/checkpoints")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        feed(directory / "source", files=options.batches + WARM_UP, rows=options.rows)
        periods: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for name, batch in queries(directory / "output").items():
                found = run(spark, directory, batch)
                periods.setdefault(name, []).append(statistics.median(found[WARM_UP:]))
        spark.stop()
    finally:
        shutil.rmtree(directory)
    base = periods["foreachBatch, write only"]
    print(f"median period of {options.batches} batches of {options.rows} rows, ms, by round")
    for name, found in periods.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"{name:40} {'  '.join(f'{one:6.0f}' for one in found)}   ratio {ratio:.2f}")


def queries(output: Path) -> dict[str, Batch]:
    """The queries by name, new each time: nothing of an earlier round is left in them."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(str(output / f"batch={batch_id}"))

    def write_through_python(rows: DataFrame, batch_id: int) -> None:
        dealt = F.pmod(F.monotonically_increasing_id(), F.lit(2)).cast("int")
        write(rows.repartitionById(2, dealt).mapInArrow(through, rows.schema), batch_id)

    operator = stateful(RightSize(5000), sink=write, uid="right-size", parallelism=2)
    return {
        "foreachBatch, write only": write,
        "foreachBatch, shuffle + mapInArrow": write_through_python,
        "stateful": operator,
    }


def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Python operator without state would be."""
    yield from batches


def feed(source: Path, *, files: int, rows: int) -> None:
    """Write the source: small files, one a micro-batch."""
    source.mkdir(parents=True)
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "at": pa.array([i * 1000 for i in ids], pa.timestamp("us", "UTC")),
                "name": [f"row {i}" for i in ids],
            }
        )
        pq.write_table(table, source / f"{number:05}.parquet")


def run(spark: SparkSession, directory: Path, batch: Batch) -> list[float]:
    """Run a query over the whole source; the period of each batch in milliseconds."""
    checkpoint = directory / "spark"
    query = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "source"))
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shutil.rmtree(checkpoint)
    return [float(one["durationMs"]["triggerExecution"]) for one in query.recentProgress]


if __name__ == "__main__":
    main()
