"""Rows that stay in the partitions that they are in."""

from collections.abc import Callable

import pytest
from jobs.job import Job
from jobs.operators import AllOperatorStates, FailsOnce, Groups, RowNumbers
from jobs.session import plan_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from holdfast import stateful
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink

SCHEMA = "id long, nth long, subtask int"


def parts(rows: DataFrame, number: int) -> DataFrame:
    """The rows in so many partitions, by what is left of their id; without a shuffle."""
    united = rows.where(f"id % {number} = 0")
    for rest in range(1, number):
        united = united.union(rows.where(f"id % {number} = {rest}"))
    return united


def behind(operator: Sink, prepare: Callable[[DataFrame], DataFrame]) -> Sink:
    """The operator over what is made of the batch."""
    return lambda batch, batch_id: operator(prepare(batch), batch_id)


class Collector:
    """Keeps the ids of each subtask, and the plans that it was given."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.plans: list[str] = []

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        for row in rows.collect():
            self.ids.setdefault(row.subtask, []).append(row.id)
        self.plans.append(plan_of(rows))


def test_rows_stay_where_they_are(job: Job) -> None:
    sink = Collector()
    operator = job.operator(RowNumbers(), forward=True, sink=sink, schema=SCHEMA)
    job.feed(files=3, rows=20)
    job.run(behind(operator, lambda batch: parts(batch, 2)))
    assert {subtask: sorted(ids) for subtask, ids in sink.ids.items()} == {
        0: list(range(0, 60, 2)),
        1: list(range(1, 60, 2)),
    }
    assert not any("Exchange" in plan for plan in sink.plans)


def test_more_partitions_than_subtasks_are_put_together(job: Job) -> None:
    sink = Collector()
    operator = job.operator(RowNumbers(), forward=True, sink=sink, schema=SCHEMA)
    job.feed(files=2, rows=20)
    job.run(behind(operator, lambda batch: parts(batch, 5)))
    assert sorted(i for ids in sink.ids.values() for i in ids) == job.ids_fed
    assert sorted(sink.ids) == [0, 1]
    by_rest = [{i % 5 for i in ids} for ids in sink.ids.values()]
    assert not set.intersection(*by_rest), "partitions were torn apart"
    assert not any("Exchange" in plan for plan in sink.plans)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(
            lambda batch: batch.coalesce(1),
            marks=pytest.mark.exhaustive,
            id="fewer partitions than subtasks",
        ),
        pytest.param(lambda batch: batch.repartition(4), id="a shuffle before them"),
    ],
)
def test_rows_are_dealt_where_no_partition_is_a_subtasks(
    job: Job, prepare: Callable[[DataFrame], DataFrame]
) -> None:
    operator = job.operator(Groups(3), forward=True, parallelism=3)
    job.feed(files=2, rows=20)
    job.run(behind(operator, prepare))
    assert sorted(job.latest().metadata.operators["operator"].subtasks) == [0, 1, 2]
    assert sorted(job.ids_written() + job.ids_held()) == job.ids_fed


@pytest.mark.exhaustive
def test_a_batch_without_rows_is_dealt(job: Job) -> None:
    operator = job.operator(Groups(3), forward=True)
    job.feed(files=1, rows=20)
    job.run(behind(operator, lambda batch: batch.limit(0)))
    assert sorted(job.latest().metadata.operators["operator"].subtasks) == [0, 1]


def test_a_subtask_whose_partition_is_empty_carries_its_state_on(job: Job) -> None:
    operator = job.operator(Groups(100), forward=True)
    job.feed(files=1, rows=20)
    job.run(behind(operator, lambda batch: parts(batch, 2)))
    job.feed(files=1, rows=20)
    job.run(behind(operator, lambda batch: parts(batch.where("id % 2 = 0"), 2)))
    held = job.ids_by_subtask()
    assert {subtask: sorted(ids) for subtask, ids in held.items()} == {
        0: list(range(0, 40, 2)),
        1: list(range(1, 20, 2)),
    }


@pytest.mark.exhaustive
def test_a_task_that_is_tried_again_changes_nothing(job: Job) -> None:
    operator = job.operator(FailsOnce(3, job.directory / "failed"), forward=True)
    job.feed(files=3, rows=20)
    job.run(behind(operator, lambda batch: parts(batch, 2)))
    assert (job.directory / "failed").exists()
    assert sorted(job.ids_written() + job.ids_held()) == job.ids_fed


@pytest.mark.exhaustive
def test_state_goes_on_when_rows_are_dealt_again_and_by_others(job: Job) -> None:
    for forward, parallelism in ((True, 2), (False, 3), (True, 2)):
        operator = job.operator(Groups(7), forward=forward, parallelism=parallelism)
        job.feed(files=1, rows=20)
        job.run(behind(operator, lambda batch: parts(batch, 2)))
        assert sorted(job.ids_written() + job.ids_held()) == job.ids_fed


@pytest.mark.exhaustive
def test_a_chain_stays_in_its_partitions(job: Job) -> None:
    plans: list[str] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        plans.append(plan_of(rows))
        job.write(rows, batch_id)

    first, second = (job.part(Groups(3), uid, forward=True) for uid in ("first", "second"))
    job.feed(files=2, rows=20)
    job.run(behind(job.chain(first, second, sink=sink), lambda batch: parts(batch, 2)))
    assert sorted(job.ids_written() + job.ids_held("first") + job.ids_held("second")) == job.ids_fed
    assert not any("Exchange" in plan for plan in plans)


def evens(batch: DataFrame) -> DataFrame:
    """Two partitions, the second without rows."""
    return parts(batch.where("id % 2 = 0"), 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [False, True], ids=["one action", "two actions"])
def test_rows_that_a_sink_coalesces_are_of_their_own_subtasks(job: Job, more: bool) -> None:  # noqa: FBT001
    sink = Collector()

    def coalescing(rows: DataFrame, batch_id: int) -> None:
        sink(rows.coalesce(1), batch_id)
        if more:
            rows.count()

    operator = job.operator(
        RowNumbers(), forward=True, sink=coalescing, schema=SCHEMA, persist=more
    )
    job.feed(files=2, rows=20)
    job.run(behind(operator, lambda batch: parts(batch, 2)))
    assert sorted(sink.ids[0]) == list(range(0, 40, 2))
    assert sorted(sink.ids[1]) == list(range(1, 40, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda rows: rows.coalesce(1).collect(), "must not coalesce them", id="coalesced"
        ),
        pytest.param(
            lambda rows: (rows.coalesce(1).collect(), rows.count()),
            "must not coalesce them",
            marks=pytest.mark.exhaustive,
            id="coalesced, then read as it is",
        ),
        pytest.param(
            lambda rows: rows.sparkSession.range(0, 4, 1, 2).union(rows.select("id")).collect(),
            "must not put other rows before its rows",
            marks=pytest.mark.exhaustive,
            id="behind others",
        ),
    ],
)
def test_a_sink_that_moves_partitions_without_rows_is_declined(
    job: Job, change: Callable[[DataFrame], object], message: str
) -> None:
    def sink(rows: DataFrame, _batch_id: int) -> None:
        change(rows)

    operator = job.operator(Groups(3), forward=True, sink=sink)
    job.feed(files=1, rows=20)
    with pytest.raises(StreamingQueryException, match=message):
        job.run(behind(operator, evens))
    assert job.checkpoint_ids() == []


def test_rows_of_a_partition_without_any_are_declined(job: Job) -> None:
    operator = job.operator(AllOperatorStates(), forward=True, schema=AllOperatorStates.schema)
    job.feed(files=1, rows=20)
    with pytest.raises(
        StreamingQueryException, match="yields rows although its partition has none"
    ):
        job.run(behind(operator, evens))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_a_chain_with_fewer_subtasks_behind_is_dealt(job: Job) -> None:
    first = job.part(Groups(3), "first", forward=True, parallelism=4)
    second = job.part(Groups(3), "second", forward=True)
    job.feed(files=2, rows=20)
    job.run(behind(job.chain(first, second), lambda batch: parts(batch.where("id % 4 < 2"), 4)))
    held = job.ids_held("first") + job.ids_held("second")
    assert sorted(job.ids_written() + held) == [i for i in job.ids_fed if i % 4 < 2]


@pytest.mark.exhaustive
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_batch_that_turns_out_to_have_no_rows_is_completed(job: Job, parallelism: int) -> None:
    operator = job.operator(Groups(3), forward=True, parallelism=parallelism)
    job.feed(files=2, rows=20)
    job.run(behind(operator, lambda batch: batch.where("name = 'nobody'").limit(5)))
    assert job.checkpoint_ids()[-1] == 2


def test_forward_is_refused_with_a_key_and_unless_it_is_true_or_false() -> None:
    with pytest.raises(InvalidRequestError, match="remove one of them"):
        stateful(Groups(1), uid="operator", parallelism=2, key="id", forward=True)
    with pytest.raises(InvalidRequestError, match="forward must be True or False, got 1"):
        stateful(Groups(1), uid="operator", parallelism=2, forward=1)  # type: ignore[arg-type]
