"""Batches that run for timers, on a real Spark."""

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from contracts.patience import HANGS_S
from jobs.job import Job
from jobs.operators import Groups, TimesReporter
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_holdfast_ticks
from holdfast import scan_state, stateful_query
from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.errors import InvalidRequestError
from holdfast.spark import event_time
from holdfast.spark.compat import IS_PYSPARK_4
from holdfast.spark.event_time import IdleTicks

S = 1_000_000


class Timers:
    """A sink whose timers replace those that subtasks keep and report.

    Attributes:
        event: Timers of event time.
        processing: Timers of processing time, after the first batch, in milliseconds.
        fired: The timers of both that have fired, by batch.
        times: The times of each batch that ran jobs.
    """

    def __init__(self, *event: int, processing: int | None = None) -> None:
        self.event = set(event)
        self.processing = processing
        self.fired: dict[int, list[int]] = {}
        self.times: dict[int, BatchTimes] = {}
        self.all_fired = threading.Event()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        (times,) = {BatchTimes(*row[1:]) for row in rows.collect()}
        self.times[batch_id] = times
        fired = {time for time in self.event if time <= times.watermark}
        self.event -= fired
        if self.due_ms is not None and self.due_ms <= times.batch_time:
            fired.add(self.due_ms)
            self.processing = None
        self.fired[batch_id] = sorted(fired)
        if not self.event and self.processing is None:
            self.all_fired.set()

    @property
    def due_ms(self) -> int | None:
        """Return the time of the timer of processing time, if it is pending."""
        if self.processing is None or not self.times:
            return None
        return self.times[min(self.times)].batch_time + self.processing

    def earliest(self, _: object) -> tuple[int | None, int | None]:
        """Return the earliest pending timers, instead of those that subtasks report."""
        return min(self.event, default=None), self.due_ms


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(event_time, "earliest_timers", timers.earliest)
    return timers


needs_python_sources = pytest.mark.skipif(
    not IS_PYSPARK_4, reason="PySpark 3.5 has no data sources in Python"
)


# Where both can run, `make test` runs one of them.
FILES = pytest.param("files", marks=pytest.mark.exhaustive) if IS_PYSPARK_4 else "files"


@pytest.fixture(params=[pytest.param("python", marks=needs_python_sources), FILES])
def tick_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the source of idle ticks of PySpark 4, and with that of PySpark 3.5."""
    monkeypatch.setattr(event_time, "USES_FILES", request.param == "files")


@pytest.mark.usefixtures("tick_source")
def test_available_now_keeps_to_rate_limits_of_sources(job: Job) -> None:
    job.feed(files=3, rows=2)
    idle_ticks, counts = IdleTicks(), []

    def sink(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        counts.append(len(rows.collect()))

    operator = job.operator(Groups(1), sink=sink, idle_ticks=idle_ticks)
    job.start(operator, rows=idle_ticks.add_to(job.stream()), availableNow=True).awaitTermination()
    assert [count for count in counts if count] == [2, 2, 2]


@needs_python_sources
def test_sources_without_available_now_are_wrapped(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in PySpark 4.1.
    monkeypatch.setattr(pyspark_holdfast_ticks, "SUPPORTS_AVAILABLE_NOW", False)
    session = spark.newSession()
    IdleTicks().add_to(session.readStream.format("rate").load())
    assert session.conf.get(event_time.AVAILABLE_NOW_WRAPPER) == "true"


def start(job: Job, timers: Timers, **trigger: Any) -> None:
    idle_ticks = IdleTicks()
    operator = job.operator(
        TimesReporter(), sink=timers, schema=TimesReporter.schema, key="name", idle_ticks=idle_ticks
    )
    rows = idle_ticks.add_to(job.stream().withWatermark("at", "10 seconds"))
    query = job.start(operator, rows=rows, **trigger)
    if "processingTime" in trigger:
        assert timers.all_fired.wait(HANGS_S)
        query.stop()
    query.awaitTermination()


@pytest.mark.usefixtures("tick_source")
def test_event_time_timer_fires_after_the_last_rows(job: Job, timers: Timers) -> None:
    timers.event = {85_000, 200_000}
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}
    assert [timers.times[i].watermark for i in range(2)] == [NO_WATERMARK, 90_000]
    assert job.checkpoint_ids() == [2]  # no other timer was due: the query ended


@pytest.mark.exhaustive
def test_timer_fires_with_another_temporary_directory_than_spark(
    job: Job, timers: Timers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    timers.event = {85_000}
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}


@pytest.mark.usefixtures(
    "tick_source", "state_backend"
)  # a skipped batch keeps the files of the last one
@pytest.mark.exhaustive
def test_batch_without_due_timers_runs_no_job(job: Job, timers: Timers) -> None:
    timers.event = {85_000, 200_000}
    job.feed_at(100 * S)
    job.feed_at(91 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}
    assert job.checkpoint_ids() == [3]
    subtasks = job.latest().metadata.operators["operator"].subtasks.values()
    assert [subtask.statistics.rows_in for subtask in subtasks if subtask.statistics] == [0, 0]
    job.feed_at(220 * S)  # and the next batches resume from it
    start(job, timers, availableNow=True)
    assert timers.fired[4] == [200_000]


@pytest.mark.usefixtures("tick_source")
@pytest.mark.exhaustive
def test_run_without_new_rows_checks_timers(job: Job, timers: Timers) -> None:
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert sorted(timers.times) == [0]
    start(job, timers, availableNow=True)
    assert sorted(timers.times) == [0, 1]
    job.repeat_last_batch()
    start(job, timers, availableNow=True)  # the repeated batch is skipped
    assert sorted(timers.times) == [0, 1, 2]


@pytest.mark.usefixtures("tick_source")
def test_timers_fire_while_the_sources_are_idle(job: Job, timers: Timers) -> None:
    timers.event, timers.processing = {85_000}, 1_000
    job.feed_at(100 * S)
    start(job, timers, processingTime="0 seconds")
    assert 85_000 in timers.fired[1]
    assert timers.all_fired.is_set()
    last = timers.times[max(timers.times)]
    assert last.batch_time >= timers.times[0].batch_time + 1_000


@pytest.mark.usefixtures("tick_source")
@pytest.mark.exhaustive
def test_available_now_does_not_wait_for_timers(job: Job, timers: Timers) -> None:
    timers.processing = 10_000_000
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: []}


@pytest.mark.exhaustive
def test_rows_of_spark_operators_are_not_lost_in_a_timer_batch(job: Job, timers: Timers) -> None:
    counted: dict[int, int] = {}
    idle_ticks = IdleTicks()

    def process(rows: DataFrame, batch_id: int) -> None:
        timers(operator.apply(rows), batch_id)
        counted[batch_id] = rows.count()

    operator = job.part(TimesReporter(), "counts", schema=TimesReporter.schema, persist=True)
    timers.event = {200_000}
    job.feed_at(1 * S, 100 * S)
    rows = idle_ticks.add_to(job.stream().withWatermark("at", "10 seconds"))
    rows = rows.groupBy("at").count().selectExpr("count as id", "at")  # emitted by the watermark
    query = stateful_query(process, operator, idle_ticks=idle_ticks)
    job.start(query, rows=rows, availableNow=True).awaitTermination()
    assert counted == {0: 0, 1: 1}


@pytest.mark.usefixtures("tick_source")
def test_rows_without_idle_ticks_are_refused(job: Job) -> None:
    job.feed(files=1, rows=2)
    with pytest.raises(StreamingQueryException, match=r"with the rows that IdleTicks\.add_to"):
        job.run(job.operator(TimesReporter(keeps_late_rows=True), idle_ticks=IdleTicks()))
    with pytest.raises(InvalidRequestError, match="use readStream"):
        IdleTicks().add_to(job.spark.range(1))


@needs_python_sources
def test_session_without_a_limit_of_batch_rows_is_refused(job: Job) -> None:
    limit = {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}
    with session_with(job.spark, limit):
        with pytest.raises(InvalidRequestError, match=r"maxRecordsPerBatch must be >= 1.*got 0"):
            IdleTicks().add_to(job.stream())
        with pytest.raises(InvalidRequestError, match=r"maxRecordsPerBatch must be >= 1.*got 0"):
            scan_state(job.spark, job.checkpoints)


@pytest.mark.exhaustive
def test_queries_can_not_share_idle_ticks(
    job: Job, spark: SparkSession, tmp_path: Path, timers: Timers
) -> None:
    idle_ticks = IdleTicks()
    operator = job.operator(
        TimesReporter(), sink=timers, schema=TimesReporter.schema, idle_ticks=idle_ticks
    )
    other = Job(spark, tmp_path / "other")
    for each in (job, other):
        each.feed_at(100 * S)
    rows = idle_ticks.add_to(job.stream().withWatermark("at", "10 seconds"))
    job.start(operator, rows=rows, availableNow=True).awaitTermination()
    query = other.start(operator, rows=rows, availableNow=True)
    with pytest.raises(StreamingQueryException, match="idle_ticks serve one query"):
        query.awaitTermination()
    with pytest.raises(InvalidRequestError, match=r"pass them to stateful_query\(\.\.\.\) instead"):
        stateful_query(timers, job.part(TimesReporter(), "part", idle_ticks=idle_ticks))


@pytest.mark.usefixtures("tick_source")
def test_idle_ticks_keep_watermark_and_columns(job: Job) -> None:
    rows = job.stream().withWatermark("at", "10 seconds").withColumn("one", F.lit(1))
    with_ticks = IdleTicks().add_to(rows)
    assert with_ticks.schema == rows.schema
    assert with_ticks.schema["at"].metadata == {"spark.watermarkDelayMs": 10_000}
