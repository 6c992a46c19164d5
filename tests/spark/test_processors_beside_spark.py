"""Processors over our state see what they see with Spark's own `transformWithState`, batch by batch, and leave the same state."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jobs.logged_batches import LoggedBatches
from jobs.scripted import Model, Scripted, render_script
from jobs.session import ROCKSDB, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import holdfast
from holdfast import keyed, stateful_query
from holdfast.locations import latest_checkpoint

_BATCHES = 6
_ATTEMPTS = 3
_TTL_MS = 60
_UID = "scripted"

# Each example is twelve queries of Spark: a smaller one would be no easier to read, and took minutes to look for.
pytestmark = pytest.mark.exhaustive
examples = settings(
    max_examples=max(1, settings().max_examples // 50),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)

Stored = tuple[Any, int | None]
"""A value, and when it expires, in milliseconds."""
NOTHING: Stored = (None, None)

State = dict[tuple[Any, ...], list[Stored]]
"""By the name of a variable, the key, and the key in a map: the value, or the elements of a list; timers by their time."""


@dataclass(frozen=True)
class Batch:
    """Rows, and when Spark begins with them, in milliseconds."""

    rows: list[dict[str, Any]]
    at_ms: int


def batches(seed: int, operations: str) -> list[Batch]:
    """Rows of a few keys whose times go on, some of them late; the last batch shows each key."""
    chosen = random.Random(seed)
    keys = [None, "", "a", "b", "ü"]
    clock, made = 100, []
    for _ in range(_BATCHES - 1):
        clock += chosen.randrange(5, 60)
        rows = []
        for _ in range(chosen.randrange(4, 12)):
            script = [
                (chosen.choice(operations), clock + chosen.randrange(-90, 90))
                for _ in range(chosen.randrange(6))
            ]
            if chosen.random() < 0.1:
                script.append(("s", 0))
            time = clock + chosen.randrange(-80, 20)
            rows.append({"k": chosen.choice(keys), "ms": time, "ops": render_script(script)})
        made.append(Batch(rows, clock))
    clock += 20
    return [*made, Batch([{"k": key, "ms": clock, "ops": "v1"} for key in keys], clock)]


class Side:
    """A query whose every batch is a run of its own, on the same checkpointLocation.

    Args:
        spark: A session.
        directory: An empty directory.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._batches = LoggedBatches(directory)
        self.checkpoint = self._batches.checkpoint
        stream = spark.readStream.schema("k string, ms long, ops string")
        rows = stream.json(str(self._batches.source)).selectExpr("*", "timestamp_millis(ms) AS ts")
        self.rows = rows.withWatermark("ts", "30 milliseconds")

    def run(self, batch: Batch, writer: Callable[[list[str]], Any]) -> tuple[list[str], int]:
        """What comes out of a batch, and its watermark.

        Args:
            batch: The batch.
            writer: Makes a writer of the stream that adds what comes out to a list.
        """
        watermark = self._batches.begin(batch.rows, batch.at_ms)
        for attempt in range(_ATTEMPTS):
            seen: list[str] = []
            # Once, or Spark adds batches without rows for times that go by.
            stream = writer(seen).option("checkpointLocation", str(self.checkpoint))
            try:
                stream.trigger(once=True).start().awaitTermination()
                break
            except StreamingQueryException as error:
                # Spark gives a Python process of its own ten seconds to start, which it needs on a busy machine.
                is_late = "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE" in str(error)
                if not is_late or attempt == _ATTEMPTS - 1:
                    raise
        return sorted(seen), watermark


@contextmanager
def both_sides(spark: SparkSession) -> Iterator[tuple[Side, Side, str]]:
    """Spark's side and ours, with our checkpoint directory, in a session in which Spark's operator runs."""
    directory = Path(tempfile.mkdtemp())
    checkpoints = f"file://{directory}/checkpoints"
    conf = {**ROCKSDB, "spark.holdfast.checkpoint.dir": checkpoints}
    try:
        with session_with(spark, conf):
            yield Side(spark, directory / "spark"), Side(spark, directory / "ours"), checkpoints
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("time_mode", "ttl_ms"),
    [("EventTime", None), ("ProcessingTime", _TTL_MS)],
    ids=["event time", "processing time and TTL"],
)
@given(seed=st.integers(0, 2**32 - 1))
@examples
def test_a_processor_sees_and_keeps_what_it_does_on_spark_through_restarts(
    spark: SparkSession, time_mode: str, ttl_ms: int | None, seed: int
) -> None:
    processor = Scripted(time_mode, ttl_ms, removes=ttl_ms is None)
    model = Model(time_mode, ttl_ms, removes=ttl_ms is None)
    how = (processor, "out string", "Update", time_mode)
    late_ms = 0
    with both_sides(spark) as (native, ours, checkpoints):
        for number, batch in enumerate(batches(seed, "vvVaaApLmmmdM++++--")):

            def of_spark(seen: list[str]) -> Any:
                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in rows.collect())

                totals = native.rows.groupBy("k").transformWithState(*how)
                return totals.writeStream.outputMode("update").foreachBatch(take)

            def of_ours(seen: list[str], parallelism: int = 1 + number % 3) -> Any:
                by_key = keyed(ours.rows, "k", uid=_UID, parallelism=parallelism)
                # Not its own writer, which would have batches come for timers, as Spark's does not here.
                operator = by_key.transformWithState(*how).operator

                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in operator.apply(rows).collect())

                return ours.rows.writeStream.foreachBatch(stateful_query(take, operator))

            expected, watermark = native.run(batch, of_spark)
            assert ours.run(batch, of_ours) == (expected, watermark)
            is_timed = time_mode == "EventTime"
            in_time = [row for row in batch.rows if not is_timed or row["ms"] > late_ms]
            modelled = model.run(in_time, batch.at_ms, watermark)
            assert sorted(map(repr, modelled)) == expected
            late_ms = watermark
        kept = living(
            state_on_spark(spark, str(native.checkpoint), has_ttl=ttl_ms is not None), batch.at_ms
        )
        assert kept
        assert living(state_of_ours(checkpoints, ttl_ms), batch.at_ms) == kept


def state_on_spark(spark: SparkSession, checkpoint: str, *, has_ttl: bool) -> State:
    """All state of Spark's operator, read by its own data source."""

    def rows(**options: str) -> list[Row]:
        return spark.read.format("statestore").options(**options).load(checkpoint).collect()

    def stored(value: Any) -> Stored:
        return (tuple(value.value), value.ttlExpirationMs) if has_ttl else (tuple(value), None)

    state: State = {("v", row.key.k): [stored(row.value)] for row in rows(stateVarName="v")}
    for row in rows(stateVarName="l", flattenCollectionTypes="false"):
        state["l", row.key.k] = list(map(stored, row.list_value))
    for row in rows(stateVarName="m"):
        state["m", row.key.k, row.user_map_key.k] = [stored(row.user_map_value)]
    for row in rows(readRegisteredTimers="true"):
        state["timer", row.key.k, row.expiration_timestamp_ms] = [NOTHING]
    return state


def state_of_ours(checkpoints: str, ttl_ms: int | None) -> State:
    """All state of our operator, read without Spark."""
    (job_id,) = (each.name for each in Path(checkpoints.removeprefix("file://")).iterdir())
    latest = latest_checkpoint(checkpoints, job_id=job_id)
    assert latest is not None
    pointer = latest.location.external_pointer

    def rows(state: str | None = None, kind: str | None = None) -> list[dict[str, Any]]:
        table: pa.Table = holdfast.read_state(pointer, _UID, state, kind=kind)
        listed: list[dict[str, Any]] = table.to_pylist()
        return listed

    def stored(row: dict[str, Any]) -> Stored:
        value = tuple(row["value"].values())
        if ttl_ms is None:
            return value, None
        return value, round(row["changed"].timestamp() * 1000) + ttl_ms

    def elements(row: dict[str, Any]) -> list[Stored]:
        if ttl_ms is None:
            return [(tuple(each.values()), None) for each in row["value"]]
        return [(tuple(each["element"].values()), each["ts"] + ttl_ms) for each in row["value"]]

    state: State = {("v", row["k"]): [stored(row)] for row in rows("v")}
    state |= {("l", row["k"]): elements(row) for row in rows("l")}
    state |= {("m", row["k"], row["key"]["k"]): [stored(row)] for row in rows("m")}
    return state | {
        ("timer", row["k"], row["time"]): [NOTHING] for row in rows(kind="keyed timers")
    }


def living(state: State, at_ms: int) -> State:
    """What has not expired; what has may lie about for a while."""
    left = {
        name: [each for each in stored if each[1] is None or each[1] > at_ms]
        for name, stored in state.items()
    }
    return {name: stored for name, stored in left.items() if stored}
