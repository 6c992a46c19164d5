"""Random programs of calls in random batches: a function of `applyInPandasWithState` behaves like a model of Spark."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.group_states import OPERATIONS, Model, operator
from jobs.keyed import KeyedJob
from jobs.scripted import render_script

SCHEMA = pa.schema([("k", pa.string()), ("ops", pa.string())])

keys = st.sampled_from([None, "", "a", "b", "c", "d"])
operations = st.tuples(st.sampled_from(OPERATIONS), st.integers(-2, 40))
rows = st.lists(st.tuples(keys, st.lists(operations, max_size=4)), max_size=8)
timeouts = st.sampled_from(["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"])
batches = st.lists(st.tuples(rows, st.integers(0, 12), st.booleans()), min_size=1, max_size=8)


def _job(directory: str, timeout: str, parallelism: int = 1) -> KeyedJob:
    function = operator(timeout)
    return KeyedJob(
        directory,
        function,
        schema=SCHEMA,
        key=("k",),
        output=function.arrow_schema,
        parallelism=parallelism,
    )


def _batch(given_rows: list[Any]) -> list[dict[str, Any]]:
    return [{"k": key, "ops": render_script(script)} for key, script in given_rows]


@given(timeout=timeouts, batches=batches)
def test_function_behaves_as_on_spark(timeout: str, batches: list[Any]) -> None:
    directory = f"memory:///{uuid.uuid4().hex}"
    model = Model(timeout)
    job, time = None, 50
    for given_rows, passed, restarts in batches:
        time += passed
        if job is None or restarts:
            job = _job(directory, timeout)
        batch = _batch(given_rows)
        seen = [row["out"] for row in job.run(batch, times=(time, time - 5))]
        assert seen == model.run(batch, time, time - 5)


@pytest.mark.exhaustive  # the same at other parallelisms
@given(timeout=timeouts, batches=batches)
def test_function_behaves_the_same_at_any_parallelism(timeout: str, batches: list[Any]) -> None:
    directory = f"memory:///{uuid.uuid4().hex}"
    model = Model(timeout)
    time = 50
    for number, (given_rows, passed, _) in enumerate(batches):
        time += passed
        job = _job(directory, timeout, parallelism=1 + number % 3)
        batch = _batch(given_rows)
        seen = [row["out"] for row in job.run(batch, times=(time, time - 5))]
        assert sorted(seen) == sorted(model.run(batch, time, time - 5))
