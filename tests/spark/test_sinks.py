"""Sinks that read their rows in other ways than once and whole."""

import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest
from jobs.job import Job
from jobs.operators import Groups
from jobs.session import cached_dataset_count
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.operators import Sink


def test_a_sink_without_an_action_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70), sink=lambda _rows, _batch_id: None))
    assert job.checkpoint_ids() == [3]
    job.feed(files=1)
    job.run(job.operator(Groups(70)))
    # 4 batches are 200 rows a subtask; what was let through in the first three is gone
    assert len(job.ids_written()) == 0


@pytest.mark.exhaustive
def test_a_sink_that_only_glimpses_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=2, rows=1000)
    seen: list[int] = []
    job.run(job.operator(Groups(1), sink=lambda rows, _: seen.append(len(rows.limit(3).collect()))))
    assert seen == [3, 3]
    assert job.checkpoint_ids() == [2]


def test_rows_of_an_earlier_batch_that_are_read_again_do_not_count(job: Job) -> None:
    job.feed(files=3)
    kept: list[DataFrame] = []

    def sink(rows: DataFrame, _batch_id: int) -> None:
        (kept[-1] if kept else rows).count()
        kept.append(rows)

    job.run(job.operator(Groups(1000), sink=sink))
    assert job.checkpoint_ids() == [3]
    assert job.ids_held() == job.ids_fed


def writes_twice(rows: DataFrame, _batch_id: int) -> None:
    rows.count()
    rows.count()


def sorts(rows: DataFrame, _batch_id: int) -> None:
    rows.orderBy("id").write.format("noop").mode("overwrite").save()  # samples the rows first


@pytest.mark.parametrize("sink", [writes_twice, pytest.param(sorts, marks=pytest.mark.exhaustive)])
def test_a_sink_with_several_actions_has_to_persist(job: Job, sink: Sink) -> None:
    job.feed(files=1, rows=1000)
    with pytest.raises(StreamingQueryException, match="persist=True"):
        job.run(job.operator(Groups(10), sink=sink))
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(10), sink=sink, persist=True))
    assert job.checkpoint_ids() == [1]


@pytest.mark.parametrize(
    ("rows", "parallelism", "writes"),
    [
        (3, 2, "some"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in itertools.product((1000, 3), (1, 2), ("some", "always"))
            if case != (3, 2, "some")
        ),
    ],
)
def test_a_sink_may_look_at_its_rows_before_it_writes_them(
    job: Job, rows: int, parallelism: int, writes: str
) -> None:
    job.feed(files=2, rows=rows)

    def looks(output: DataFrame, batch_id: int) -> None:
        if not output.isEmpty() or writes == "always":
            job.write(output, batch_id)

    job.run(job.operator(Groups(10), sink=looks, parallelism=parallelism))
    assert sorted([*job.ids_written(), *job.ids_held()]) == job.ids_fed


@pytest.mark.exhaustive
def test_persisted_rows_are_released_after_the_batch(spark: SparkSession, job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(10), persist=True))
    assert len(job.ids_written()) == 200
    assert cached_dataset_count(spark) == 0


def takes_partitions_one_by_one(rows: DataFrame) -> list[int]:
    return [row.id for row in rows.toLocalIterator()]


def takes_an_rdd(rows: DataFrame) -> list[int]:
    return [row.id for row in rows.rdd.collect()]


@pytest.mark.parametrize(
    "takes", [takes_partitions_one_by_one, pytest.param(takes_an_rdd, marks=pytest.mark.exhaustive)]
)
def test_a_sink_may_read_its_rows_once_in_any_way(
    job: Job, takes: Callable[[DataFrame], list[int]]
) -> None:
    job.feed(files=2, rows=100)
    rows_read: list[int] = []
    job.run(job.operator(Groups(70), sink=lambda rows, _: rows_read.extend(takes(rows))))
    assert sorted([*rows_read, *job.ids_held()]) == job.ids_fed


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("partitions", "persist"),
    [
        pytest.param(None, False, id="narrow"),
        pytest.param(1, False, id="behind a shuffle"),
        pytest.param(None, True, id="persisted"),
        pytest.param(1, True, id="persisted, behind a shuffle"),
    ],
)
def test_a_sink_that_hides_an_error_is_refused(
    job: Job,
    partitions: int | None,
    persist: bool,  # noqa: FBT001
) -> None:
    job.feed(files=1)

    def hides(rows: DataFrame, batch_id: int) -> None:
        rows = rows if partitions is None else rows.repartition(partitions)
        with suppress(Exception):
            job.write(rows.selectExpr("*", "assert_true(id < 3)"), batch_id)

    with pytest.raises(StreamingQueryException, match="failed job"):
        job.run(job.operator(Groups(10), sink=hides, persist=persist))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_a_sink_that_persists_may_try_again(job: Job) -> None:
    job.feed(files=2)

    def tries_again(rows: DataFrame, batch_id: int) -> None:
        with suppress(Exception):
            job.write(rows.selectExpr("*", "assert_true(id < 3)"), batch_id)
        job.write(rows, batch_id)

    job.run(job.operator(Groups(10), sink=tries_again, persist=True))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "reshape",
    [
        pytest.param(lambda rows: rows.repartition(3), id="repartition"),
        pytest.param(lambda rows: rows.coalesce(1), id="coalesce"),
        pytest.param(
            lambda rows: rows.sparkSession.createDataFrame([], rows.schema).union(rows),
            marks=pytest.mark.exhaustive,
            id="union",
        ),
        pytest.param(
            lambda rows: rows.sparkSession.range(5, numPartitions=3).join(rows, "id", "right"),
            marks=pytest.mark.exhaustive,
            id="join",
        ),
    ],
)
def test_a_sink_may_reshape_its_rows(job: Job, reshape: Callable[[DataFrame], DataFrame]) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=3)
    sink = lambda rows, batch_id: job.write(reshape(rows), batch_id)  # noqa: E731
    job.run(job.operator(Groups(70), sink=sink, parallelism=3))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 3 * 70
    job.feed(files=2)
    job.run(job.operator(Groups(70), sink=sink, parallelism=3))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 3 * 140
