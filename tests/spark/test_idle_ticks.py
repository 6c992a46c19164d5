"""Batches that come for timers, on a real Spark."""

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

from holdfast import scan_state, stateful_query
from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.errors import InvalidRequestError
from holdfast.spark import event_time
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.query import query_run

S = 1_000_000


class Timers:
    """Timers on the driver, in place of those that subtasks keep and report: they fire in the sink.

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
        self.is_over = threading.Event()

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
            self.is_over.set()

    @property
    def due_ms(self) -> int | None:
        """When the timer of processing time fires."""
        if self.processing is None or not self.times:
            return None
        return self.times[min(self.times)].batch_time + self.processing

    def earliest(self, _: object) -> tuple[int | None, int | None]:
        """The earliest timers that are left, in place of what subtasks report."""
        return min(self.event, default=None), self.due_ms


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(query_run, "earliest_timers", timers.earliest)
    return timers


def test_available_now_keeps_to_rate_limits_of_sources(job: Job) -> None:
    job.feed(files=3, rows=2)
    asked, counts = IdleTicks(), []

    def sink(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        counts.append(len(rows.collect()))

    operator = job.operator(Groups(1), sink=sink, idle_ticks=asked)
    job.start(operator, rows=asked.add_to(job.stream()), availableNow=True).awaitTermination()
    assert [count for count in counts if count] == [2, 2, 2]


def test_a_session_whose_sources_lack_available_now_is_told_to_wrap_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_time, "SUPPORTS_AVAILABLE_NOW", False)  # as in PySpark 4.1
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
        assert timers.is_over.wait(HANGS_S)
        query.stop()
    query.awaitTermination()


@pytest.mark.exhaustive
def test_a_timer_of_event_time_fires_behind_the_last_rows(job: Job, timers: Timers) -> None:
    timers.event = {85_000, 200_000}
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}
    assert [timers.times[i].watermark for i in range(2)] == [NO_WATERMARK, 90_000]
    assert job.checkpoint_ids() == [2]  # nothing else was due: the query ended


@pytest.mark.exhaustive
def test_a_timer_fires_though_temporary_files_of_this_process_are_not_where_those_of_spark_are(
    job: Job, timers: Timers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    timers.event = {85_000}
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}


@pytest.mark.usefixtures("state_backend")  # a skipped batch carries the files of the last one over
@pytest.mark.exhaustive
def test_a_batch_in_which_no_timer_is_due_runs_no_job_and_is_a_checkpoint(
    job: Job, timers: Timers
) -> None:
    timers.event = {85_000, 200_000}
    job.feed_at(100 * S)
    job.feed_at(91 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: [], 1: [85_000]}
    assert job.checkpoint_ids() == [3]
    subtasks = job.latest().metadata.operators["operator"].subtasks.values()
    assert [subtask.statistics.rows_in for subtask in subtasks if subtask.statistics] == [0, 0]
    job.feed_at(220 * S)  # and the next batches go on from it
    start(job, timers, availableNow=True)
    assert timers.fired[4] == [200_000]


@pytest.mark.exhaustive
def test_a_run_without_new_rows_looks_whether_timers_are_due(job: Job, timers: Timers) -> None:
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert sorted(timers.times) == [0]
    start(job, timers, availableNow=True)
    assert sorted(timers.times) == [0, 1]
    job.repeat_last_batch()
    start(job, timers, availableNow=True)  # the repeated batch is skipped
    assert sorted(timers.times) == [0, 1, 2]


def test_timers_fire_while_the_sources_are_idle(job: Job, timers: Timers) -> None:
    timers.event, timers.processing = {85_000}, 1_000
    job.feed_at(100 * S)
    start(job, timers, processingTime="0 seconds")
    assert 85_000 in timers.fired[1]
    assert timers.is_over.is_set()
    last = timers.times[max(timers.times)]
    assert last.batch_time >= timers.times[0].batch_time + 1_000


@pytest.mark.exhaustive
def test_a_query_that_runs_what_is_there_awaits_no_timer(job: Job, timers: Timers) -> None:
    timers.processing = 10_000_000
    job.feed_at(100 * S)
    start(job, timers, availableNow=True)
    assert timers.fired == {0: []}


@pytest.mark.exhaustive
def test_rows_of_sparks_own_operators_are_not_lost_in_a_batch_for_timers(
    job: Job, timers: Timers
) -> None:
    counted: dict[int, int] = {}
    idle_ticks = IdleTicks()

    def process(rows: DataFrame, batch_id: int) -> None:
        timers(operator.apply(rows), batch_id)
        counted[batch_id] = rows.count()

    operator = job.part(TimesReporter(), "counts", schema=TimesReporter.schema, persist=True)
    timers.event = {200_000}
    job.feed_at(1 * S, 100 * S)
    rows = idle_ticks.add_to(job.stream().withWatermark("at", "10 seconds"))
    rows = rows.groupBy("at").count().selectExpr("count as id", "at")  # come with the watermark
    query = stateful_query(process, operator, idle_ticks=idle_ticks)
    job.start(query, rows=rows, availableNow=True).awaitTermination()
    assert counted == {0: 0, 1: 1}


def test_a_query_that_could_not_be_asked_is_refused(job: Job) -> None:
    job.feed(files=1, rows=2)
    with pytest.raises(StreamingQueryException, match=r"with the rows that IdleTicks\.add_to"):
        job.run(job.operator(TimesReporter(keeps_late_rows=True), idle_ticks=IdleTicks()))
    with pytest.raises(InvalidRequestError, match="use readStream"):
        IdleTicks().add_to(job.spark.range(1))


def test_a_session_without_a_limit_of_rows_per_batch_is_refused(job: Job) -> None:
    limit = {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}
    with session_with(job.spark, limit):
        with pytest.raises(InvalidRequestError, match=r"maxRecordsPerBatch must be >= 1.*got 0"):
            IdleTicks().add_to(job.stream())
        with pytest.raises(InvalidRequestError, match=r"maxRecordsPerBatch must be >= 1.*got 0"):
            scan_state(job.spark, job.checkpoints)


@pytest.mark.exhaustive
def test_queries_do_not_share_what_asks(
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


def test_the_watermark_and_the_columns_stay_as_they_are(job: Job) -> None:
    rows = job.stream().withWatermark("at", "10 seconds")
    with_ticks = IdleTicks().add_to(rows)
    assert with_ticks.schema == rows.schema
    assert with_ticks.schema["at"].metadata == {"spark.watermarkDelayMs": 10_000}
