"""A query with state of Spark's own: sums by key over a folder of Parquet files, one a batch."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from jobs.inside_spark import classes_of
from jobs.session import session_with
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

KEYS = 7
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_STORE = "spark.sql.streaming.stateStore."
_ZIP = {f"{_STORE}providerClass": ROCKSDB}
_CHANGELOG = _ZIP | {f"{_STORE}rocksdb.changelogCheckpointing.enabled": "true"}

FORMATS: dict[str, dict[str, str]] = {
    "in files of HDFS": {},
    "in RocksDB": _ZIP,
    "in RocksDB with changelogs": _CHANGELOG,
    "in format 2": _CHANGELOG | {f"{_STORE}checkpointFormatVersion": "2"},
    "in format 2 without changelogs": _ZIP | {f"{_STORE}checkpointFormatVersion": "2"},
}
"""How Spark can keep the state, and the settings for it."""

Plan = Callable[[DataFrame], DataFrame]


def sums(rows: DataFrame) -> DataFrame:
    """The sum for each key that the batch has changed."""
    return rows.groupBy("key").agg(F.sum("value").alias("total"), F.count("*").alias("rows"))


def distinct_sums(rows: DataFrame) -> DataFrame:
    """The same, of the first occurrence of each value: two operators with state."""
    return sums(rows.dropDuplicates(["value"]))


def joined(rows: DataFrame) -> DataFrame:
    """Each row of a batch, with that of the batch before whose value is smaller by 30."""
    earlier = rows.select((F.col("value") + 30).alias("value"), F.col("key").alias("before"))
    return rows.join(earlier, "value")


class Sums:
    """One query of that kind; several can read the same folder.

    Args:
        spark: The session.
        source: The folder.
        checkpoint: URI of the checkpointLocation.
        settings: Settings of Spark that it is started with.
        plan: What it does with rows.

    Attributes:
        batches: What came out, sorted, by batch.
        function: What takes the rows of a batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: Path,
        checkpoint: str,
        settings: Mapping[str, str],
        plan: Plan = sums,
    ) -> None:
        self.spark = spark
        self.source = source
        self.checkpoint = checkpoint
        self.settings = settings
        self.plan = plan
        self.batches: dict[int, list[tuple[object, ...]]] = {}
        self.function: Callable[[DataFrame, int], None] = self.take

    def run(self) -> None:
        """Read everything that is there."""
        with session_with(self.spark, self.settings):
            query = self._writer().trigger(availableNow=True).start()
            query.awaitTermination()

    def start(self) -> StreamingQuery:
        """Go on until it is stopped."""
        with session_with(self.spark, self.settings):
            return self._writer().start()

    def _writer(self) -> DataStreamWriter:
        rows = (
            self.spark.readStream.schema("key long, value long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.source))
        )
        return (
            self.plan(rows)
            .writeStream.outputMode("append" if self.plan is joined else "update")
            .foreachBatch(self.function)
            .option("checkpointLocation", self.checkpoint)
        )

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the rows of a batch, in place of what was kept for it before."""
        self.batches[batch_id] = sorted(tuple(row) for row in rows.collect())


def roll_back_elsewhere(spark: SparkSession, checkpoint_location: str, **wanted: int) -> int:
    """Roll a query back as if the application that ran it had ended: none of its state is kept."""
    streaming = classes_of(spark).org.apache.spark.sql.execution.streaming
    streaming.state.StateStore.stop()
    code = (
        "import sys; from holdfast import roll_back; "
        "print(roll_back(sys.argv[1], **eval(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, checkpoint_location, repr(wanted)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def feed(source: Path, numbers: range, rows: int = 30) -> None:
    """Put files with those numbers into a folder."""
    source.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        values = range(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "key": pa.array([value * 31 % KEYS for value in values], pa.int64()),
                "value": pa.array(values, pa.int64()),
            }
        )
        hidden = source / f".{number:04}.parquet"  # a query may be reading the folder
        pq.write_table(table, hidden)
        os.utime(hidden, (1_700_000_000 + number,) * 2)  # Spark reads the oldest first
        hidden.rename(source / f"{number:04}.parquet")


def expected(numbers: range, rows: int = 30) -> dict[int, list[tuple[int, int, int]]]:
    """What the query yields for each of those batches, worked out without Spark."""
    totals: dict[int, tuple[int, int]] = {}
    sums_by_key = {}
    for number in range(numbers.stop):
        for value in range(number * rows, (number + 1) * rows):
            total, count = totals.get(value * 31 % KEYS, (0, 0))
            totals[value * 31 % KEYS] = (total + value, count + 1)
        # Each file has all keys.
        sums_by_key[number] = sorted((key, *both) for key, both in totals.items())
    return {number: sums_by_key[number] for number in numbers}
