"""A streaming query over small Parquet files, for tests."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs.pyspark_versions import FILE_MANAGER
from jobs.session import STATE_BACKEND, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast import StatefulFunction, stateful, stateful_query
from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.locations import CompletedCheckpoint, FileSystemCheckpointStorage
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.spark.by_key import KeyedOutput
from holdfast.spark.compat import read_arrow
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator, StatefulQuery

LOCAL = {
    # The default starts a `readlink` for each rename on a local disk: a hundred processes in a test.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    "spark.python.daemon.module": "holdfast.worker_daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that make small queries cheap, in a Spark that finds the modules of tests."""


def local_spark(cores: int = 2) -> SparkSession:
    """Return a Spark that is in this process only."""
    return connect(f"local[{cores},2]", LOCAL)  # a task that fails is tried once more


def connect(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a Spark whose executors find the modules of this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .config("spark.holdfast.state.backend", STATE_BACKEND)
        .config(map=dict(settings))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


class Job:
    """A streaming query over a folder of Parquet files, which can be run again and again.

    Each file is a micro-batch; `run` ends when all files are read, or raises.
    """

    schema = "id long, at timestamp, name string"
    arrow_schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())]
    )

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.settings = {"spark.holdfast.checkpoint.dir": f"file://{self.checkpoints}"}
        self.source.mkdir(parents=True, exist_ok=True)
        files = list(self.source.iterdir())
        self._files = len(files)
        self._rows = sum(pq.read_metadata(file).num_rows for file in files)

    @property
    def source(self) -> Path:
        return self.directory / "source"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def spark_checkpoint(self) -> Path:
        return self.directory / "spark"

    @property
    def output(self) -> Path:
        return self.directory / "output"

    @property
    def job_directory(self) -> Path:
        """The only job's directory."""
        (only,) = self.checkpoints.iterdir()
        return only

    def checkpoint_ids(self) -> list[int]:
        """Return the ids of the completed checkpoints, read without the library."""
        return sorted(
            int(file.parent.name.removeprefix("chk-"))
            for file in self.checkpoints.glob("*/chk-*/_metadata")
        )

    def feed(self, files: int, rows: int = 100) -> None:
        """Put files into the source, each with this many new rows."""
        for _ in range(files):
            ids = range(self._rows, self._rows + rows)
            columns = {
                "id": ids,
                "at": [i * 1_000_000 for i in ids],
                "name": [f"row {i}" for i in ids],
            }
            table = pa.table(columns, self.arrow_schema)
            file = self.source / f"{self._files:04}.parquet"
            pq.write_table(table, file)
            os.utime(file, (1_700_000_000 + self._files,) * 2)  # Spark reads the oldest first
            self._files += 1
            self._rows += rows

    def feed_at(self, *moments_us: int | None) -> None:
        """Put a file into the source, with a row for each moment, in microseconds since 1970."""
        self.feed(files=1, rows=0)
        file = self.source / f"{self._files - 1:04}.parquet"
        ids = range(self._rows, self._rows + len(moments_us))
        columns = {"id": ids, "at": moments_us, "name": [f"row {i}" for i in ids]}
        modified = file.stat().st_mtime
        pq.write_table(pa.table(columns, self.arrow_schema), file)
        os.utime(file, (modified, modified))
        self._rows += len(moments_us)

    def stream(self) -> DataFrame:
        """Return the rows of the source, a file in each micro-batch."""
        stream = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(self.source))

    def run(self, function: Sink) -> None:
        """Read all files of the source."""
        self.start(function, availableNow=True).awaitTermination()

    def start(
        self, function: Sink, rows: DataFrame | None = None, mode: str = "append", **trigger: object
    ) -> StreamingQuery:
        """Start the query, by default over the rows of the source."""
        with session_with(self.spark, self.settings):
            query: StreamingQuery = (
                (self.stream() if rows is None else rows)
                .writeStream.foreachBatch(function)  # type: ignore[arg-type]
                .outputMode(mode)
                .option("checkpointLocation", str(self.spark_checkpoint))
                .trigger(**trigger)  # type: ignore[call-overload]
                .start()
            )
            return query

    def start_keyed(self, output: KeyedOutput, write: Sink) -> StreamingQuery:
        """Start a query that reads all files of the source into an operator by key."""
        with session_with(self.spark, self.settings):
            writer = output.writeStream.option("checkpointLocation", str(self.spark_checkpoint))
            query: StreamingQuery = writer.foreachBatch(write).trigger(availableNow=True).start()
            return query

    def operator(self, function: StatefulFunction, **options: object) -> StatefulOperator:
        """Return the function as an operator with two subtasks, writing to `output`."""
        arguments: dict[str, object] = {"sink": self.write, "uid": "operator", "parallelism": 2}
        return stateful(function, **(arguments | options))  # type: ignore[arg-type]

    def part(self, function: StatefulFunction, uid: str, **options: object) -> StatefulOperator:
        """Return the function as one of several operators, with two subtasks and without a sink."""
        return self.operator(function, uid=uid, sink=None, **options)

    def chain(self, *parts: StatefulOperator, sink: Sink | None = None) -> StatefulQuery:
        """Return a query that runs its rows through the operators one after the other."""

        def process(rows: DataFrame, batch_id: int) -> None:
            for chained in parts:
                rows = chained.apply(rows)
            (sink or self.write)(rows, batch_id)

        query: StatefulQuery = stateful_query(process, *parts)
        return query

    def latest(self) -> CompletedCheckpoint:
        """Return the newest checkpoint."""
        storage = FileSystemCheckpointStorage(f"file://{self.checkpoints}")
        latest = load_latest_checkpoint(storage.create_checkpoint_storage(self.job_directory.name))
        assert latest is not None
        return latest

    def ids_held(self, uid: str = "operator") -> list[int]:
        """Return all ids in an operator's list state `rows`, sorted, read without Spark."""
        return sorted(i for ids in self.ids_by_subtask(uid).values() for i in ids)

    def check_every_row_is_there_once(self, *uids: str) -> None:
        """Check that each row is either in the output or in the state of one of the operators."""
        held = [i for uid in uids or ("operator",) for i in self.ids_held(uid)]
        assert sorted([*self.ids_written(), *held]) == self.ids_fed

    def check_refused(self, function: Sink, message: str) -> None:
        """Check that a query fails with a message before it changes a checkpoint, the ownership or the output."""

        def contents() -> object:
            output = self.output.glob("batch=*/*.parquet")  # a rewritten file has another name
            return sorted(output), sorted(self.job_directory.glob("*/*"))

        before = contents()
        with pytest.raises(StreamingQueryException, match=message):
            self.run(function)
        assert contents() == before

    @property
    def ids_fed(self) -> list[int]:
        """All ids that were put into the source."""
        return list(range(self._rows))

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Replace the output of the batch, without Spark's writer, which costs as much as the rest of a small batch."""
        written = read_arrow(rows)
        directory = self.output / f"batch={batch_id}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        pq.write_table(written, directory / "rows.parquet")

    def write_and_fail_in(self, batch: int) -> Sink:
        """Return a sink that writes its rows, and then fails in a batch."""

        def sink(rows: DataFrame, batch_id: int) -> None:
            self.write(rows, batch_id)
            if batch_id == batch:
                raise OSError("as planned")

        return sink

    def write_by_spark(self, rows: DataFrame, batch_id: int) -> None:
        """Replace the output of the batch by tasks of Spark."""
        rows.write.mode("overwrite").parquet(str(self.output / f"batch={batch_id}"))

    def ids_written(self) -> list[int]:
        """Return all ids in the output, sorted, read without Spark."""
        files = self.output.glob("batch=*/*.parquet")
        return sorted(i for file in files for i in pq.read_table(file)["id"].to_pylist())

    def ids_by_subtask(self, uid: str = "operator") -> dict[int, list[int]]:
        """Return the ids in each subtask's list state `rows`, in the last checkpoint."""
        held = {}
        for subtask, state in self.latest().metadata.operators[uid].subtasks.items():
            backend = OperatorStateBackend.restore(state.managed_operator)
            descriptor = ListStateDescriptor("rows", self.arrow_schema)
            held[subtask] = backend.get_list_state(descriptor).to_table()["id"].to_pylist()
        return held

    def repeat_last_batch(self) -> None:
        """Make Spark forget that it has committed its last batch, as if it had been killed before."""
        last = max(int(file.name) for file in (self.spark_checkpoint / "commits").glob("[0-9]*"))
        for file in (self.spark_checkpoint / "commits").iterdir():
            if file.name in (str(last), f".{last}.crc"):
                file.unlink()


def keyed_stream(job: Job) -> DataFrame:
    """Return the rows of the source with one of three keys, and a watermark."""
    rows = job.stream().selectExpr("id % 3 as key", "id as value", "at")
    return rows.withWatermark("at", "0 seconds")


def run_keyed(
    job: Job,
    output: KeyedOutput | DataFrame,
    location: str | Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[int, list[tuple[Any, ...]]]:
    """Read all files of the source, and return the sorted output rows of each batch."""
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def write(rows: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted((tuple(row) for row in rows.collect()), key=str)

    with session_with(job.spark, job.settings if settings is None else settings):
        writer = output.writeStream.queryName("by key").outputMode("update")
        writer = writer.option("checkpointLocation", str(location or job.spark_checkpoint))
        writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    return batches
