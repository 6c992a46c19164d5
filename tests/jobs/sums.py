"""Queries with Spark state: sums by key over a folder of Parquet files, one a batch."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from jobs.operators import RowNumbers
from jobs.session import jvm_classes, session_with
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast import stateful

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
"""The settings for each format of Spark's state."""

Plan = Callable[[DataFrame], DataFrame]


def sums(rows: DataFrame) -> DataFrame:
    """Sum up the values of each key."""
    return rows.groupBy("key").agg(F.sum("value").alias("total"), F.count("*").alias("rows"))


def distinct_sums(rows: DataFrame) -> DataFrame:
    """Sum up the distinct values of each key: two operators with state."""
    return sums(rows.dropDuplicates(["value"]))


def join_earlier(rows: DataFrame) -> DataFrame:
    """Join each row with the row of the batch before whose value is smaller by 30."""
    earlier = rows.select((F.col("value") + 30).alias("value"), F.col("key").alias("before"))
    return rows.join(earlier, "value")


class Sums:
    """A query of sums; several can read the same folder.

    Args:
        spark: The session.
        source: The folder.
        checkpoint: URI of the checkpointLocation.
        settings: Spark settings that it is started with.
        plan: The query's plan.

    Attributes:
        batches: The output rows, sorted, by batch.
        function: The sink.
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
        """Read all files of the source."""
        with session_with(self.spark, self.settings):
            query = self._writer().trigger(availableNow=True).start()
            query.awaitTermination()

    def start(self) -> StreamingQuery:
        """Start the query, which runs until it is stopped."""
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
            .writeStream.outputMode("append" if self.plan is join_earlier else "update")
            .foreachBatch(self.function)
            .option("checkpointLocation", self.checkpoint)
        )

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the rows of a batch; those of its earlier run are replaced."""
        self.batches[batch_id] = sorted(tuple(row) for row in rows.collect())


def roll_back_elsewhere(spark: SparkSession, checkpoint_location: str, **wanted: int) -> int:
    """Roll a query back as if the application that ran it had ended: Spark keeps no state in memory."""
    streaming = jvm_classes(spark).org.apache.spark.sql.execution.streaming
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


def expected_sums(numbers: range, rows: int = 30) -> dict[int, list[tuple[int, int, int]]]:
    """Compute without Spark what the query yields for each of those batches."""
    totals: dict[int, tuple[int, int]] = {}
    sums_by_key = {}
    for number in range(numbers.stop):
        for value in range(number * rows, (number + 1) * rows):
            total, count = totals.get(value * 31 % KEYS, (0, 0))
            totals[value * 31 % KEYS] = (total + value, count + 1)
        # Each file has all keys.
        sums_by_key[number] = sorted((key, *both) for key, both in totals.items())
    return {number: sums_by_key[number] for number in numbers}


class NumberedSums(Sums):
    """Sums by key that an operator of Holdfast numbers."""

    def __init__(
        self, spark: SparkSession, source: Path, checkpoint: str, settings: dict[str, str]
    ) -> None:
        super().__init__(spark, source, checkpoint, settings, _totals)
        self.function = stateful(
            RowNumbers(),
            sink=self.take,
            uid="numbered",
            parallelism=1,
            schema="id long, nth long, subtask int",
        )

    def totals_and_numbers(self) -> dict[int, tuple[list[int], list[int]]]:
        """Return the totals and numbers of each batch."""
        return {
            batch: (sorted(row[0] for row in rows), sorted(row[1] for row in rows))  # type: ignore[misc]
            for batch, rows in self.batches.items()
        }


def _totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.sum("value").alias("id")).select("id")


def expected_numbers(batches: range) -> dict[int, tuple[list[int], list[int]]]:
    """Compute the totals and numbers of each batch."""
    return {
        batch: (sorted(total for _, total, _ in rows), list(range(7 * batch, 7 * batch + 7)))
        for batch, rows in expected_sums(batches).items()
    }
