"""Functions over our state behave as in Spark's own `applyInPandasWithState`, batch by batch, and leave the same state."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jobs.both_sides import Batch, both_sides
from jobs.group_states import OPERATIONS, OUT, STATE, Model, run_script
from jobs.scripted import render_script
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast import keyed, stateful_query
from holdfast.locations import latest_checkpoint

_BATCHES = 8
_UID = "scripted"

# Each example is sixteen queries of Spark. Shrinking takes minutes, and makes it no easier to read.
pytestmark = pytest.mark.exhaustive
examples = settings(
    max_examples=max(1, settings().max_examples // 50),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def batches(seed: int) -> list[Batch]:
    """Return batches of a few keys with advancing times, some of them late, some batches almost without rows."""
    numbers = random.Random(seed)
    keys = [None, "", "a", "b", "c", "ü"]
    clock, generated = 100, []
    for _ in range(_BATCHES):
        clock += numbers.randrange(5, 60)
        rows = []
        for _ in range(numbers.choice([1, 1, 5, 10])):
            script = [
                (numbers.choice(OPERATIONS), numbers.randrange(-3, 60))
                for _ in range(numbers.randrange(4))
            ]
            time = clock + numbers.randrange(-80, 20)
            rows.append({"k": numbers.choice(keys), "ms": time, "ops": render_script(script)})
        generated.append(Batch(rows, clock))
    return generated


@pytest.mark.parametrize("timeout", ["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"])
@given(seed=st.integers(0, 2**32 - 1))
@examples
def test_function_output_and_state_equal_those_of_spark(
    spark: SparkSession, timeout: str, seed: int
) -> None:
    arguments = (run_script(timeout), OUT, STATE, "update", timeout)
    model = Model(timeout)
    late_ms = 0
    with both_sides(spark) as (native, ours, checkpoints):
        for number, batch in enumerate(batches(seed)):

            def spark_writer(seen: list[str]) -> Any:
                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in rows.collect())

                results = native.rows.groupBy("k").applyInPandasWithState(*arguments)
                return results.writeStream.outputMode("update").foreachBatch(take)

            def our_writer(seen: list[str], parallelism: int = 1 + number % 3) -> Any:
                by_key = keyed(ours.rows, "k", uid=_UID, parallelism=parallelism)
                # Its own writer would add batches for timers, and Spark's does not.
                operator = by_key.applyInPandasWithState(*arguments).operator

                def take(rows: DataFrame, _: int) -> None:
                    seen.extend(row.out for row in operator.apply(rows).collect())

                return ours.rows.writeStream.foreachBatch(stateful_query(take, operator))

            expected, watermark = native.run(batch, spark_writer)
            assert ours.run(batch, our_writer) == (expected, watermark)
            in_time = [
                {name: row.get(name) for name in ("k", "ms", "ops", "ts")}
                for row in batch.rows
                if timeout != "EventTimeTimeout" or row["ms"] > late_ms
            ]
            assert sorted(model.run(in_time, batch.at_ms, watermark)) == expected
            late_ms = watermark
        state = spark_state(spark, str(native.checkpoint))
        assert our_state(checkpoints, has_timeout=timeout != "NoTimeout") == state


State = dict[Any, tuple[Any, int]]
"""The value, or None, and the timeout, or -1, of each key."""


def spark_state(spark: SparkSession, checkpoint: str) -> State:
    """Read all state of Spark's operator with its data source."""
    rows = spark.read.format("statestore").load(checkpoint).collect()
    state = {}
    for row in rows:
        fields = row.value.asDict()
        value = fields.get("groupState", row.value if "n" in fields else None)
        at_ms = fields.get("timeoutTimestamp", -1)
        state[row.key.k] = (value if value is None else tuple(value)), at_ms
    return state


def our_state(checkpoints: str, *, has_timeout: bool) -> State:
    """Read all state of our operator without Spark."""
    (job_id,) = (each.name for each in Path(checkpoints.removeprefix("file://")).iterdir())
    latest = latest_checkpoint(checkpoints, job_id=job_id)
    assert latest is not None

    def values(state: str) -> dict[Any, Any]:
        table = holdfast.read_state(latest.location.external_pointer, _UID, state)
        return {row["k"]: tuple(row["value"].values()) for row in table.to_pylist()}

    stored = values("state")
    timeouts = values("timeout") if has_timeout else {}
    return {key: (stored.get(key), timeouts.get(key, (-1,))[0]) for key in {**stored, **timeouts}}
