"""Two streams by key in one operator: calls of functions, joins on Spark, restarts, late rows, and refused arguments."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from jobs.job import Job, keyed_stream, run_keyed
from jobs.keyed_subtasks import KeyedSubtasks
from jobs.session import ROCKSDB, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast import KeyedBroadcastProcessFunction, KeyedCoProcessFunction, keyed, stateful_query
from holdfast.backends import (
    FunctionInitializationContext,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import InvalidRequestError
from holdfast.spark.joins import JoinKind
from holdfast.spark.operators import TimeDomain

S = 1_000_000
ZERO = timedelta(0)
CALLS = pa.schema([("k", pa.int64()), ("call", pa.string()), ("rows", pa.list_(pa.int64()))])


class Calls(KeyedCoProcessFunction):
    """Yields each call with the numbers of its rows, and all numbers of the key when its timer fires."""

    time_mode = "event"

    def open(self, context: FunctionInitializationContext) -> None:
        descriptor = ValueStateDescriptor("numbers", pa.list_(pa.int64()))
        self.numbers = context.keyed_state_store.get_state(descriptor)

    def process_first(self, key: Any, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        assert rows.schema.names == ["k", "n"]
        return self.add(key, "first", rows.column("n").to_pylist())

    def process_second(self, key: Any, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        assert rows.schema.names == ["other", "m", "text"]
        return self.add(key, "second", rows.column("m").to_pylist())

    def add(self, key: Any, call: str, numbers: list[int]) -> Iterator[tuple[Any, ...]]:
        self.numbers.update([*(self.numbers.value() or []), *numbers])
        self.register_event_time_timer(100)
        yield key.k, call, numbers

    def on_timer(self, key: Any, time_ms: int, domain: TimeDomain) -> Iterable[tuple[Any, ...]]:
        assert (time_ms, domain) == (100, "event")
        return [(key.k, "timer", self.numbers.value())]


def union_of(first: list[tuple[int | None, int]], second: list[tuple[int | None, int]]) -> pa.Table:
    """Return the rows of both streams, each with a key and a number."""
    first_type = pa.struct([("k", pa.int64()), ("n", pa.int64())])
    other = pa.struct([("other", pa.int64()), ("m", pa.int64()), ("text", pa.string())])
    firsts = [{"k": key, "n": number} for key, number in first] + [None] * len(second)
    seconds = [{"other": key, "m": number, "text": ""} for key, number in second]
    return pa.table(
        {
            "k": pa.array([key for key, _ in [*first, *second]], pa.int64()),
            "first": pa.array(firsts, first_type),
            "second": pa.array([None] * len(first) + seconds, other),
            "event_time": pa.nulls(len(first) + len(second), pa.timestamp("us", "UTC")),
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_function_is_called_for_each_key_with_rows_of_each_stream(seed: int) -> None:
    numbers = random.Random(seed)
    subtasks = KeyedSubtasks(Calls, pa.schema([("k", pa.int64())]), output=CALLS)
    known: dict[int | None, list[int]] = {}
    number = 0
    for parallelism in (2, 3, 1):
        sides: list[list[tuple[int | None, int]]] = []
        for _ in range(2):
            count = numbers.choice([0, 1, 9])
            sides.append([(numbers.choice([None, 1, 2, 3]), number + i) for i in range(count)])
            number += count
        expected = []
        for key in {key for side in sides for key, _ in side}:
            for name, side in zip(("first", "second"), sides, strict=True):
                own = [n for other, n in side if other == key]
                known.setdefault(key, []).extend(own)
                expected += [(key, name, own)] if own else []
        subtasks.parallelism = parallelism
        out = [tuple(row.values()) for row in subtasks.batch(union_of(*sides))]
        assert sorted(out, key=str) == sorted(expected, key=str)
        for key in known:
            calls = [call for other, call, _ in out if other == key]
            assert calls == sorted(calls)  # the first stream's rows before the second's
    fired = subtasks.batch(union_of([], []), watermark=100)
    assert {(row["k"], row["call"]): row["rows"] for row in fired} == {
        (key, "timer"): rows for key, rows in known.items()
    }


def other_stream(job: Job) -> DataFrame:
    """Return the rows of the source again, under other names."""
    rows = job.stream().selectExpr("id % 3 as other", "id as payment", "at as paid")
    return rows.withWatermark("paid", "0 seconds")


@pytest.mark.usefixtures("state_backend")
def test_each_pair_is_emitted_once_over_restarts_and_rescaling(job: Job) -> None:
    pairs: list[tuple[int, int]] = []
    for parallelism in (2, 3, 1):
        job.feed(files=2, rows=6)
        rows = keyed(keyed_stream(job), "key", uid="join", parallelism=parallelism)
        joined = rows.connect(other_stream(job), "other").interval_join(
            time="at", other_time="paid", lower=timedelta(seconds=-3), upper=ZERO
        )
        out = run_keyed(job, joined)
        pairs += [(row[1], row[4]) for rows_of_batch in out.values() for row in rows_of_batch]
    # Rows of a key are three seconds apart.
    expected = [(value, value - back) for value in range(36) for back in (0, 3) if value >= back]
    assert sorted(pairs) == sorted(expected)


@pytest.mark.exhaustive  # six queries of ten batches
@pytest.mark.parametrize("kind", ["inner", "left", "full"])
def test_joined_rows_equal_those_of_spark(job: Job, kind: JoinKind) -> None:
    numbers = random.Random(kind)
    # In a full outer join of streams null equals null for Spark, which is not so in SQL and in its other joins.
    key = "id % 2" if kind == "full" else "nullif(id % 3, 2)"
    now = 100
    for batch in range(10):
        now += numbers.randrange(20, 80)
        times = [now - numbers.randrange(60) for _ in range(numbers.choice([1, 5, 20]))]
        # The watermark passes all rows before the last batches.
        job.feed_at(*(1000 * time for time in [*times, now + 1000 * (batch > 6)]))

    def streams() -> tuple[DataFrame, DataFrame]:
        rows = job.stream().selectExpr(f"{key} as k", "id", "at")
        rows = rows.withWatermark("at", "30 milliseconds")
        first = rows.where("id % 4 > 0")
        other = job.stream().selectExpr(f"{key} as k2", "id as id2", "at as at2")
        return first, other.withWatermark("at2", "30 milliseconds").where("id2 % 5 > 0")

    first, second = streams()
    interval = "at2 >= at - interval 10 milliseconds and at2 <= at + interval 20 milliseconds"
    native = first.join(second, F.expr(f"k = k2 and {interval}"), kind)
    seen: list[Any] = []

    def take(rows: DataFrame, _: int) -> None:
        seen.extend(tuple(row) for row in rows.collect())

    with session_with(job.spark, ROCKSDB):
        writer = native.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(job.directory / "native"))
        writer.trigger(availableNow=True).start().awaitTermination()
    first, second = streams()
    joined = keyed(first, "k", uid="join", parallelism=2).connect(second, "k2")
    ours = joined.interval_join(
        time="at",
        other_time="at2",
        lower=timedelta(milliseconds=-10),
        upper=timedelta(milliseconds=20),
        how=kind,
    )
    out = [row for rows in run_keyed(job, ours).values() for row in rows]
    assert Counter(out) == Counter(seen)
    assert len(seen) > 20


def test_late_rows_of_both_streams_are_a_side_output(job: Job) -> None:
    for moments in ([0, 10 * S], [20 * S], [5 * S, 21 * S]):
        job.feed_at(*moments)
    first = job.stream().selectExpr("1 as key", "id", "at").withWatermark("at", "0 seconds")
    by_key = keyed(first, "key", uid="join", parallelism=2, late_rows=True)
    second = job.stream().selectExpr("1 as key", "id as payment", "at as paid")
    joined = by_key.connect(second.withWatermark("paid", "0 seconds")).interval_join(
        time="at", other_time="paid", lower=ZERO, upper=ZERO
    )
    late: list[tuple[int | None, int | None]] = []
    passed: list[int] = []
    operator = joined.operator

    def process(batch: DataFrame, _: int) -> None:
        passed.extend(row.id for row in operator.apply(batch).collect())
        rows = operator.side_output("late").selectExpr("first.id", "second.payment").collect()
        late.extend(tuple(row) for row in rows)

    query = stateful_query(process, operator)
    job.start(query, joined.rows, availableNow=True).awaitTermination()
    assert sorted(passed) == [0, 1, 2, 4]
    assert sorted(late, key=str) == [(3, None), (None, 3)]


class Discounts(KeyedBroadcastProcessFunction):
    """Yields the number of rows of each key so far, times a factor from the broadcast rows."""

    def open(self, context: FunctionInitializationContext) -> None:
        self.count = context.keyed_state_store.get_state(ValueStateDescriptor("n", int))
        factors = MapStateDescriptor("factors", int, int)
        self.factors = context.operator_state_store.get_broadcast_state(factors)

    def process_broadcast(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self.factors.put(row["key"], row["factor"])
            if row["factor"] == 0:  # count all keys from the start, but the one that it names
                for key in self.keys_of(self.count):
                    if key.key != row["key"]:
                        self.count.clear()

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        self.count.update((self.count.value() or 0) + len(rows))
        return [(key.key, self.count.value() * (self.factors.get(key.key) or 1))]


def test_broadcast_rows_reach_a_function_with_keyed_state(job: Job) -> None:
    def factors(session: SparkSession, batch_id: int) -> DataFrame:
        return session.createDataFrame([(batch_id, 10)], "key long, factor long")

    job.feed(files=2, rows=3)
    by_key = keyed(keyed_stream(job), "key", uid="discounts", parallelism=2)
    output = by_key.process(Discounts(), "key long, n long", broadcast=factors)
    assert run_keyed(job, output) == {0: [(0, 10), (1, 1), (2, 1)], 1: [(0, 20), (1, 20), (2, 2)]}


@pytest.mark.usefixtures("state_backend")
def test_broadcast_rows_change_the_state_of_all_keys(job: Job) -> None:
    def reset(session: SparkSession, batch_id: int) -> DataFrame:
        return session.createDataFrame([(1, 0 if batch_id == 2 else 1)], "key long, factor long")

    job.feed(files=3, rows=3)
    by_key = keyed(keyed_stream(job), "key", uid="discounts", parallelism=2)
    output = by_key.process(Discounts(), "key long, n long", broadcast=reset)
    assert run_keyed(job, output)[2] == [(0, 1), (1, 3), (2, 1)]


class TooLate(Discounts):
    """Iterates over keys while a key is current."""

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        return [(key.key, len(list(self.keys_of(self.count))))]


def test_keys_of_a_state_are_refused_while_a_key_is_current(job: Job) -> None:
    job.feed(files=1, rows=3)
    by_key = keyed(keyed_stream(job), "key", uid="discounts", parallelism=2)
    output = by_key.process(TooLate(), "key long, n long", broadcast=no_factors)
    with pytest.raises(StreamingQueryException, match="only be used in process_broadcast"):
        run_keyed(job, output)


def no_factors(session: SparkSession, _: int) -> DataFrame:
    return session.createDataFrame([], "key long, factor long")


def test_bad_arguments_of_connected_streams_are_refused(job: Job) -> None:
    first = keyed(keyed_stream(job), "key", uid="join")
    second = other_stream(job)
    any_rows: Any = first.connect(second, "other")
    interval: dict[str, Any] = {"time": "at", "other_time": "paid", "lower": ZERO, "upper": ZERO}
    refused: list[tuple[Any, str]] = [
        (lambda: first.connect(second), r"second stream must be 1 of its columns .*got \('key',\)"),
        (lambda: first.connect(second, ["other", "paid"]), "as many as"),
        (
            lambda: first.connect(second.withColumn("other", F.lit("1")), "other"),
            "'other' of the second stream has type string, and 'key' of the first one bigint",
        ),
        (
            lambda: keyed(second.withColumn("first", F.lit(1)), "first", uid="x").connect(
                second.withColumn("first", F.lit(1))
            ),
            r"can't be named \['first'\]",
        ),
        (
            lambda: first.connect(keyed_stream(job)).interval_join(
                **{**interval, "other_time": "at"}
            ),
            r"both streams have columns \['at', 'value'\]",
        ),
        (lambda: any_rows.interval_join(**{**interval, "time": "x"}), "no column 'x'"),
        (
            lambda: any_rows.interval_join(**{**interval, "lower": timedelta(1)}),
            "lower must not be after upper",
        ),
        (lambda: any_rows.interval_join(**interval, how="outer"), "how must be one of"),
        (
            lambda: any_rows.asof_join(time="at", other_time="paid", how="full"),
            "how must be one of",
        ),
        (
            lambda: any_rows.asof_join(
                time="at", other_time="paid", tolerance=timedelta(seconds=-1)
            ),
            "tolerance must not be negative",
        ),
        (lambda: any_rows.process(Discounts(), "n long"), "need a KeyedCoProcessFunction"),
        (lambda: first.process(Calls(), "n long"), "takes two streams"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            call()


def test_stored_rows_of_a_join_can_be_read(job: Job) -> None:
    job.feed(files=1, rows=2)
    rows = keyed(keyed_stream(job), "key", uid="join", parallelism=2)
    joined = rows.connect(other_stream(job), "other").asof_join(time="at", other_time="paid")
    run_keyed(job, joined)
    stored = hf.read_state(f"file://{job.checkpoints}", "join", "first").to_pylist()
    assert {row["value"]["row"]["value"] for row in stored} <= {0, 1}
