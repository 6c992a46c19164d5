"""Streams by key: `keyed` with processors, functions, aggregates and windows."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from jobs.job import Job, keyed_stream, run_keyed
from jobs.operators import Days
from jobs.processors import TotalsProcessor
from jobs.session import session_with
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast import keyed, stateful_query
from holdfast.errors import InvalidRequestError
from holdfast.spark.by_key import KeyedRows

S = 1_000_000
"""Microseconds of a second."""


def by_key(job: Job, parallelism: int = 2) -> KeyedRows:
    return keyed(keyed_stream(job), "key", uid="sums", parallelism=parallelism)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("state_backend")
def test_processor_resumes_with_its_state_after_a_restart(job: Job) -> None:
    results = []
    for _ in range(2):
        job.feed(files=1, rows=6)
        grouped = by_key(job)
        output = grouped.transformWithState(
            TotalsProcessor(), "key long, total long, rows long", "Update", "None"
        )
        results.append(run_keyed(job, output))
    assert results == [
        {0: [(0, 3, 2), (1, 5, 2), (2, 7, 2)]},
        {1: [(0, 18, 4), (1, 22, 4), (2, 26, 4)]},
    ]


@pytest.mark.usefixtures("state_backend")
@pytest.mark.parametrize(("adaptive", "parallelism"), [("true", 2), ("false", 2), ("false", 5)])
def test_aggregates_of_changed_keys_cover_all_rows_so_far(
    job: Job, adaptive: str, parallelism: int
) -> None:
    job.settings |= {"spark.sql.adaptive.enabled": adaptive}
    job.feed(files=1, rows=6)
    job.feed(files=1, rows=1)
    totals = by_key(job, parallelism).agg(
        n=hf.count(), total=hf.sum("value"), mean=hf.avg("value"), last=hf.last("value", by="at")
    )
    assert run_keyed(job, totals) == {
        0: [(0, 2, 3, 1.5, 3), (1, 2, 5, 2.5, 4), (2, 2, 7, 3.5, 5)],
        1: [(0, 3, 9, 3.0, 6)],
    }


@pytest.mark.parametrize(
    "by", [pytest.param("aggregates", marks=pytest.mark.exhaustive), "a function"]
)
def test_windows_are_emitted_when_the_watermark_passes_them(by: str, job: Job) -> None:
    job.feed_at(0 * S, 1 * S, 2 * S, 3 * S)
    job.feed_at(12 * S)
    windowed = by_key(job).window(hf.tumbling_windows(timedelta(seconds=10)), time="at")
    if by == "aggregates":
        output = windowed.agg(n=hf.count())
    else:
        output = windowed.apply(
            lambda key, window, rows: [
                {"key": key[0], "start": window.start, "end": window.end, "n": rows.num_rows}
            ],
            "key long, start timestamp, end timestamp, n long",
        )
    batches = run_keyed(job, output)
    rows = [(key, start.timestamp(), end.timestamp(), n) for key, start, end, n in batches.pop(2)]
    assert rows == [(0, 0, 10, 2), (1, 0, 10, 1), (2, 0, 10, 1)]
    assert set(map(tuple, batches.values())) == {()}


@pytest.mark.parametrize(
    "by", ["aggregates", pytest.param("a function", marks=pytest.mark.exhaustive)]
)
def test_rows_late_for_their_windows_are_counted(by: str, job: Job) -> None:
    for moments in ([0, 1 * S], [12 * S], [12 * S], [2 * S, 3 * S, 13 * S]):
        job.feed_at(*moments)
    windowed = by_key(job).window(hf.tumbling_windows(timedelta(seconds=10)), time="at")
    if by == "aggregates":
        operator = windowed.agg(n=hf.count()).operator
    else:
        operator = windowed.apply(lambda *_: [], "key long").operator

    def process(batch: DataFrame, _: int) -> None:
        operator.apply(batch).collect()

    # Without batches for timers, whose statistics would be the last.
    query = stateful_query(process, operator)
    job.start(query, keyed_stream(job), availableNow=True).awaitTermination()
    subtasks = job.latest().metadata.operators["sums"].subtasks.values()
    assert sum(each.statistics.rows_late for each in subtasks if each.statistics) == 2


def test_keyed_process_function_is_run(job: Job) -> None:
    job.feed(files=2, rows=1)
    rows = job.stream().select(F.lit("a").alias("name"), F.date_trunc("day", "at").alias("day"))
    counted = keyed(rows, ["name", "day"], uid="days", parallelism=2)
    batches = run_keyed(job, counted.process(Days(), "name string, day timestamp, n long"))
    assert [row[2] for rows in batches.values() for row in rows] == [1, 2]


def test_operators_of_two_outputs_share_a_query(job: Job) -> None:
    job.feed(files=1, rows=6)
    rows = keyed_stream(job)
    counts = keyed(rows, "key", uid="counts", parallelism=2).agg(n=hf.count()).operator
    sums = keyed(rows, "key", uid="sums", parallelism=2).agg(s=hf.sum("value")).operator
    seen: dict[str, list[tuple[Any, ...]]] = {}

    def process(batch: DataFrame, _: int) -> None:
        for name, operator in (("counts", counts), ("sums", sums)):
            seen[name] = sorted(tuple(row) for row in operator.apply(batch).collect())

    job.start(stateful_query(process, counts, sums), rows, availableNow=True).awaitTermination()
    assert seen == {"counts": [(0, 2), (1, 2), (2, 2)], "sums": [(0, 3), (1, 5), (2, 7)]}


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.format("parquet"),
        lambda writer: writer.foreach(print),
        lambda writer: writer.toTable("table"),
        lambda writer: writer.start(),
        lambda writer: writer.foreachBatch(print).start("path"),
    ],
    ids=["a format", "foreach", "a table", "nothing", "a path"],
)
def test_keyed_stream_is_written_only_by_foreach_batch(
    write: Callable[[Any], object], job: Job
) -> None:
    writer = by_key(job).agg(n=hf.count()).writeStream
    with pytest.raises(InvalidRequestError, match="needs foreachBatch"):
        write(writer)


def test_wrong_setting_of_the_session_is_refused_at_start(job: Job) -> None:
    writer = by_key(job).agg(n=hf.count()).writeStream.foreachBatch(print)
    with session_with(job.spark, {"spark.holdfast.checkpoint.num-retained": "0"}):
        with pytest.raises(
            InvalidRequestError, match=r"num-retained' must be a number, at least 1"
        ):
            writer.start()


@pytest.mark.exhaustive
def test_persisted_rows_are_read_in_several_actions(job: Job) -> None:
    job.feed(files=1, rows=6)
    seen = []

    def write(rows: DataFrame, _: int) -> None:
        seen.append((rows.count(), [tuple(row) for row in rows.orderBy("key").collect()]))

    rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=2, persist=True)
    with session_with(job.spark, job.settings):
        writer = rows.agg(n=hf.count()).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(job.spark_checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert seen == [(3, [(0, 2), (1, 2), (2, 2)])]


def test_rows_of_small_batches_are_shuffled_once_for_aggregates(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.feed(files=2, rows=6)
    plans: list[str] = []

    def write(rows: DataFrame, _: int) -> None:
        rows.explain()
        plans.append(capsys.readouterr().out)

    settings = job.settings | {"spark.sql.adaptive.enabled": "false"}
    with session_with(job.spark, settings):
        writer = by_key(job).agg(n=hf.count()).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(job.spark_checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert all("MapInArrow" in plan and "AdaptiveSparkPlan" not in plan for plan in plans)
    # The number of rows of the first batch is unknown.
    assert [plan.count("Exchange ") for plan in plans] == [2, 1]


def test_batch_rows_have_no_stream_writer(spark: SparkSession) -> None:
    rows = spark.range(3).withColumnRenamed("id", "key")
    output = keyed(rows, "key", uid="sums", parallelism=2).agg(n=hf.count())
    with pytest.raises(AnalysisException, match="WRITE_STREAM_NOT_ALLOWED"):
        _ = output.writeStream


@pytest.mark.parametrize("key", [(), "other", ("key", "other")])
def test_unknown_key_columns_are_refused(key: Any, job: Job) -> None:
    with pytest.raises(InvalidRequestError, match="key"):
        keyed(keyed_stream(job), key, uid="sums", parallelism=2)


def test_key_expression_is_refused(job: Job) -> None:
    rows = keyed_stream(job)
    with pytest.raises(InvalidRequestError, match=r"must be names of columns, .* withColumn"):
        keyed(rows, rows["key"] + 1, uid="sums", parallelism=2)  # type: ignore[arg-type]


def test_arguments_of_another_type_are_refused_on_the_driver(job: Job) -> None:
    rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=2)
    with pytest.raises(
        InvalidRequestError, match="TotalsProcessor is a class; pass an object of it"
    ):
        rows.transformWithState(TotalsProcessor, "key long", "Update", "None")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"is a StatefulProcessor; run it by keyed"):
        rows.process(TotalsProcessor(), "key long")  # type: ignore[arg-type]
    for aggregate in (hf.sum("at"), hf.avg("at")):
        with pytest.raises(InvalidRequestError, match=r"'at': it has type timestamp.* cast it"):
            rows.agg(n=aggregate)
    with pytest.raises(InvalidRequestError, match=r"rows have no columns \['x'\]"):
        rows.agg(n=hf.max("x"))
    with pytest.raises(
        InvalidRequestError, match=r"'n' is a Column; make it with the functions of"
    ):
        rows.agg(n=F.count("*"))  # type: ignore[arg-type]
    by_minute = rows.window(hf.tumbling_windows(timedelta(minutes=1)), time="at")
    with pytest.raises(
        InvalidRequestError, match=r"'n' is a Column; make it with the functions of"
    ):
        by_minute.agg(n=F.count("*"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"would have the names \['window_start'\]"):
        by_minute.agg(window_start=hf.count())
    for taker in (rows, by_minute):
        with pytest.raises(InvalidRequestError, match=r"has no name; name its column, such as"):
            taker.agg(hf.count())
    for wrong in ("1 minute", F.window("at", "1 minute")):
        with pytest.raises(InvalidRequestError, match=r"must be made by holdfast.spark.windows"):
            rows.window(wrong, time="at").agg(n=hf.count())  # type: ignore[arg-type]


def test_windows_need_a_time_column_and_warn_without_a_watermark(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    minute = hf.tumbling_windows(timedelta(minutes=1))
    rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=2)
    for time, text in (("value", "must be a timestamp"), ("other", "no column 'other'")):
        with pytest.raises(InvalidRequestError, match=text):
            rows.window(minute, time=time)
    rows.window(minute, time="at")
    without = keyed(job.stream(), "id", uid="sums", parallelism=2)
    without.window(minute, time="at", emit="update")
    assert not caplog.records
    without.window(minute, time="at")
    assert "no column of its rows has a watermark" in caplog.text


def test_event_time_needs_a_watermark(job: Job) -> None:
    rows = keyed(job.stream(), "id", uid="sums", parallelism=2)
    with pytest.raises(InvalidRequestError, match="call withWatermark before writeStream"):
        rows.transformWithState(TotalsProcessor(), "key long", "Update", "EventTime")
