"""Random rows in random batches: a processor over our state behaves like a model of Spark."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.processor_jobs import outputs, processor_job
from jobs.scripted import Model, Scripted, render_script

SCHEMA = pa.schema([("k", pa.string()), ("ops", pa.string())])

keys = st.sampled_from([None, "", "a", "b", "c", "d"])
numbers = st.integers(-30, 60)
operations = st.tuples(st.sampled_from("vVaApLmmdM++-"), numbers)
scripts = st.lists(operations | st.just(("s", 0)), max_size=6)
rows = st.lists(st.tuples(keys, scripts), max_size=8)
modes = st.sampled_from(
    [("None", None), ("EventTime", None), ("ProcessingTime", None), ("ProcessingTime", 15)]
)
batches = st.lists(st.tuples(rows, st.integers(0, 20), st.booleans()), min_size=1, max_size=6)


@given(mode=modes, batches=batches)
def test_processor_behaves_as_on_spark(mode: tuple[str, int | None], batches: list[Any]) -> None:
    time_mode, ttl = mode
    directory = f"memory:///{uuid.uuid4().hex}"
    processor = Scripted(time_mode, ttl)
    model = Model(time_mode, ttl)
    job, time = None, 0
    for given_rows, passed, restarts in batches:
        time += passed
        if job is None or restarts:
            job = processor_job(directory, processor, schema=SCHEMA, time_mode=time_mode)
        batch = [{"k": key, "ops": render_script(script)} for key, script in given_rows]
        seen = outputs(job.run(batch, times=(time, time - 5)))
        assert seen == model.run(batch, time, time - 5)


@pytest.mark.exhaustive
@settings(max_examples=settings().max_examples // 2)
@given(batches=batches)
def test_processor_behaves_the_same_at_any_parallelism(batches: list[Any]) -> None:
    directory = f"memory:///{uuid.uuid4().hex}"
    model = Model("EventTime")
    time = 0
    for number, (given_rows, passed, _) in enumerate(batches):
        time += passed
        job = processor_job(
            directory,
            Scripted("EventTime"),
            schema=SCHEMA,
            time_mode="EventTime",
            parallelism=1 + number % 3,
        )
        batch = [{"k": key, "ops": render_script(script)} for key, script in given_rows]
        seen = outputs(job.run(batch, times=(time, time - 5)))
        assert sorted(map(repr, seen)) == sorted(map(repr, model.run(batch, time, time - 5)))
