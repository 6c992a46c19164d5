"""Deduplication: the output equals that of rows one by one, over replays and rescaling, and that of Spark."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.both_sides import Batch, both_sides
from jobs.job import Job, keyed_stream, run_keyed
from jobs.keyed_subtasks import KeyedSubtasks
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast import keyed, stateful_query
from holdfast.backends import StateTtlConfig
from holdfast.backends.keyed import BackendName
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.deduplication import FirstRows, Keep, LatestRows

KEY = pa.schema([("k", pa.int64())])
TIME = pa.timestamp("us", "UTC")
S = 1_000_000
"""Microseconds of a second."""

Clock = Literal["processing", "event"]
Row = tuple[int | None, int | None, float | None]
"""A key, a time in milliseconds, and a number."""


def table(rows: list[Row]) -> pa.Table:
    keys, times, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    micros = pa.array([None if time is None else 1000 * time for time in times], pa.int64())
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "at": micros.cast(TIME),
            "v": pa.array(numbers, pa.float64()),
            "n": pa.array(range(len(rows)), pa.int64()),
        }
    )


@dataclass
class Model:
    """Rows one by one.

    Attributes:
        keep: "last" if the greatest row of a batch passes if it is greater than all earlier ones.
        ttl_ms: Time to live; None for no limit.
        clock: The time that it is in.
        known: The greatest rank of each key, and when it expires.
    """

    keep: Keep
    ttl_ms: int | None
    clock: Clock
    known: dict[int | None, tuple[tuple[Any, ...], int | None]] = field(default_factory=dict)

    def batch(self, rows: list[Row], *, time_ms: int, watermark: int) -> list[int]:
        """Return the numbers of the rows that pass."""
        if self.clock == "processing":
            self.forget(time_ms)
        best: dict[int | None, int] = {}
        for number, (key, _, _) in enumerate(rows):
            rank = self.rank(rows[number])
            if key not in best or (self.keep == "last" and rank > self.rank(rows[best[key]])):
                best[key] = number
        passed = []
        for key, number in best.items():
            if key in self.known and self.rank(rows[number]) <= self.known[key][0]:
                continue
            passed.append(number)
            expiry = None
            if self.ttl_ms is not None:
                row_ms = rows[number][1] or 0
                expiry = (row_ms if (self.clock == "event") else time_ms) + self.ttl_ms
            self.known[key] = self.rank(rows[number]), expiry
        if self.clock == "event":
            self.forget(watermark)
        return sorted(passed)

    def rank(self, row: Row) -> tuple[Any, ...]:
        """Return a number that is the same for all rows if the first row of a key passes."""
        if self.keep == "first":
            return ()
        value = row[1] if (self.clock == "event") else row[2]
        if value is None:
            return (0,)
        return (2,) if math.isnan(value) else (1, value)

    def forget(self, time_ms: int) -> None:
        self.known = {
            key: (rank, expiry)
            for key, (rank, expiry) in self.known.items()
            if expiry is None or expiry > time_ms
        }

    def operator(self) -> FirstRows | LatestRows:
        ttl = None
        if self.ttl_ms is not None and self.clock == "processing":
            ttl = StateTtlConfig(timedelta(milliseconds=self.ttl_ms))
        time = "at" if (self.clock == "event") else None
        ttl_ms = self.ttl_ms or 0
        if self.keep == "last":
            return LatestRows(time or "v", ttl=ttl, time=time, ttl_ms=ttl_ms)
        return FirstRows(ttl=ttl, time=time, ttl_ms=ttl_ms)


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3, 4, 5]),
        st.none() | st.integers(-20, 100),
        st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -math.inf, 7.0]),
    ),
    max_size=12,
)
BATCHES = st.lists(
    st.tuples(ROWS, st.integers(0, 30), st.integers(1, 3), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)
KEEPS: st.SearchStrategy[Keep] = st.sampled_from(["first", "last"])
TTLS: st.SearchStrategy[tuple[int | None, Clock]] = st.sampled_from(
    [(None, "processing"), (15, "processing"), (0, "event"), (15, "event")]
)


@given(KEEPS, TTLS, BATCHES)
def test_passing_rows_equal_those_of_rows_one_by_one(
    keep: Keep, ttl: tuple[int | None, Clock], batches: list[Any]
) -> None:
    check(Model(keep, *ttl), batches, "columnar")


@pytest.mark.exhaustive  # a database is opened for each subtask of each batch
@settings(max_examples=5)
@given(KEEPS, TTLS, BATCHES)
def test_passing_rows_in_rocksdb_equal_those_of_rows_one_by_one(
    keep: Keep, ttl: tuple[int | None, Clock], batches: list[Any]
) -> None:
    check(Model(keep, *ttl), batches, "rocksdb")


@pytest.mark.parametrize("keep", ["first", "last"])
def test_rows_in_several_arrays_are_deduplicated_alike(
    monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    monkeypatch.setattr("holdfast.backends.arrow.batches.MAX_BATCH_BYTES", 1)
    rows = [(key, time, float(time)) for time in (20, 3, 28, 11) for key in (1, None, 2)]
    check(Model(keep, 15, "event"), [(rows, 10, 2, 0), (rows, 15, 1, 1)], "columnar")


def check(model: Model, batches: list[Any], backend: BackendName) -> None:
    subtasks = KeyedSubtasks(model.operator, KEY, backend=backend)
    now = 0
    for rows, advance, parallelism, replays in [*batches, ([], 1000, 1, 0)]:
        late, now = now, now + advance
        if model.clock == "event":  # late rows are dropped before
            rows = [row for row in rows if row[1] is None or row[1] > late]  # noqa: PLW2901
        subtasks.parallelism = parallelism
        out = subtasks.batch(table(rows), watermark=now, batch_time=now, replays=replays)
        expected = model.batch(rows, time_ms=now, watermark=now)
        assert sorted(row["n"] for row in out) == expected
    if model.clock == "event":
        assert subtasks.next_timer is None


@pytest.mark.exhaustive  # sixteen queries
@pytest.mark.parametrize("clock", ["processing", "event"])
@pytest.mark.parametrize("seed", range(2))
def test_deduplicated_rows_equal_those_of_spark(
    spark: SparkSession, clock: Clock, seed: int
) -> None:
    numbers = random.Random(seed)
    now = 100
    with both_sides(spark) as (native, ours, _):
        for number in range(8):
            now += numbers.randrange(5, 60)
            batch = Batch([some_row(numbers, now) for _ in range(numbers.choice([1, 5, 10]))], now)

            def spark_writer(seen: list[str]) -> Any:
                if clock == "event":
                    rows = native.rows.dropDuplicatesWithinWatermark(["k"])
                else:
                    rows = native.rows.dropDuplicates(["k"])
                return rows.writeStream.foreachBatch(taker(seen))

            def our_writer(seen: list[str], parallelism: int = 1 + number % 3) -> Any:
                by_key = keyed(ours.rows, "k", uid="once", parallelism=parallelism)
                # Its own writer would add batches for timers, and Spark's does not.
                operator = by_key.deduplicate(time="ts" if clock == "event" else None).operator
                take = taker(seen)

                def process(rows: DataFrame, batch_id: int) -> None:
                    take(operator.apply(rows), batch_id)

                return ours.rows.writeStream.foreachBatch(stateful_query(process, operator))

            assert ours.run(batch, our_writer) == native.run(batch, spark_writer)


def some_row(numbers: random.Random, now: int) -> dict[str, Any]:
    time = now - numbers.randrange(60) if numbers.random() < 0.9 else None
    return {"k": numbers.choice([None, "", "a", "b", "c", "ü"]), "ms": time, "ops": ""}


def taker(seen: list[str]) -> Callable[[DataFrame, int], None]:
    def take(rows: DataFrame, _: int) -> None:
        seen.extend(str((row.k, row.ms)) for row in rows.collect())

    return take


@pytest.mark.usefixtures("state_backend")
def test_first_rows_pass_once_over_restarts(job: Job) -> None:
    results = []
    for _ in range(2):
        job.feed(files=1, rows=2)
        output = keyed(keyed_stream(job), "key", uid="once", parallelism=2).deduplicate()
        results.append({key for rows in run_keyed(job, output).values() for key, *_ in rows})
    assert results == [{0, 1}, {2}]
    seen = hf.read_state(f"file://{job.checkpoints}", "once", "seen").to_pylist()
    assert sorted(row["key"] for row in seen) == [0, 1, 2]
    assert {row["value"] for row in seen} == {True}


def test_greater_rows_pass_as_updates(job: Job) -> None:
    job.feed_at(5 * S, 1 * S)
    job.feed_at(4 * S, 2 * S)
    job.feed_at(3 * S, 3 * S)
    rows = job.stream().selectExpr("id % 2 as key", "id", "at")
    latest = keyed(rows, "key", uid="latest").deduplicate(keep="last", by="at")
    ids = {batch: [row[1] for row in rows] for batch, rows in run_keyed(job, latest).items()}
    assert ids == {0: [0, 1], 1: [3], 2: [5]}


def test_keys_in_event_time_are_forgotten_after_the_delay(job: Job) -> None:
    for moments in ([0, 10 * S], [20 * S], [15 * S, 21 * S], [30 * S]):
        job.feed_at(*moments)
    rows = job.stream().selectExpr("1 as key", "id", "at").withWatermark("at", "10 seconds")
    once = keyed(rows, "key", uid="once", parallelism=2).deduplicate(time="at").operator
    passed: list[int] = []

    def process(batch: DataFrame, _: int) -> None:
        passed.extend(row.id for row in once.apply(batch).collect())

    # Without batches for timers: the time that they take decides whether the key is forgotten before the third file.
    job.start(stateful_query(process, once), rows, availableNow=True).awaitTermination()
    assert passed == [0, 5]


def test_bad_arguments_of_deduplicate_are_refused(job: Job) -> None:
    rows = keyed(job.stream().selectExpr("*", "map(1, 2) as m"), "id", uid="once")
    for arguments, message in (
        ({"keep": "last"}, "by= a column, got keep='last' and by=None"),
        ({"by": "at"}, "got keep='first' and by='at'"),
        ({"keep": "last", "by": "x"}, "no column by='x'"),
        (
            {"keep": "last", "by": "m"},
            "can't be ordered by column 'm'.*which has no order in state",
        ),
        ({"keep": "last", "by": "name", "time": "at", "ttl": timedelta(1)}, "pass the same column"),
        ({"ttl": 5}, "must be a timedelta or a StateTtlConfig, got 5"),
        ({"time": "at"}, "'at' has no watermark, whose delay is the default of ttl"),
        ({"time": "x", "ttl": timedelta(1)}, "no column 'x'"),
        ({"time": "name", "ttl": timedelta(1)}, "must be a timestamp"),
        ({"time": "at", "ttl": timedelta(0)}, ">= 1, got"),
        ({"time": "at", "ttl": StateTtlConfig(timedelta(1))}, "is in processing time"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            rows.deduplicate(**arguments)


def test_stored_keys_keep_their_kind_of_time() -> None:
    subtasks = KeyedSubtasks(Model("first", 15, "event").operator, KEY)
    subtasks.batch(table([(1, 1, 1.0)]))
    subtasks.make = Model("first", None, "processing").operator
    with pytest.raises(StateMigrationError, match=r"stored keys expire in event time.*time=None"):
        subtasks.batch(table([]))
    subtasks.make = Model("last", 15, "event").operator
    with pytest.raises(StateMigrationError, match=r"'seen'.* are stored under the uid"):
        subtasks.batch(table([]))
