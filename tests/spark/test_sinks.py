"""Sinks that read their rows partly, repeatedly, or in unusual ways."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from jobs.job import Job
from jobs.operators import AwaitsNextPass, DropRowsAfter, Groups
from jobs.session import cached_dataset_count
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.operators import Sink


def test_sink_without_an_action_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70), sink=lambda _rows, _batch_id: None))
    assert job.checkpoint_ids() == [3]
    job.feed(files=1)
    job.run(job.operator(Groups(70)))
    # 4 batches are 200 rows a subtask; the sink of the first three dropped its output
    assert len(job.ids_written()) == 0


@pytest.mark.exhaustive
def test_sink_reading_a_prefix_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=2, rows=1000)
    seen: list[int] = []
    job.run(job.operator(Groups(1), sink=lambda rows, _: seen.append(len(rows.limit(3).collect()))))
    assert seen == [3, 3]
    assert job.checkpoint_ids() == [2]


def test_rows_of_an_earlier_batch_do_not_count(job: Job) -> None:
    job.feed(files=3)
    kept: list[DataFrame] = []

    def sink(rows: DataFrame, _batch_id: int) -> None:
        (kept[-1] if kept else rows).count()
        kept.append(rows)

    job.run(job.operator(Groups(1000), sink=sink))
    assert job.checkpoint_ids() == [3]
    assert job.ids_held() == job.ids_fed


def count_twice(rows: DataFrame, _batch_id: int) -> None:
    rows.count()
    rows.count()


def sort(rows: DataFrame, _batch_id: int) -> None:
    rows.orderBy("id").write.format("noop").mode("overwrite").save()  # samples the rows first


@pytest.mark.parametrize("sink", [count_twice, pytest.param(sort, marks=pytest.mark.exhaustive)])
def test_sink_with_several_actions_has_to_persist(job: Job, sink: Sink) -> None:
    job.feed(files=1, rows=1000)
    with pytest.raises(StreamingQueryException, match="persist=True"):
        job.run(job.operator(Groups(10), sink=sink))
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(10), sink=sink, persist=True))
    assert job.checkpoint_ids() == [1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rows", "parallelism", "writes"),
    list(itertools.product((1000, 3), (1, 2), ("some", "always"))),
)
def test_sink_may_check_for_rows_before_it_writes(
    job: Job, rows: int, parallelism: int, writes: str
) -> None:
    job.feed(files=2, rows=rows)

    def check_and_write(output: DataFrame, batch_id: int) -> None:
        if not output.isEmpty() or writes == "always":
            job.write(output, batch_id)

    job.run(job.operator(Groups(10), sink=check_and_write, parallelism=parallelism))
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_persisted_rows_are_released_after_the_batch(spark: SparkSession, job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(10), persist=True))
    assert len(job.ids_written()) == 200
    assert cached_dataset_count(spark) == 0


def collect_by_iterator(rows: DataFrame) -> list[int]:
    return [row.id for row in rows.toLocalIterator()]


def collect_by_rdd(rows: DataFrame) -> list[int]:
    return [row.id for row in rows.rdd.collect()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("collect", [collect_by_iterator, collect_by_rdd])
def test_sink_may_read_its_rows_in_any_way(
    job: Job, collect: Callable[[DataFrame], list[int]]
) -> None:
    job.feed(files=2, rows=100)
    rows_read: list[int] = []
    job.run(job.operator(Groups(70), sink=lambda rows, _: rows_read.extend(collect(rows))))
    assert sorted([*rows_read, *job.ids_held()]) == job.ids_fed


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("partitions", "persist"),
    [
        pytest.param(None, False, id="narrow"),
        pytest.param(1, False, id="after a shuffle"),
        pytest.param(None, True, id="persisted"),
        pytest.param(1, True, id="persisted, after a shuffle"),
    ],
)
def test_sink_hiding_an_error_is_refused(
    job: Job,
    partitions: int | None,
    persist: bool,  # noqa: FBT001
) -> None:
    job.feed(files=1)

    def hide_errors(rows: DataFrame, batch_id: int) -> None:
        rows = rows if partitions is None else rows.repartition(partitions)
        with suppress(Exception):
            job.write(rows.selectExpr("*", "assert_true(id < 3)"), batch_id)

    with pytest.raises(StreamingQueryException, match="failed job"):
        job.run(job.operator(Groups(10), sink=hide_errors, persist=persist))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_sink_may_retry_with_persisted_rows(job: Job) -> None:
    job.feed(files=2)

    def retry(rows: DataFrame, batch_id: int) -> None:
        with suppress(Exception):
            job.write(rows.selectExpr("*", "assert_true(id < 3)"), batch_id)
        job.write(rows, batch_id)

    job.run(job.operator(Groups(10), sink=retry, persist=True))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "reshape",
    [
        pytest.param(lambda rows: rows.repartition(3), id="repartition"),
        pytest.param(lambda rows: rows.coalesce(1), id="coalesce"),
        pytest.param(
            lambda rows: rows.sparkSession.createDataFrame([], rows.schema).union(rows),
            id="union",
        ),
        pytest.param(
            lambda rows: rows.sparkSession.range(5, numPartitions=3).join(rows, "id", "right"),
            id="join",
        ),
    ],
)
def test_sink_may_reshape_its_rows(job: Job, reshape: Callable[[DataFrame], DataFrame]) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=3)
    sink = lambda rows, batch_id: job.write(reshape(rows), batch_id)  # noqa: E731
    job.run(job.operator(Groups(70), sink=sink, parallelism=3))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 3 * 70
    job.feed(files=2)
    job.run(job.operator(Groups(70), sink=sink, parallelism=3))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 3 * 140


# Joins with an empty side, so that Spark skips the other side


@pytest.fixture
def passes(tmp_path: Path) -> Path:
    """Return a directory with a file for each pass over an operator's rows, named 0, 1, …"""
    directory = tmp_path / "passes"
    directory.mkdir()
    return directory


def no_rows(session: SparkSession, passes: Path) -> DataFrame:
    """Return a frame that is empty at run time, once a pass over an operator's rows has begun."""
    return session.range(0, 1, 1, 1).mapInArrow(DropRowsAfter(passes / "0"), "id long")


@pytest.mark.exhaustive
def test_chain_joined_with_no_rows_is_run_once_completely(job: Job, passes: Path) -> None:
    def sink(rows: DataFrame, batch_id: int) -> None:
        none = no_rows(rows.sparkSession, passes).hint("merge")
        job.write(rows.join(none, "id"), batch_id)

    job.feed(files=1)
    first = job.part(AwaitsNextPass(1, passes), "first", parallelism=1)
    job.run(job.chain(first, job.part(Groups(1000), "second"), sink=sink))
    assert job.checkpoint_ids() == [1]
    assert job.ids_written() == []
    assert job.ids_held("second") == job.ids_fed
    assert [path.name for path in passes.iterdir()] == ["0"]


@pytest.mark.exhaustive
def test_pass_still_running_after_the_write_counts(
    spark: SparkSession, job: Job, passes: Path
) -> None:
    def sink(rows: DataFrame, batch_id: int) -> None:
        # The plan follows the settings of the left side, which is another session than the query's.
        none = no_rows(spark, passes).repartition(2, "id").hint("merge")
        job.write(none.join(rows.repartition(2, "id"), "id"), batch_id)

    job.feed(files=1)
    job.run(job.operator(AwaitsNextPass(1000, passes), sink=sink, parallelism=1))
    assert job.checkpoint_ids() == [1]
    assert job.ids_written() == []
    assert job.ids_held() == job.ids_fed
    assert [path.name for path in passes.iterdir()] == ["0"]
