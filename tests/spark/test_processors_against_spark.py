"""Processors over our state behave as in Spark's own `transformWithState`, batch by batch, and leave the same state."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jobs.both_sides import Batch, both_sides
from jobs.scripted import Model, Scripted, render_script
from pyspark.sql import DataFrame, Row, SparkSession

import holdfast
from holdfast import keyed, stateful_query
from holdfast.locations import latest_checkpoint

_BATCHES = 6
_TTL_MS = 60
_UID = "scripted"

# Each example is twelve queries of Spark. Shrinking takes minutes, and makes it no easier to read.
pytestmark = pytest.mark.exhaustive
examples = settings(
    max_examples=max(1, settings().max_examples // 50),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


Stored = tuple[Any, int | None]
"""A value, and the time in milliseconds at which it expires."""
NO_VALUE: Stored = (None, None)

State = dict[tuple[Any, ...], list[Stored]]
"""The value or the list elements, by the variable's name, the key, and the map key; timers by their time."""


def batches(seed: int, operations: str) -> list[Batch]:
    """Return batches of a few keys with advancing times, some rows late; the last batch has each key."""
    numbers = random.Random(seed)
    keys = [None, "", "a", "b", "ü"]
    clock, generated = 100, []
    for _ in range(_BATCHES - 1):
        clock += numbers.randrange(5, 60)
        rows = []
        for _ in range(numbers.randrange(4, 12)):
            script = [
                (numbers.choice(operations), clock + numbers.randrange(-90, 90))
                for _ in range(numbers.randrange(6))
            ]
            if numbers.random() < 0.1:
                script.append(("s", 0))
            time = clock + numbers.randrange(-80, 20)
            rows.append({"k": numbers.choice(keys), "ms": time, "ops": render_script(script)})
        generated.append(Batch(rows, clock))
    clock += 20
    return [*generated, Batch([{"k": key, "ms": clock, "ops": "v1"} for key in keys], clock)]


@pytest.mark.parametrize(
    ("time_mode", "ttl_ms"),
    [("EventTime", None), ("ProcessingTime", _TTL_MS)],
    ids=["event time", "processing time and TTL"],
)
@given(seed=st.integers(0, 2**32 - 1))
@examples
def test_processor_output_and_state_equal_those_of_spark(
    spark: SparkSession, time_mode: str, ttl_ms: int | None, seed: int
) -> None:
    processor = Scripted(time_mode, ttl_ms, removes=ttl_ms is None)
    model = Model(time_mode, ttl_ms, removes=ttl_ms is None)
    arguments = (processor, "out string", "Update", time_mode)
    late_ms = 0
    with both_sides(spark) as (native, ours, checkpoints):
        for number, batch in enumerate(batches(seed, "vvVaaApLmmmdM++++--")):

            def spark_writer(seen: list[str]) -> Any:
                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in rows.collect())

                totals = native.rows.groupBy("k").transformWithState(*arguments)
                return totals.writeStream.outputMode("update").foreachBatch(take)

            def our_writer(seen: list[str], parallelism: int = 1 + number % 3) -> Any:
                by_key = keyed(ours.rows, "k", uid=_UID, parallelism=parallelism)
                # Its own writer would add batches for timers, and Spark's does not.
                operator = by_key.transformWithState(*arguments).operator

                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in operator.apply(rows).collect())

                return ours.rows.writeStream.foreachBatch(stateful_query(take, operator))

            expected, watermark = native.run(batch, spark_writer)
            assert ours.run(batch, our_writer) == (expected, watermark)
            is_timed = time_mode == "EventTime"
            in_time = [row for row in batch.rows if not is_timed or row["ms"] > late_ms]
            modelled = model.run(in_time, batch.at_ms, watermark)
            assert sorted(map(repr, modelled)) == expected
            late_ms = watermark
        has_ttl = ttl_ms is not None
        state = drop_expired(
            spark_state(spark, str(native.checkpoint), has_ttl=has_ttl), batch.at_ms
        )
        assert state
        assert drop_expired(our_state(checkpoints, ttl_ms), batch.at_ms) == state


def spark_state(spark: SparkSession, checkpoint: str, *, has_ttl: bool) -> State:
    """Read all state of Spark's operator with its data source."""

    def rows(**options: str) -> list[Row]:
        return spark.read.format("statestore").options(**options).load(checkpoint).collect()

    def value_of(value: Any) -> Stored:
        return (tuple(value.value), value.ttlExpirationMs) if has_ttl else (tuple(value), None)

    state: State = {("v", row.key.k): [value_of(row.value)] for row in rows(stateVarName="v")}
    for row in rows(stateVarName="l", flattenCollectionTypes="false"):
        state["l", row.key.k] = list(map(value_of, row.list_value))
    for row in rows(stateVarName="m"):
        state["m", row.key.k, row.user_map_key.k] = [value_of(row.user_map_value)]
    for row in rows(readRegisteredTimers="true"):
        state["timer", row.key.k, row.expiration_timestamp_ms] = [NO_VALUE]
    return state


def our_state(checkpoints: str, ttl_ms: int | None) -> State:
    """Read all state of our operator without Spark."""
    (job_id,) = (each.name for each in Path(checkpoints.removeprefix("file://")).iterdir())
    latest = latest_checkpoint(checkpoints, job_id=job_id)
    assert latest is not None
    pointer = latest.location.external_pointer

    def rows(state: str | None = None, kind: str | None = None) -> list[dict[str, Any]]:
        table: pa.Table = holdfast.read_state(pointer, _UID, state, kind=kind)
        listed: list[dict[str, Any]] = table.to_pylist()
        return listed

    def value_of(row: dict[str, Any]) -> Stored:
        value = tuple(row["value"].values())
        if ttl_ms is None:
            return value, None
        return value, round(row["changed"].timestamp() * 1000) + ttl_ms

    def elements(row: dict[str, Any]) -> list[Stored]:
        if ttl_ms is None:
            return [(tuple(each.values()), None) for each in row["value"]]
        return [(tuple(each["element"].values()), each["ts"] + ttl_ms) for each in row["value"]]

    state: State = {("v", row["k"]): [value_of(row)] for row in rows("v")}
    state |= {("l", row["k"]): elements(row) for row in rows("l")}
    state |= {("m", row["k"], row["key"]["k"]): [value_of(row)] for row in rows("m")}
    return state | {
        ("timer", row["k"], row["time"]): [NO_VALUE] for row in rows(kind="keyed timers")
    }


def drop_expired(state: State, at_ms: int) -> State:
    """Remove expired values, which may stay stored for a while."""
    left = {
        name: [each for each in stored if each[1] is None or each[1] > at_ms]
        for name, stored in state.items()
    }
    return {name: stored for name, stored in left.items() if stored}
