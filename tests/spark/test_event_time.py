"""Times of batches, and late rows."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jobs.job import Job
from jobs.operators import Groups, TimesReporter
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from holdfast import StatefulFunction, progress_of, stateful
from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.errors import InvalidRequestError
from holdfast.spark.event_time import LateRows

S = 1_000_000
"""Microseconds of a second."""


class BadTimeMode(Groups):
    """A function with an unknown time mode."""

    time_mode = "sometimes"  # type: ignore[assignment]


class TimesSink:
    """A sink that keeps the ids and the times of each batch."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.times: dict[int, BatchTimes] = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        collected = rows.collect()
        self.ids[batch_id] = sorted(row.id for row in collected if row.id is not None)
        (self.times[batch_id],) = {BatchTimes(*row[1:]) for row in collected}


def run(
    job: Job,
    sink: Callable[[DataFrame, int], object],
    *,
    keeps_late_rows: bool = False,
    **options: Any,
) -> None:
    """Run all files of the source through an operator in event time."""
    function = TimesReporter(keeps_late_rows=keeps_late_rows)
    operator = job.operator(function, sink=sink, schema=TimesReporter.schema, **options)
    rows = job.stream().withWatermark("at", "10 seconds")
    job.start(operator, rows=rows, availableNow=True).awaitTermination()


def logged_times(job: Job, batch_id: int) -> tuple[int, int]:
    """Return the time and the watermark of a batch in Spark's log."""
    _, settings, *_ = (job.spark_checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    logged = json.loads(settings)
    return logged["batchTimestampMs"], logged["batchWatermarkMs"]


def rows_late(job: Job) -> int:
    """Return the number of rows that the last checkpoint's batch dropped."""
    subtasks = job.latest().metadata.operators["operator"].subtasks.values()
    return sum(subtask.statistics.rows_late for subtask in subtasks if subtask.statistics)


@pytest.mark.parametrize(
    "routing",
    [{}, {"key": "name"}, {"parallelism": 1, "forward": True}],
    ids=["evenly", "by key", "not at all"],
)
def test_rows_are_late_by_the_previous_watermark_to_the_microsecond(
    job: Job, routing: dict[str, Any]
) -> None:
    seen = TimesSink()
    job.feed_at(100 * S, 95 * S, 1 * S)
    job.feed_at(50 * S, 90 * S, 91 * S)  # the first batch had no watermark, this one has 90 s
    job.feed_at(90 * S, 90 * S + 100, 89 * S, None)
    run(job, seen, **routing)
    assert seen.ids == {0: [0, 1, 2], 1: [3, 4, 5], 2: [7, 9]}
    watermarks = [NO_WATERMARK, NO_WATERMARK, 90_000, 90_000]
    for batch_id in range(3):
        planned_ms, _ = logged_times(job, batch_id)
        late_watermark, watermark = watermarks[batch_id : batch_id + 2]
        assert seen.times[batch_id] == BatchTimes(planned_ms, watermark, late_watermark)
    assert rows_late(job) == 2


def test_function_can_keep_late_rows(job: Job) -> None:
    seen = TimesSink()
    job.feed_at(100 * S)
    job.feed_at(200 * S)
    job.feed_at(1 * S)
    run(job, seen, keeps_late_rows=True)
    assert seen.ids == {0: [0], 1: [1], 2: [2]}
    assert rows_late(job) == 0


@pytest.mark.exhaustive
def test_repeated_batch_has_its_times_and_late_rows(job: Job) -> None:
    seen = TimesSink()

    def take_and_fail(rows: DataFrame, batch_id: int) -> None:
        seen(rows, batch_id)
        if batch_id == 2:
            raise RuntimeError("as planned")

    job.feed_at(100 * S)
    job.feed_at(200 * S)
    job.feed_at(90 * S, 91 * S)
    with pytest.raises(StreamingQueryException, match="as planned"):
        run(job, take_and_fail)
    before = seen.ids[2], seen.times[2]
    assert before[0] == [3]
    del seen.ids[2], seen.times[2]
    run(job, seen)
    assert (seen.ids[2], seen.times[2]) == before


@pytest.mark.exhaustive
def test_watermark_of_a_savepoint_holds_for_a_new_location(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    job.feed_at(100 * S)
    job.feed_at(101 * S)
    run(job, TimesSink())
    assert progress_of(job.latest().metadata).watermark == 90_000
    seen = TimesSink()
    after = Job(spark, tmp_path / "after")
    after.settings |= {
        "spark.holdfast.savepoint.path": job.latest().location.external_pointer,
        # The function has no state.
        "spark.holdfast.checkpoint.allow-non-restored-state": "true",
    }
    after.feed_at(50 * S, 91 * S)
    after.feed_at(51 * S, 92 * S)
    run(after, seen)
    assert seen.ids == {0: [1], 1: [3]}
    times = [(seen.times[i].watermark, seen.times[i].late_watermark) for i in range(2)]
    assert times == [(90_000, 90_000), (90_000, 90_000)]
    assert logged_times(after, 1)[1] == 81_000


def late(rows: DataFrame, event_time: str | None, late_watermark: int) -> list[Row]:
    return rows.where(
        LateRows.of(rows, event_time, uid="operator").before(late_watermark)
    ).collect()


def test_window_is_late_by_its_end_in_any_time_zone(spark: SparkSession) -> None:
    moments = [datetime.fromtimestamp(second, UTC) for second in (5, 15, 25)]
    rows = spark.createDataFrame([(moment,) for moment in [*moments, None]], "at timestamp")
    windows = rows.select(F.window("at", "10 seconds").alias("w`"), "at")
    assert [row.at.timestamp() for row in late(windows, "w`", 20_000)] == [5, 15]
    assert [row.at.timestamp() for row in late(windows, "w`", 19_999)] == [5]
    assert [row.at.timestamp() for row in late(rows, "at", 15_000)] == [5, 15]
    assert late(rows, "at", 0) == []


def test_rows_before_1970_are_late_as_in_spark(spark: SparkSession) -> None:
    rows = spark.sql("select timestamp_micros(-1) as at union all select timestamp_micros(1)")
    assert len(late(rows, "at", 0)) == 1


SCHEMA = "id long, at timestamp, day date, local timestamp_ntz, name string, window struct<end: timestamp_ntz>"


@pytest.mark.parametrize(
    ("columns", "event_time", "message"),
    [
        (["id"], None, "no column of its rows has a watermark"),
        (["at", "other"], None, r"several columns .*\['at', 'other'\]; name"),
        (["id", "at"], "when", r"have no column 'when'.*\['id', 'at'\]"),
        (["day"], "day", "'day', the event time .* is of type date; it must be a timestamp"),
        (["local"], "local", "'local', .* is of type timestamp_ntz; it must be a timestamp"),
        (["window"], "window", "'window', .* is of type struct<end:timestamp_ntz>; it must"),
        (["name"], "name", "'name', .* is of type string"),
    ],
)
def test_bad_event_time_column_is_refused(
    spark: SparkSession, columns: list[str], event_time: str | None, message: str
) -> None:
    delay = {"spark.watermarkDelayMs": 10_000}
    rows = spark.createDataFrame([], SCHEMA).withColumns(
        {name: F.col("at").alias(name, metadata=delay) for name in ("at", "other")}
    )
    with pytest.raises(ValueError, match=message):
        LateRows.of(rows.select(*columns), event_time, uid="operator")


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (TimesReporter(keeps_late_rows=True), {"event_time": "at"}, "remove event_time"),
        (Groups(1), {"event_time": "at"}, "remove event_time"),
        (TimesReporter(), {"event_time": ""}, "must be the name of a column"),
        (BadTimeMode(1), {}, "time_mode .* must be one of .*, got 'sometimes'"),
    ],
)
def test_bad_time_options_of_an_operator_are_refused(
    function: StatefulFunction, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        stateful(function, uid="operator", parallelism=1, **options)
