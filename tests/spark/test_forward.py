"""Rows that stay in their partitions."""

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
    """Split rows into partitions by the remainder of their id, without a shuffle."""
    united = rows.where(f"id % {number} = 0")
    for rest in range(1, number):
        united = united.union(rows.where(f"id % {number} = {rest}"))
    return united


def with_input(operator: Sink, prepare: Callable[[DataFrame], DataFrame]) -> Sink:
    """Return a function of a query that prepares the rows of each batch for the operator."""
    return lambda batch, batch_id: operator(prepare(batch), batch_id)


class Collector:
    """A sink that keeps the ids of each subtask, and the plans of its rows."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.plans: list[str] = []

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        for row in rows.collect():
            self.ids.setdefault(row.subtask, []).append(row.id)
        self.plans.append(plan_of(rows))


def test_rows_stay_in_their_partitions(job: Job) -> None:
    sink = Collector()
    operator = job.operator(RowNumbers(), forward=True, sink=sink, schema=SCHEMA)
    job.feed(files=3, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch, 2)))
    assert {subtask: sorted(ids) for subtask, ids in sink.ids.items()} == {
        0: list(range(0, 60, 2)),
        1: list(range(1, 60, 2)),
    }
    assert not any("Exchange" in plan for plan in sink.plans)


def test_more_partitions_than_subtasks_are_combined(job: Job) -> None:
    sink = Collector()
    operator = job.operator(RowNumbers(), forward=True, sink=sink, schema=SCHEMA)
    job.feed(files=2, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch, 5)))
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
def test_rows_are_repartitioned_if_partitions_do_not_match(
    job: Job, prepare: Callable[[DataFrame], DataFrame]
) -> None:
    operator = job.operator(Groups(3), forward=True, parallelism=3)
    job.feed(files=2, rows=20)
    job.run(with_input(operator, prepare))
    assert sorted(job.latest().metadata.operators["operator"].subtasks) == [0, 1, 2]
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_batch_without_rows_is_repartitioned(job: Job) -> None:
    operator = job.operator(Groups(3), forward=True)
    job.feed(files=1, rows=20)
    job.run(with_input(operator, lambda batch: batch.limit(0)))
    assert sorted(job.latest().metadata.operators["operator"].subtasks) == [0, 1]


@pytest.mark.exhaustive
def test_subtask_with_an_empty_partition_keeps_its_state(job: Job) -> None:
    operator = job.operator(Groups(100), forward=True)
    job.feed(files=1, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch, 2)))
    job.feed(files=1, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch.where("id % 2 = 0"), 2)))
    held = job.ids_by_subtask()
    assert {subtask: sorted(ids) for subtask, ids in held.items()} == {
        0: list(range(0, 40, 2)),
        1: list(range(1, 20, 2)),
    }


@pytest.mark.exhaustive
def test_retried_task_counts_once(job: Job) -> None:
    operator = job.operator(FailsOnce(3, job.directory / "failed"), forward=True)
    job.feed(files=3, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch, 2)))
    assert (job.directory / "failed").exists()
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_state_survives_changes_of_forwarding(job: Job) -> None:
    for forward, parallelism in ((True, 2), (False, 3), (True, 2)):
        operator = job.operator(Groups(7), forward=forward, parallelism=parallelism)
        job.feed(files=1, rows=20)
        job.run(with_input(operator, lambda batch: parts(batch, 2)))
        job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_chain_stays_in_its_partitions(job: Job) -> None:
    plans: list[str] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        plans.append(plan_of(rows))
        job.write(rows, batch_id)

    first, second = (job.part(Groups(3), uid, forward=True) for uid in ("first", "second"))
    job.feed(files=2, rows=20)
    job.run(with_input(job.chain(first, second, sink=sink), lambda batch: parts(batch, 2)))
    job.check_every_row_is_there_once("first", "second")
    assert not any("Exchange" in plan for plan in plans)


def evens(batch: DataFrame) -> DataFrame:
    """Return two partitions, the second without rows."""
    return parts(batch.where("id % 2 = 0"), 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [False, True], ids=["one action", "two actions"])
def test_rows_coalesced_by_a_sink_keep_their_subtasks(job: Job, more: bool) -> None:  # noqa: FBT001
    sink = Collector()

    def coalesce(rows: DataFrame, batch_id: int) -> None:
        sink(rows.coalesce(1), batch_id)
        if more:
            rows.count()

    operator = job.operator(RowNumbers(), forward=True, sink=coalesce, schema=SCHEMA, persist=more)
    job.feed(files=2, rows=20)
    job.run(with_input(operator, lambda batch: parts(batch, 2)))
    assert sorted(sink.ids[0]) == list(range(0, 40, 2))
    assert sorted(sink.ids[1]) == list(range(1, 40, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda rows: rows.coalesce(1).collect(), "must not coalesce them", id="coalesced"
        ),
        pytest.param(
            lambda rows: (rows.coalesce(1).collect(), rows.count()),
            "must not coalesce them",
            id="coalesced, then read as it is",
        ),
        pytest.param(
            lambda rows: rows.sparkSession.range(0, 4, 1, 2).union(rows.select("id")).collect(),
            "must not put other rows before its rows",
            id="after others",
        ),
    ],
)
def test_sink_moving_partitions_without_rows_is_declined(
    job: Job, change: Callable[[DataFrame], object], message: str
) -> None:
    def sink(rows: DataFrame, _batch_id: int) -> None:
        change(rows)

    operator = job.operator(Groups(3), forward=True, sink=sink)
    job.feed(files=1, rows=20)
    with pytest.raises(StreamingQueryException, match=message):
        job.run(with_input(operator, evens))
    assert job.checkpoint_ids() == []


def test_rows_of_an_empty_partition_are_declined(job: Job) -> None:
    operator = job.operator(AllOperatorStates(), forward=True, schema=AllOperatorStates.schema)
    job.feed(files=1, rows=20)
    with pytest.raises(
        StreamingQueryException,
        match=r"yields rows although its partition has none.* Remove forward=True \[HF-DECLINED\](?! \[)",
    ):
        job.run(with_input(operator, evens))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_chain_with_fewer_subtasks_later_is_repartitioned(job: Job) -> None:
    first = job.part(Groups(3), "first", forward=True, parallelism=4)
    second = job.part(Groups(3), "second", forward=True)
    job.feed(files=2, rows=20)
    job.run(with_input(job.chain(first, second), lambda batch: parts(batch.where("id % 4 < 2"), 4)))
    held = job.ids_held("first") + job.ids_held("second")
    assert sorted(job.ids_written() + held) == [i for i in job.ids_fed if i % 4 < 2]


@pytest.mark.exhaustive
@pytest.mark.parametrize("parallelism", [1, 2])
def test_batch_without_rows_at_run_time_is_completed(job: Job, parallelism: int) -> None:
    operator = job.operator(Groups(3), forward=True, parallelism=parallelism)
    job.feed(files=2, rows=20)
    job.run(with_input(operator, lambda batch: batch.where("name = 'unknown'").limit(5)))
    assert job.checkpoint_ids()[-1] == 2


def test_bad_values_of_forward_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="remove one of them"):
        stateful(Groups(1), uid="operator", parallelism=2, key="id", forward=True)
    with pytest.raises(InvalidRequestError, match="forward must be True or False, got 1"):
        stateful(Groups(1), uid="operator", parallelism=2, forward=1)  # type: ignore[arg-type]
