"""A query of Spark and one of Holdfast over the same batches, at times of the test."""

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.session import ROCKSDB, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

_ATTEMPTS = 3

_PINNED = {
    "spark.sql.shuffle.partitions": "2",
    # Without it Spark takes a log for that of a version before 2.4.
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    **ROCKSDB,
}


@dataclass(frozen=True)
class Batch:
    """Rows, and the time of their batch in milliseconds."""

    rows: list[dict[str, Any]]
    at_ms: int


class LoggedBatches:
    """The source of a query and its checkpointLocation, with the batches that it will run.

    Spark logs the time of a batch before the batch runs. A query that starts runs the last logged batch again, with the
    logged time, if it was not committed. So batches that have never run are logged here, with times of the test, and each
    batch is a start of the query.
    """

    def __init__(self, directory: Path) -> None:
        self.source = directory / "source"
        self.checkpoint = directory / "checkpoint"
        self._count = 0
        for folder in (self.source, self.checkpoint / "offsets", self.checkpoint / "sources" / "0"):
            folder.mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def begin(self, rows: Sequence[Mapping[str, Any]], at_ms: int) -> int:
        """Log a batch of rows that was begun at a time, milliseconds since 1970. Return its watermark."""
        number, self._count = self._count, self._count + 1
        file = self.source / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        file_ms = int(os.stat(file).st_mtime * 1000)
        entry = {"path": file.as_uri(), "timestamp": file_ms, "batchId": number}
        watermark = 0
        if number:
            done = (self.checkpoint / "commits" / str(number - 1)).read_text()
            watermark = json.loads(done.splitlines()[-1])["nextBatchWatermarkMs"]
        times = {"batchWatermarkMs": watermark, "batchTimestampMs": at_ms, "conf": _PINNED}
        self._log("sources/0", number, entry)
        self._log("offsets", number, times, {"logOffset": number})
        return watermark

    def _log(self, log: str, number: int, *lines: Mapping[str, Any]) -> None:
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.checkpoint / log / str(number)).write_text(text)


class Side:
    """A query that restarts on its checkpointLocation for each batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._batches = LoggedBatches(directory)
        self.checkpoint = self._batches.checkpoint
        stream = spark.readStream.schema("k string, ms long, ops string")
        rows = stream.json(str(self._batches.source)).selectExpr("*", "timestamp_millis(ms) AS ts")
        self.rows = rows.withWatermark("ts", "30 milliseconds")

    def run(self, batch: Batch, writer: Callable[[list[str]], Any]) -> tuple[list[str], int]:
        """Return the output of a batch, and its watermark.

        Args:
            batch: The batch.
            writer: Makes a writer of the stream that appends the output to a list.
        """
        watermark = self._batches.begin(batch.rows, batch.at_ms)
        for attempt in range(_ATTEMPTS):
            seen: list[str] = []
            # Other triggers add batches without rows as the time passes.
            stream = writer(seen).option("checkpointLocation", str(self.checkpoint))
            try:
                stream.trigger(once=True).start().awaitTermination()
                break
            except StreamingQueryException as error:
                # Spark gives its Python process ten seconds to start, which is not always enough on a busy machine.
                is_late = "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE" in str(error)
                if not is_late or attempt == _ATTEMPTS - 1:
                    raise
        return sorted(seen), watermark


@contextmanager
def both_sides(spark: SparkSession) -> Iterator[tuple[Side, Side, str]]:
    """Return a query of Spark, one of Holdfast, and its checkpoint directory, in a session that can run both."""
    directory = Path(tempfile.mkdtemp())
    checkpoints = f"file://{directory}/checkpoints"
    conf = {**ROCKSDB, "spark.holdfast.checkpoint.dir": checkpoints}
    try:
        with session_with(spark, conf):
            yield Side(spark, directory / "spark"), Side(spark, directory / "ours"), checkpoints
    finally:
        shutil.rmtree(directory)
