"""A query that restarts with another parallelism."""

import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.job import Job
from jobs.operators import AllOperatorStates, Groups, StatelessFunction
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from holdfast.backends.inspection import states
from holdfast.spark.operators import Sink

steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # files that are fed
        st.integers(1, 4),  # the parallelism of the next run
        st.sampled_from(["succeeds", "fails after its sink", "repeats its last batch"]),
    ),
    min_size=2,
    max_size=3,
)


@pytest.mark.exhaustive
@settings(max_examples=4, derandomize=True)
@given(steps=steps)
def test_no_row_is_lost_over_failures_and_rescaling(
    spark: SparkSession, tmp_path: Path, steps: list[tuple[int, int, str]]
) -> None:
    job = Job(spark, tmp_path / uuid.uuid4().hex)
    job.feed(files=1, rows=30)
    for files, parallelism, fate in steps:
        job.feed(files=files, rows=30)

        def sink(rows: DataFrame, batch_id: int, fate: str = fate) -> None:
            job.write(rows, batch_id)
            if fate == "fails after its sink":
                raise OSError("as planned")

        operator = job.operator(Groups(11), sink=sink, parallelism=parallelism)
        try:
            job.run(operator)
        except StreamingQueryException as error:
            if "as planned" not in str(error):
                raise
        if fate == "repeats its last batch" and job.checkpoint_ids():
            job.repeat_last_batch()
    job.run(job.operator(Groups(11), parallelism=3))
    job.check_every_row_is_there_once()


def collect_into(collected: list[Row]) -> Sink:
    def sink(rows: DataFrame, _batch_id: int) -> None:
        collected[:] = sorted(rows.collect(), key=lambda row: row.subtask)

    return sink


@pytest.mark.exhaustive
def test_operator_states_are_redistributed_by_their_mode(job: Job) -> None:
    seen: list[Row] = []

    def run(parallelism: int, rows: int) -> None:
        job.feed(files=1, rows=rows)
        options = {"schema": AllOperatorStates.schema, "sink": collect_into(seen)}
        job.run(job.operator(AllOperatorStates(), parallelism=parallelism, **options))

    run(2, rows=10)
    for parallelism in (5, 1, 3):
        fed = job.ids_fed
        run(parallelism, rows=0)
        assert [row.subtask for row in seen] == list(range(parallelism))
        # Elements of lists and raw partitions are distributed evenly.
        for spread in ([row.list for row in seen], [[int(i) for i in row.raw] for row in seen]):
            assert sorted(i for ids in spread for i in ids) == fed
            assert max(map(len, spread)) - min(map(len, spread)) <= 1
        for row in seen:
            assert row.rules == ["limit=10"]
            assert set(row.union) == set(fed)


@pytest.mark.exhaustive
def test_undeclared_states_are_kept_over_restarts(job: Job) -> None:
    seen: list[Row] = []
    options = {"schema": AllOperatorStates.schema, "sink": collect_into(seen)}
    job.feed(files=1, rows=10)
    job.run(job.operator(AllOperatorStates(), parallelism=2, **options))
    fed = job.ids_fed
    for parallelism in (3, 1):
        job.feed(files=2, rows=10)  # the second batch restores from the first
        job.run(job.operator(StatelessFunction(), parallelism=parallelism))
        stored = states(job.latest().location.external_pointer).select(["state", "stored_elements"])
        counts = {row["state"]: row["stored_elements"] for row in stored.to_pylist()}
        assert counts == {"list": 10, "rules": 1, "union": 10}
    job.feed(files=1, rows=0)
    job.run(job.operator(AllOperatorStates(), parallelism=2, **options))
    assert [sorted(row.union) for row in seen] == [fed] * 2
    assert [row.rules for row in seen] == [["limit=10"]] * 2
    assert sorted(i for row in seen for i in row.list) == fed


@pytest.mark.exhaustive
def test_parallelism_is_independent_of_shuffle_partitions(job: Job) -> None:
    job.feed(files=2, rows=20)
    for partitions, parallelism in (("7", 3), ("1", 4)):
        job.settings["spark.sql.shuffle.partitions"] = partitions
        job.feed(files=1, rows=20)
        job.run(job.operator(Groups(7), parallelism=parallelism))
        stored = job.latest().metadata.operators["operator"]
        assert stored.parallelism == parallelism
        assert sorted(stored.subtasks) == list(range(parallelism))
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_stored_number_of_key_groups_is_kept(job: Job) -> None:
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7), max_parallelism=6))
    job.feed(files=1, rows=20)
    job.check_refused(job.operator(Groups(7), parallelism=7), "reduce the parallelism to at most 6")
    job.check_refused(job.operator(Groups(7), max_parallelism=8), "set 6 or leave it out")
    job.run(job.operator(Groups(7), parallelism=6))
    assert job.latest().metadata.operators["operator"].max_parallelism == 6
    job.check_every_row_is_there_once()
