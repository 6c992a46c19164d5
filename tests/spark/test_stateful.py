"""A query with state: output, checkpoints, restarts."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from contracts.patience import HANGS_S
from jobs.job import Job
from jobs.operators import (
    AlwaysFails,
    FailingListener,
    FailsOnce,
    Groups,
    NotifiedGroups,
    RowNumbers,
    YieldsTables,
    never_ends,
)
from jobs.session import temporary_directory_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from holdfast import progress_of
from holdfast.locations import StoredOperator
from holdfast.locations.handles import OperatorStateHandle
from holdfast.spark.compat import settings_of
from holdfast.spark.query import CLEANER, query_run

pytestmark = pytest.mark.usefixtures("spark")


def test_rows_come_out_in_whole_groups_over_batches_and_restarts(job: Job) -> None:
    job.feed(files=3, rows=100)
    job.run(job.operator(Groups(70)))
    # 150 rows for each of the two subtasks: two whole groups each
    assert len(job.ids_written()) == 2 * 140
    job.feed(files=2, rows=100)
    job.run(job.operator(Groups(70)))  # a new operator, as after a restart of the driver
    assert len(job.ids_written()) == 2 * 210
    assert len(set(job.ids_written())) == 2 * 210


@pytest.mark.exhaustive
def test_rows_are_either_in_the_output_or_in_the_state(job: Job) -> None:
    job.feed(files=3, rows=100)
    job.run(job.operator(Groups(70)))
    last = job.latest()
    held = sum(
        partitions.count
        for subtask in last.metadata.operators["operator"].subtasks.values()
        for handle in subtask.managed_operator
        for partitions in handle.states.values()
    )
    assert held + len(job.ids_written()) == 300


def test_metadata_has_the_batch_and_the_progress_of_spark(job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    last = job.latest()
    progress = progress_of(last.metadata)
    assert last.metadata.checkpoint_id == 2
    assert progress.batch_id == 1
    assert progress.offsets == (job.spark_checkpoint / "offsets" / "1").read_text()
    assert progress.query_id in (job.spark_checkpoint / "metadata").read_text()
    assert last.metadata.job_id == progress.query_id == job.job_directory.name
    operator = last.metadata.operators["operator"]
    assert (operator.parallelism, operator.max_parallelism) == (2, 128)
    assert sum(rows_in(operator)) == 100


def test_batch_repeated_by_spark_is_skipped(job: Job) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    before = job.ids_written()
    seen: list[int] = []
    job.repeat_last_batch()
    job.run(job.operator(Groups(70), sink=lambda _, batch_id: seen.append(batch_id)))
    assert seen == []
    assert job.ids_written() == before
    job.feed(files=1)
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140


def test_state_in_files_is_restored_like_state_in_metadata(job: Job) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    assert len(list(job.job_directory.glob("chk-3/*"))) == 3  # metadata and a file each
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 210


@pytest.mark.exhaustive
@pytest.mark.parametrize("retained", [1, 3])
def test_num_retained_checkpoints_are_kept(job: Job, retained: int) -> None:
    job.settings["spark.holdfast.checkpoint.num-retained"] = str(retained)
    job.feed(files=5, rows=10)
    job.run(job.operator(Groups(70)))
    CLEANER.wait()
    assert job.checkpoint_ids() == [1, 2, 3, 4, 5][-retained:]
    assert len(list(job.job_directory.glob("chk-*"))) == retained


def test_failing_sink_leaves_no_checkpoint_and_loses_no_rows(job: Job) -> None:
    job.feed(files=3)

    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.operator(Groups(70), sink=job.write_and_fail_in(1)))
    assert job.checkpoint_ids() == [1]
    assert list((job.job_directory / "chk-2").iterdir()) == []
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140


@pytest.mark.exhaustive
def test_failing_operator_leaves_no_checkpoint(job: Job) -> None:
    job.feed(files=1)
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.operator(AlwaysFails(70)))
    assert job.checkpoint_ids() == []
    assert list(job.job_directory.glob("chk-*/*")) == []


def test_retried_task_counts_once(job: Job, tmp_path: Path) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=2)
    job.run(job.operator(FailsOnce(30, tmp_path / "failed")))
    assert (tmp_path / "failed").exists()
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 90


def test_function_on_the_driver_is_notified_of_checkpoints(job: Job) -> None:
    job.feed(files=2)
    operator = NotifiedGroups(70)
    job.run(job.operator(operator))
    assert operator.notifications == [("complete", 1), ("complete", 2)]

    job.feed(files=1)
    with pytest.raises(StreamingQueryException):
        job.run(job.operator(operator, sink=job.write_and_fail_in(2)))
    # The restored checkpoint is reported again.
    assert operator.notifications[2:] == [("complete", 2), ("aborted", 3)]


@pytest.mark.exhaustive
def test_operator_can_have_its_own_output_schema(job: Job) -> None:
    job.feed(files=3, rows=50)
    job.run(job.operator(RowNumbers(), schema="id long, nth long, subtask int"))
    tables = [pq.read_table(file) for file in sorted(job.output.glob("batch=*/*.parquet"))]
    numbers = {
        (subtask, nth)
        for table in tables
        for subtask, nth in zip(table["subtask"].to_pylist(), table["nth"].to_pylist(), strict=True)
    }
    assert numbers == {(subtask, nth) for subtask in (0, 1) for nth in range(75)}


@pytest.mark.parametrize("adds_executors", [False, True])
def test_subtasks_share_tasks_unless_spark_adds_executors(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, adds_executors: bool
) -> None:
    def settings_with_allocation(session: SparkSession) -> dict[str, str]:
        # Only the start of an application can set it.
        value = str(adds_executors).lower()
        return settings_of(session) | {"spark.dynamicAllocation.enabled": value}

    monkeypatch.setattr(query_run, "settings_of", settings_with_allocation)
    # With adaptive execution the number would be unknown here.
    job.settings |= {"spark.sql.adaptive.enabled": "false"}
    tasks: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        tasks.append(rows.rdd.getNumPartitions())
        job.write(rows, batch_id)

    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(1), parallelism=9, sink=sink))
    at_once = job.spark.sparkContext.defaultParallelism
    assert tasks == [9 if adds_executors else min(9, at_once)]
    assert job.ids_written() == job.ids_fed
    assert [*job.ids_by_subtask()] == [*range(9)]


@pytest.mark.exhaustive
def test_more_subtasks_than_rows_work(job: Job) -> None:
    job.feed(files=2, rows=3)
    job.run(job.operator(Groups(1), parallelism=8))
    assert job.ids_written() == [0, 1, 2, 3, 4, 5]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "condition",
    [
        pytest.param("id < 0", id="by statistics"),
        pytest.param("id % 7 = 9", id="at run time"),
        pytest.param("false", id="by plan"),
    ],
)
def test_batch_without_rows_keeps_the_state(job: Job, condition: str) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    job.feed(files=1, rows=60)
    operator = job.operator(Groups(70))
    job.run(lambda batch, batch_id: operator(batch.where(condition), batch_id))
    last = job.latest().metadata.operators["operator"]
    assert rows_in(last) == [0, 0]
    job.feed(files=1, rows=200)
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 210


@pytest.mark.exhaustive
def test_memory_storage_checkpoints_without_a_directory(job: Job) -> None:
    job.settings = {"spark.holdfast.checkpoint.storage": "memory"}
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    job.feed(files=2)
    job.run(job.operator(Groups(70)))  # stopped and started again in the same driver
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 210
    assert not job.checkpoints.exists()


@pytest.mark.exhaustive
def test_functions_may_yield_tables(job: Job) -> None:
    job.feed(files=3)
    job.run(job.operator(YieldsTables(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140


@pytest.mark.exhaustive
def test_failing_listener_changes_nothing(job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(FailingListener(70)))
    assert job.checkpoint_ids() == [2]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
    ],
)
def test_state_does_not_depend_on_session_settings(job: Job, key: str, value: str) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    job.settings[key] = value
    job.feed(files=2)
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 210


@pytest.mark.exhaustive
def test_inferred_nullability_may_change_in_later_runs(job: Job) -> None:
    seen: list[Row] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        seen.extend(rows.collect())

    for value in ("id % 5", "nullif(id % 5, 3)", "id % 5"):
        job.feed(files=1)
        rows = job.stream().selectExpr(
            "id",
            f"array({value}) as a",
            f"named_struct('x', {value}, 'y', array(null, null)) as s",
            f"map('k', {value}) as m",
        )
        operator = job.operator(Groups(50), sink=sink)
        job.start(operator, rows, availableNow=True).awaitTermination()
    assert len({row.id for row in seen}) == len(seen)
    assert {value for row in seen for value in row.a} == {None, 0, 1, 2, 3, 4}
    assert all(row.a == [row.s.x] == [row.m["k"]] for row in seen)
    assert all(row.s.y == [None, None] for row in seen)


@pytest.mark.exhaustive
def test_rows_are_spread_evenly_for_any_partitioning(job: Job) -> None:
    job.feed(files=1, rows=16)
    operator = job.operator(Groups(100), parallelism=4)
    job.run(lambda batch, batch_id: operator(batch.repartition(16), batch_id))
    counts = rows_in(job.latest().metadata.operators["operator"])
    assert sum(counts) == 16
    assert max(counts) < 16


@pytest.mark.exhaustive
def test_state_inside_metadata_may_be_large_in_sum(job: Job) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "1m"
    job.feed(files=3, rows=20_000)
    job.run(job.operator(Groups(1_000_000)))
    assert job.latest().metadata.state_bytes > 1_000_000
    assert [file.name for file in job.job_directory.glob("chk-3/*")] == ["_metadata"]
    last = job.latest().metadata.operators["operator"]
    assert sum(handle.states["rows"].count for handle in handles_of(last)) == 60_000


@pytest.mark.exhaustive
def test_large_operator_leaves_no_files(job: Job) -> None:
    function = Groups(70)
    function.model = bytes(2 << 20)  # type: ignore[attr-defined]
    temporary = temporary_directory_of(job.spark)
    before = set(temporary.iterdir())
    job.feed(files=3)
    job.run(job.operator(function))
    assert len(job.ids_written()) == 280
    assert set(temporary.iterdir()) == before


@pytest.mark.exhaustive
def test_one_operator_serves_two_queries_at_once(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    other = Job(spark, tmp_path / "other")
    other.settings = job.settings
    meeting = threading.Barrier(2, timeout=HANGS_S)

    def sink(rows: DataFrame, batch_id: int) -> None:
        meeting.wait()
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        ours = str(query) in (job.spark_checkpoint / "metadata").read_text()
        (job if ours else other).write(rows, batch_id)

    operator = job.operator(Groups(70), sink=sink)
    for query_job in (job, other):
        query_job.feed(files=3)
    # Not started at once: each has the session's settings for a moment.
    queries = [query_job.start(operator, availableNow=True) for query_job in (job, other)]
    for query in queries:
        query.awaitTermination()
    for query_job in (job, other):
        assert len(set(query_job.ids_written())) == len(query_job.ids_written()) == 2 * 140


@pytest.mark.exhaustive
def test_query_stopped_in_a_batch_resumes(job: Job) -> None:
    job.feed(files=4)
    reached = threading.Event()

    def sink(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == 1:
            reached.set()
            rows.sparkSession.range(1).mapInArrow(never_ends, "id long").collect()

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(job.run, job.operator(Groups(70), sink=sink))
        assert reached.wait(HANGS_S)
        for query in job.spark.streams.active:
            query.stop()
        with suppress(StreamingQueryException):
            stopped.result()
    assert job.checkpoint_ids() == [1]
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140


@pytest.mark.exhaustive
def test_two_queries_share_a_checkpoint_directory(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    other = type(job)(spark, tmp_path / "other")
    other.settings = job.settings
    for query_job in (job, other):
        query_job.feed(files=2)
        query_job.run(query_job.operator(Groups(70)))
    assert len(list(job.checkpoints.iterdir())) == 2
    assert len(job.ids_written()) == len(other.ids_written()) == 140


def handles_of(operator: StoredOperator) -> list[OperatorStateHandle]:
    """Return the handles of all subtasks."""
    return [handle for subtask in operator.subtasks.values() for handle in subtask.managed_operator]


def rows_in(operator: StoredOperator) -> list[int]:
    """Return the number of rows of each subtask in the checkpoint's batch."""
    statistics = [subtask.statistics for subtask in operator.subtasks.values()]
    return [measured.rows_in for measured in statistics if measured is not None]
