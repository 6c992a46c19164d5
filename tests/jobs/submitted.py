"""A job as its users submit it: `spark-submit --py-files holdfast.zip submitted.py DIR`.

It imports nothing from this repository except Holdfast. Its output has the path of Holdfast on each executor. In the
second batch, it kills an executor once if there is a file `DIR/kill-executor`, and the driver if there is a file `DIR/kill-driver`.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast import StatefulFunction, stateful
from holdfast.backends import FunctionInitializationContext, ListStateDescriptor


class Numbers(StatefulFunction):
    """Numbers the rows of its subtask over all batches."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self.seen = store.get_list_state(ListStateDescriptor("seen", pa.int64()))

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            first = len(self.seen)
            if first:
                kill_once(self.directory / "kill-executor")
            self.seen.add_all(batch["id"])
            columns = {
                "id": batch["id"],
                "number": pa.array(range(first, first + len(batch)), pa.int64()),
                "found": [os.path.abspath(str(holdfast.__file__))] * len(batch),
                "python": [sys.executable] * len(batch),
            }
            yield pa.record_batch(columns)


def kill_once(order: Path) -> None:
    """Kill the JVM of this Python process, if the file is there; only one of several processes does."""
    try:
        order.unlink()
    except FileNotFoundError:
        return
    next(parent for parent in psutil.Process().parents() if parent.name() == "java").kill()


def main(directory: Path) -> None:
    """Read all files, one in each batch."""
    spark = SparkSession.builder.getOrCreate()

    def sink(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(f"{directory}/output/batch={batch_id}")
        if batch_id == 1:
            kill_once(directory / "kill-driver")

    operator = stateful(
        Numbers(directory),
        sink=sink,
        uid="numbers",
        parallelism=2,
        schema="id long, number long, found string, python string",
    )
    query = (
        spark.readStream.schema("id long, at timestamp, name string")
        .option("maxFilesPerTrigger", 1)
        .parquet(f"{directory}/source")
        .writeStream.foreachBatch(operator)
        .option("checkpointLocation", f"{directory}/spark")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
