"""The same jobs on a Spark Connect server."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import side_outputs
from jobs.connect import ConnectJob, Gate, Marks
from jobs.operators import FailsOnce, Groups, RowNumbers, TimesReporter
from jobs.processors import InitializedTotals
from jobs.pyspark_versions import VERSION
from jobs.session import ROCKSDB, session_with
from jobs.totals_by_key import ROWS, check_totals, run, totals
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from servers.connect import ConnectServer

from holdfast import (
    application_id,
    keyed,
    progress_of,
    roll_back,
    scan_state,
    spark_initial_state,
    stateful,
    stateful_query,
    write_savepoint,
)
from holdfast.backends import NO_WATERMARK
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.spark import event_time
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.processors import session_settings
from holdfast.spark.query import StatefulQuery
from holdfast.spark_progress import SparkProgress

HAS_SESSIONS_OF_QUERIES = VERSION >= (4, 3)


@pytest.fixture
def job(connect: ConnectServer, tmp_path: Path) -> Iterator[ConnectJob]:
    if not HAS_SESSIONS_OF_QUERIES:
        pytest.skip("batches on Spark Connect have the settings of their query since PySpark 4.3")
    job = ConnectJob(connect, tmp_path / "job")
    yield job
    job.spark.stop()


def progress_in(job: ConnectJob) -> SparkProgress:
    """Return Spark's progress in the job's last checkpoint."""
    storage = FileSystemCheckpointStorage(f"file://{job.checkpoints}")
    last = load_latest_checkpoint(storage.create_checkpoint_storage(job.job_directory.name))
    assert last is not None
    return progress_of(last.metadata)


def test_rows_are_written_once_and_a_repeated_batch_is_skipped(job: ConnectJob) -> None:
    job.settings["spark.holdfast.state.inline-threshold"] = "0"
    job.feed(files=3)
    job.run(job.operator(Groups(70)))
    assert job.ids_written() == sorted(set(job.ids_written()))
    assert len(job.ids_written()) == 2 * 140  # 150 rows a subtask
    # A setting of the client's session: state is in files, not in metadata.
    assert len(list((job.job_directory / "chk-3").iterdir())) > 1
    job.feed(files=1)
    job.repeat_last_batch()
    seen = {file: file.stat().st_ino for file in job.output.glob("batch=2/*.parquet")}
    job.run(job.operator(Groups(70)))
    assert {file: file.stat().st_ino for file in job.output.glob("batch=2/*.parquet")} == seen
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140  # 200 rows a subtask
    assert job.checkpoint_ids() == [4]
    progress = progress_in(job)
    assert progress.batch_id == 3
    assert progress.checkpoint_location == f"file://{job.spark_checkpoint}"
    assert progress.offsets == (job.spark_checkpoint / "offsets" / "3").read_text()


@pytest.mark.skipif(HAS_SESSIONS_OF_QUERIES, reason="refused before PySpark 4.3")
def test_older_servers_are_refused(connect: ConnectServer, tmp_path: Path) -> None:
    job = ConnectJob(connect, tmp_path / "job")
    job.feed(files=1)
    with pytest.raises(PySparkException, match=r"need PySpark 4\.3 or later on the server"):
        job.run(job.operator(Groups(1)))
    job.spark.stop()


def test_sink_sees_the_application_id_assigned_by_a_rollback(
    job: ConnectJob, tmp_path: Path
) -> None:
    def sink(rows: DataFrame, batch_id: int) -> None:
        (tmp_path / f"{batch_id}").write_text(f"{application_id()} {rows.count()}")

    job.settings["spark.holdfast.checkpoint.num-retained"] = "2"
    job.feed(files=1)
    job.run(job.operator(Groups(1), sink=sink))
    job.feed(files=1)
    job.run(job.operator(Groups(1), sink=sink))
    assert roll_back(f"file://{job.spark_checkpoint}", checkpoint=1) == 0
    job.run(job.operator(Groups(1), sink=sink))
    first, second = ((tmp_path / name).read_text().split()[0] for name in "01")
    assert (first, second) == (
        progress_in(job).query_id,
        application_id(f"file://{job.spark_checkpoint}"),
    )
    assert first != second


def test_two_queries_of_a_session_are_distinguished(
    connect: ConnectServer, job: ConnectJob, tmp_path: Path
) -> None:
    job.location = f"{tmp_path}/url, a=b, {{c}} d%20"  # characters that need quoting
    gate = Gate.create(tmp_path)

    def waits(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        gate.pass_through()

    other = ConnectJob(connect, tmp_path / "other")
    other.spark.stop()
    other.spark = job.spark
    other.location, other.name = None, "named"
    other.settings["spark.sql.streaming.checkpointLocation"] = str(tmp_path / "of all")
    job.feed(files=1)
    other.feed(files=2)
    first = job.start(job.operator(Groups(1), sink=waits))
    second = other.start(other.operator(Groups(1)))
    second.awaitTermination()
    assert first.isActive
    gate.await_sink()
    first.awaitTermination()
    assert job.ids_written() == list(range(100))
    assert other.ids_written() == list(range(200))
    for query, its, location in (
        (first, job, job.location),
        (second, other, tmp_path / "of all" / "named"),
    ):
        progress = progress_in(its)
        assert (progress.query_id, progress.run_id) == (query.id, query.runId)
        assert progress.checkpoint_location == f"file://{location}"


def test_chain_of_keyed_and_broadcast_operators_is_read_repeatedly(
    job: ConnectJob,
) -> None:
    def marks(session: SparkSession, batch_id: int) -> DataFrame:
        return session.range(10 * batch_id, 10 * batch_id + 2).withColumnRenamed("id", "mark")

    def query() -> StatefulQuery:
        counts = stateful(
            RowNumbers(),
            uid="counts",
            parallelism=2,
            key="name",
            schema="id long, nth long, subtask int",
        )
        marked = stateful(
            Marks(),
            uid="marks",
            parallelism=3,
            broadcast=marks,
            schema="id long, nth long, subtask int, mark long",
        )

        def process(rows: DataFrame, batch_id: int) -> None:
            named = rows.selectExpr("id", "concat('name ', id % 10) as name")
            counted = counts.apply(named)
            assert counted.count() == counted.orderBy("nth").count() == 100
            job.write(marked.apply(counted).orderBy("id"), batch_id)

        query: StatefulQuery = stateful_query(process, counts, marked)
        return query

    job.feed(files=2)
    job.run(query())
    job.feed(files=1)
    job.run(query())
    files = sorted(job.output.glob("batch=*/*.parquet"))
    rows = [(file.parent.name, row) for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(row["id"] for _, row in rows) == list(range(300))
    assert {name: row["mark"] for name, row in rows} == {"batch=0": 1, "batch=1": 11, "batch=2": 21}
    subtasks = {(row["id"] % 10, row["subtask"]) for _, row in rows}
    assert len(subtasks) == 10  # each name is routed to one subtask
    for subtask in (0, 1):
        numbers = sorted(row["nth"] for _, row in rows if row["subtask"] == subtask)
        assert numbers == list(range(len(numbers)))


def test_deduplicated_rows_are_split_into_two_outputs(job: ConnectJob) -> None:
    job.feed(files=2)
    side_outputs.run(job)
    assert side_outputs.ids_of(job, "even") == list(range(0, 200, 2))
    assert side_outputs.ids_of(job, "odd") == list(range(1, 200, 2))


def test_retried_task_counts_once(job: ConnectJob, tmp_path: Path) -> None:
    job.feed(files=2)
    job.run(job.operator(FailsOnce(7, tmp_path / "failed")))
    assert (tmp_path / "failed").exists()
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 98
    assert job.checkpoint_ids() == [2]


def test_failing_sink_leaves_no_checkpoint_and_next_run_resumes(job: ConnectJob) -> None:
    def fails(rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            raise RuntimeError("as planned")
        job.write(rows, batch_id)

    job.feed(files=3)
    with pytest.raises(PySparkException, match="as planned"):
        job.run(job.operator(Groups(70), sink=fails))
    assert job.checkpoint_ids() == [1]
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140
    assert job.checkpoint_ids() == [3]


def test_killed_batch_process_loses_and_duplicates_nothing(
    connect: ConnectServer, job: ConnectJob, tmp_path: Path
) -> None:
    gate = Gate.create(tmp_path)

    def is_killed(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == 1:
            gate.pass_through()
            gate.pass_through()

    job.feed(files=3)
    query = job.start(job.operator(Groups(70), sink=is_killed))
    gate.await_sink()
    (process,) = connect.batch_processes()
    process.kill()
    with pytest.raises(PySparkException):
        query.awaitTermination()
    assert job.checkpoint_ids() == [1]
    job.run(job.operator(Groups(70)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 2 * 140
    assert job.checkpoint_ids() == [3]


def test_query_stopped_in_mid_batch_repeats_its_batch(
    connect: ConnectServer, job: ConnectJob, tmp_path: Path
) -> None:
    gate = Gate.create(tmp_path)

    def never_returns(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        gate.pass_through()
        gate.pass_through()

    job.feed(files=1)
    query = job.start(job.operator(Groups(70), sink=never_returns))
    gate.await_sink()
    before = connect.log.stat().st_size
    query.stop()
    assert query.exception() is None
    logged = connect.log.read_bytes()[before:].decode()
    alarming = ("StackOverflowError", "Traceback", "terminated with error")
    assert [word for word in alarming if word in logged] == []
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(70)))
    assert job.checkpoint_ids() == [1]


def test_unsupported_requests_are_refused_with_a_way_out(job: ConnectJob) -> None:
    job.feed(files=1)

    def large(session: SparkSession, _batch_id: int) -> DataFrame:
        return session.range(3_000_000).withColumnRenamed("id", "mark")

    with pytest.raises(PySparkException, match=r"state\.inline-threshold lower"):
        job.run(job.operator(Marks(), broadcast=large))
    job.location = None
    with pytest.raises(PySparkException, match="option checkpointLocation"):
        job.run(job.operator(Groups(70)))
    job.settings = {"spark.holdfast.checkpoint.storage": "memory"}
    job.location = str(job.spark_checkpoint)
    with pytest.raises(PySparkException, match=r"set spark\.holdfast\.checkpoint\.dir"):
        job.run(job.operator(Groups(70)))


def test_state_is_read_and_written_as_frames(job: ConnectJob, tmp_path: Path) -> None:
    written = write_savepoint(
        f"file://{tmp_path}/written",
        {("operator", "rows"): job.spark.range(5).withColumnRenamed("id", "value")},
    )
    frame = scan_state(job.spark, written, "operator", "rows")
    assert sorted(row.value for row in frame.collect()) == list(range(5))
    job.settings["spark.holdfast.savepoint.path"] = written
    job.feed(files=1, rows=10)
    job.run(job.operator(RowNumbers(), schema="id long, nth long, subtask int"))
    (newest,) = job.job_directory.glob("chk-*")
    held = scan_state(job.spark, f"file://{newest}", "operator")
    assert sorted(row.value for row in held.collect()) == sorted([*range(5), *range(10)])


def test_event_time_uses_spark_watermark_and_timers_need_no_rows(job: ConnectJob) -> None:
    def write(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        timer = None if batch_id else 85_000
        # In the server's process of the query, where subtasks report no timers.
        vars(event_time)["earliest_timers"] = lambda _reports: (timer, None)

    def run() -> None:
        idle_ticks = IdleTicks()
        rows = idle_ticks.add_to(job.stream().withWatermark("at", "10 seconds"))
        function = TimesReporter()
        operator = job.operator(
            function, sink=write, schema=TimesReporter.schema, key="name", idle_ticks=idle_ticks
        )
        job.start(operator, rows=rows, availableNow=True).awaitTermination()

    def batch(batch_id: int) -> pa.Table:
        return pq.ParquetDataset(job.output / f"batch={batch_id}").read()

    job.feed_at(100_000_000)
    run()
    assert [set(batch(i)["watermark"].to_pylist()) for i in range(2)] == [{NO_WATERMARK}, {90_000}]
    assert batch(1)["id"].to_pylist() == [None, None]  # each subtask's own row
    job.feed_at(90_000_000, 90_000_001)
    run()
    assert sorted(filter(None, batch(2)["id"].to_pylist())) == [2]
    assert set(batch(2)["late_watermark"].to_pylist()) == {90_000}
    assert job.checkpoint_ids() == [3]


def test_processor_with_ddl_schemas_moves_from_and_to_spark(
    job: ConnectJob,
) -> None:
    schema = "key long, total long, rows long"

    def run() -> None:
        rows = job.stream().selectExpr("id % 3 AS key", "id AS value", "at")
        there = [(0, 1000, 1), (7, 5, 1), (None, 6, 2)]
        states = job.spark.createDataFrame(there, "key long, amount long, n long")
        output = keyed(rows, "key", uid="totals", parallelism=2).transformWithState(
            InitializedTotals(),
            schema,
            "Update",
            "ProcessingTime",
            initialState=states.groupBy("key"),
        )
        operator = output.operator
        query = stateful_query(
            lambda rows, batch_id: job.write(operator.apply(rows), batch_id), operator
        )
        job.start(query, rows=rows, availableNow=True).awaitTermination()

    def rows_of(batch_id: int) -> set[tuple[object, ...]]:
        rows = pq.ParquetDataset(job.output / f"batch={batch_id}").read().to_pylist()
        return {(row["key"], row["total"], row["rows"]) for row in rows}

    job.feed(files=1, rows=6)  # 0 to 5
    run()
    assert rows_of(0) == {(0, 1003, 3), (1, 5, 2), (2, 7, 2), (7, 5, 1), (None, 6, 2)}
    job.feed(files=1, rows=1)
    run()
    assert rows_of(1) == {(0, 1009, 4)}

    (newest,) = job.job_directory.glob("chk-*")
    back = spark_initial_state(job.spark, f"file://{newest}", InitializedTotals())
    rows = job.spark.createDataFrame([(0, 1), (8, 1), (None, 1)], "key long, value long")
    totals = job.spark.createDataFrame([], schema).schema  # Spark's own takes no text here
    with session_with(job.spark, ROCKSDB):
        by_spark = rows.groupBy("key").transformWithState(
            back.processor, totals, "Update", back.time_mode, initialState=back.rows
        )
        results = {tuple(row) for row in by_spark.collect()}
    assert results == {(0, 1010, 5), (8, 1, 1), (None, 7, 3)}


def test_processors_get_times_in_the_time_zone_of_the_session(job: ConnectJob) -> None:
    assert session_settings(job.spark).time_zone == "Europe/Berlin"
    job.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert session_settings(job.spark).time_zone == "Asia/Tokyo"


def test_totals_by_key_continue_with_another_parallelism(job: ConnectJob) -> None:
    job.feed(files=2, rows=ROWS)
    run(job, totals(job))
    job.feed(files=1, rows=ROWS)
    run(job, totals(job, parallelism=3))
    check_totals(job)
