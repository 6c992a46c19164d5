"""A query that is started again with another parallelism."""

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
from holdfast.spark.query import StatefulOperator

steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # files that are fed
        st.integers(1, 4),  # the parallelism of the next run
        st.sampled_from(["ends well", "fails after its sink", "repeats its last batch"]),
    ),
    min_size=2,
    max_size=3,
)


@pytest.mark.exhaustive
@settings(max_examples=4, derandomize=True)
@given(steps=steps)
def test_each_row_is_in_the_output_or_the_state_once_whatever_happened(
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
    assert sorted([*job.ids_written(), *job.ids_held()]) == job.ids_fed


def collecting(into: list[Row]) -> Sink:
    def sink(rows: DataFrame, _batch_id: int) -> None:
        into[:] = sorted(rows.collect(), key=lambda row: row.subtask)

    return sink


@pytest.mark.exhaustive
def test_each_kind_of_state_is_spread_in_its_own_way(job: Job) -> None:
    seen: list[Row] = []

    def run(parallelism: int, rows: int) -> None:
        job.feed(files=1, rows=rows)
        options = {"schema": AllOperatorStates.schema, "sink": collecting(seen)}
        job.run(job.operator(AllOperatorStates(), parallelism=parallelism, **options))

    run(2, rows=10)
    for parallelism in (5, 1, 3):
        fed = job.ids_fed
        run(parallelism, rows=0)
        assert [row.subtask for row in seen] == list(range(parallelism))
        # Lists and raw partitions are dealt out, one by one.
        for spread in ([row.list for row in seen], [[int(i) for i in row.raw] for row in seen]):
            assert sorted(i for ids in spread for i in ids) == fed
            assert max(map(len, spread)) - min(map(len, spread)) <= 1
        for row in seen:
            assert row.rules == ["limit=10"]
            assert set(row.union) == set(fed)


@pytest.mark.exhaustive
def test_states_that_nobody_asks_for_for_some_restarts_neither_grow_nor_get_lost(job: Job) -> None:
    seen: list[Row] = []
    options = {"schema": AllOperatorStates.schema, "sink": collecting(seen)}
    job.feed(files=1, rows=10)
    job.run(job.operator(AllOperatorStates(), parallelism=2, **options))
    fed = job.ids_fed
    for parallelism in (3, 1):
        job.feed(files=2, rows=10)  # the second batch goes on with what the first one has stored
        job.run(job.operator(StatelessFunction(), parallelism=parallelism))
        stored = states(job.latest().location.external_pointer).select(["state", "stored_elements"])
        assert sorted(map(tuple, map(dict.values, stored.to_pylist()))) == [
            ("list", 10),
            ("rules", 1),
            ("union", 10),
        ]
    job.feed(files=1, rows=0)
    job.run(job.operator(AllOperatorStates(), parallelism=2, **options))
    assert [sorted(row.union) for row in seen] == [fed] * 2
    assert [row.rules for row in seen] == [["limit=10"]] * 2
    assert sorted(i for row in seen for i in row.list) == fed


@pytest.mark.exhaustive
def test_the_parallelism_has_nothing_to_do_with_sparks_number_of_shuffle_partitions(
    job: Job,
) -> None:
    job.feed(files=2, rows=20)
    for partitions, parallelism in (("7", 3), ("1", 4)):
        job.settings["spark.sql.shuffle.partitions"] = partitions
        job.feed(files=1, rows=20)
        job.run(job.operator(Groups(7), parallelism=parallelism))
        stored = job.latest().metadata.operators["operator"]
        assert (stored.parallelism, sorted(stored.subtasks)) == (
            parallelism,
            list(range(parallelism)),
        )
    assert sorted([*job.ids_written(), *job.ids_held()]) == job.ids_fed


def refused(job: Job, operator: StatefulOperator, words: str) -> None:
    """The job fails so, leaves the job to whom it belongs, and its output as it was."""
    before = job.checkpoint_ids(), job.ids_written(), sorted(job.job_directory.glob("*/*"))
    with pytest.raises(StreamingQueryException, match=words):
        job.run(operator)
    assert (
        job.checkpoint_ids(),
        job.ids_written(),
        sorted(job.job_directory.glob("*/*")),
    ) == before


@pytest.mark.exhaustive
def test_the_stored_number_of_key_groups_is_gone_on_with(job: Job) -> None:
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7), max_parallelism=6))
    job.feed(files=1, rows=20)
    refused(job, job.operator(Groups(7), parallelism=7), "reduce the parallelism to at most 6")
    refused(job, job.operator(Groups(7), max_parallelism=8), "set 6 or leave it out")
    job.run(job.operator(Groups(7), parallelism=6))
    assert job.latest().metadata.operators["operator"].max_parallelism == 6
    assert sorted([*job.ids_written(), *job.ids_held()]) == job.ids_fed
