"""Processors over our state see what they see with Spark's own `transformWithState`, batch by batch."""

import json
import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs.processed import outputs, processor_job
from jobs.scripted import Scripted, written
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import StatefulOperator, checkpointed, keyed

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_BATCHES = 6
_ATTEMPTS = 3
_SCHEMA = pa.schema([("k", pa.string()), ("ms", pa.int64()), ("ops", pa.string())])

Batch = list[dict[str, Any]]


@pytest.fixture
def streaming(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in which Spark's `transformWithState` runs, without batches of its own accord."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


def _batches(seed: int) -> list[Batch]:
    """Rows of a few keys whose times go on, some of them late."""
    chosen = random.Random(seed)
    batches = []
    for number in range(_BATCHES):
        clock = 100 + 40 * number
        batch = []
        for _ in range(chosen.randrange(4, 12)):
            script = [
                (chosen.choice("vvVaaApLmmmdM++++--"), clock + chosen.randrange(-90, 90))
                for _ in range(chosen.randrange(6))
            ]
            if chosen.random() < 0.1:
                script.append(("s", 0))
            batch.append(
                {
                    "k": chosen.choice([None, "", "a", "b", "ü"]),
                    "ms": clock + chosen.randrange(-80, 20),
                    "ops": written(script),
                }
            )
        batches.append(batch)
    return batches


def _arrive(source: Path, number: int, batch: Batch) -> None:
    """Put a batch into a source."""
    source.mkdir(exist_ok=True)
    file = source / f"{number}.json"
    file.write_text("\n".join(map(json.dumps, batch)))
    os.utime(file, (number, number))  # Spark takes them in the order of their times


def _stream(spark: SparkSession, source: Path) -> DataFrame:
    """The rows of a source, a batch from each file."""
    return (
        spark.readStream.schema("k string, ms long, ops string")
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .json(str(source))
        .selectExpr("*", "timestamp_millis(ms) AS ts")
        .withWatermark("ts", "30 milliseconds")
    )


def _seen_by_key(spark: SparkSession, directory: Path, batches: list[Batch]) -> list[list[str]]:
    """What comes out of each batch by `keyed`; each is a run with another parallelism."""
    (directory / "source").mkdir(parents=True)
    rows = _stream(spark, directory / "source")
    seen: dict[int, list[str]] = {}
    for number, batch in enumerate(batches):
        _arrive(directory / "source", number, batch)
        by_key = keyed(rows, "k", uid="scripted", parallelism=1 + number % 3)
        output = by_key.transformWithState(
            Scripted("EventTime"), "out string", "Update", "EventTime"
        )
        operator = output.operator  # without batches for timers, as on Spark

        def take(batch: DataFrame, batch_id: int, operator: StatefulOperator = operator) -> None:
            seen[batch_id] = [row.out for row in operator.apply(batch).collect()]

        with session_with(spark, {"spark.holdfast.checkpoint.dir": f"file://{directory}/state"}):
            query = (
                rows.writeStream.foreachBatch(checkpointed(take, operator))
                .option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    return [seen[batch_id] for batch_id in range(len(batches))]


def _spark_sees(
    spark: SparkSession, directory: Path, batches: list[Batch]
) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """What comes out of each batch of Spark's own operator, and the time and watermark of each."""
    source = directory / "source"
    for number, batch in enumerate(batches):
        _arrive(source, number, batch)
    rows = _stream(spark, source)
    seen: dict[int, list[str]] = {}

    def take(frame: DataFrame, batch_id: int) -> None:
        seen[batch_id] = [row.out for row in frame.collect()]

    checkpoint = directory / "checkpoint"
    query = (
        rows.groupBy("k")
        .transformWithState(Scripted("EventTime"), "out string", "Update", "EventTime")
        .writeStream.foreachBatch(take)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    times = []
    for batch_id in range(len(batches)):
        log = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[1])
        times.append((log["batchTimestampMs"], log["batchWatermarkMs"]))
    return [seen[batch_id] for batch_id in range(len(batches))], times


@pytest.mark.parametrize("seed", range(1))
def test_a_processor_sees_what_it_sees_on_spark(
    streaming: SparkSession, tmp_path: Path, seed: int
) -> None:
    batches = _batches(seed)
    for attempt in count():
        directory = tmp_path / str(attempt)
        directory.mkdir()
        try:
            seen, times = _spark_sees(streaming, directory, batches)
            break
        except StreamingQueryException as error:
            # Spark gives a Python process of its own ten seconds to start, which it needs on a busy machine.
            if (
                "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE" not in str(error)
                or attempt == _ATTEMPTS
            ):
                raise
    assert any("timer" in row for batch in seen for row in batch)
    late = 0
    for number, (batch, expected) in enumerate(zip(batches, seen, strict=True)):
        # Timers and state go on in another process, and at another parallelism.
        job = processor_job(
            f"file://{tmp_path}/ours",
            Scripted("EventTime"),
            schema=_SCHEMA,
            time_mode="EventTime",
            parallelism=1 + number % 2,
        )
        in_time = [row for row in batch if row["ms"] > late]
        ours = outputs(job.run(in_time, times=times[number]))
        assert sorted(map(repr, ours)) == sorted(expected)
        late = times[number][1]
    through_keyed = _seen_by_key(streaming, tmp_path / "keyed", batches)
    assert list(map(sorted, through_keyed)) == list(map(sorted, seen))
