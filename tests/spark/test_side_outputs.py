"""Side outputs: rows from the same pass as the main output, and late rows."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from jobs.job import Job, keyed_stream
from jobs.operators import Days
from jobs.processors import TotalsProcessor
from jobs.session import cached_dataset_count, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import holdfast as hf
from holdfast import KeyedProcessFunction, keyed, stateful, stateful_query
from holdfast.backends import FunctionInitializationContext
from holdfast.errors import InvalidRequestError
from holdfast.spark.by_key import KeyedOutput

S = 1_000_000
"""Microseconds of a second."""


class Totals(KeyedProcessFunction):
    """Yields the total of each key, and rejects values above a limit and rows of a key in parts."""

    def open(self, context: FunctionInitializationContext) -> None:
        self.total = context.value_state("total", int)
        self.rejected = context.side_output("rejected")
        self.parts = context.side_output("parts")

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        total = self.total.value() or 0
        for value in rows["value"].to_pylist():
            if value > 4:
                self.rejected.emit({"value": value, "reason": f"{value} > 4"})
                self.rejected.emit((None, "again"))
            else:
                total += value
        self.total.update(total)
        self.parts.emit(rows)
        yield key.key, total


SIDES = {"rejected": "value long, reason string", "parts": "key long, value long, at timestamp"}


def collect(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect()), key=str)


def test_side_rows_come_from_the_same_pass(job: Job) -> None:
    job.feed(files=2, rows=6)
    totals = stateful(
        Totals(),
        uid="totals",
        parallelism=2,
        key="key",
        schema="key long, total long",
        side_outputs=SIDES,
    )
    seen: list[Any] = []

    def process(rows: DataFrame, _: int) -> None:
        main = totals.apply(rows)
        rejected = totals.side_output("rejected")
        assert main.count() == 3
        counted = rejected.groupBy("reason").count().where("reason = 'again'")
        seen.append([collect(each) for each in (main, rejected, counted)])
        assert collect(totals.side_output("parts")) == collect(rows)

    query = stateful_query(process, totals)
    job.start(query, keyed_stream(job), availableNow=True).awaitTermination()
    assert seen[0] == [[(0, 3), (1, 5), (2, 2)], [(5, "5 > 4"), (None, "again")], [("again", 1)]]
    assert seen[1][0] == [(0, 3), (1, 5), (2, 2)]
    assert len(seen[1][1]) == 12
    subtasks = job.latest().metadata.operators["totals"].subtasks.values()
    statistics = [each.statistics for each in subtasks if each.statistics]
    assert sum(each.rows_in for each in statistics) == 6
    assert sum(each.rows_out for each in statistics) == 3 + 12 + 6
    assert cached_dataset_count(job.spark) == 0


def run_with_late_rows(job: Job, output: KeyedOutput) -> list[tuple[Any, ...]]:
    """Run a query of rows that are late by two seconds and more, and return the rows of its output "late"."""
    for moments in ([0, 1 * S], [12 * S], [13 * S], [2 * S, 3 * S, 14 * S], [15 * S]):
        job.feed_at(*moments)
    late: list[tuple[Any, ...]] = []

    def write(rows: DataFrame, _: int) -> None:
        rows.collect()
        late.extend(tuple(row)[:2] for row in output.side_output("late").collect())

    with session_with(job.spark, job.settings):
        writer = output.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(job.spark_checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(late)


@pytest.mark.parametrize(
    "operator",
    [
        "windows of aggregates",
        pytest.param("windows of a function", marks=pytest.mark.exhaustive),
        "a deduplication",
        pytest.param("a processor", marks=pytest.mark.exhaustive),
    ],
)
def test_late_rows_are_a_side_output(operator: str, job: Job) -> None:
    rows = keyed(keyed_stream(job), "key", uid="late", parallelism=2, late_rows=True)
    windowed = rows.window(hf.tumbling_windows(timedelta(seconds=10)), time="at")
    if operator == "windows of aggregates":
        output = windowed.agg(n=hf.count())
    elif operator == "windows of a function":
        output = windowed.apply(lambda *_: [], "key long")
    elif operator == "a deduplication":
        output = rows.deduplicate(time="at")
    else:
        schema = "key long, total long, rows long"
        output = rows.transformWithState(TotalsProcessor(), schema, "update", "eventTime")
    assert run_with_late_rows(job, output) == [(1, 4), (2, 5)]


def test_operators_of_schemas_share_a_query(job: Job) -> None:
    for moments in ([0, 1 * S], [12 * S], [12 * S], [2 * S, 13 * S], [30 * S]):
        job.feed_at(*moments)
    schema = "key long, value long, at timestamp"
    once = keyed(schema, "value", uid="once", event_time="at", late_rows=True)
    first = once.deduplicate(time="at", ttl=timedelta(minutes=1)).operator
    minutes = keyed(schema, ["key"], uid="windows", event_time="at")
    counts = minutes.window(hf.tumbling_windows(timedelta(seconds=10)), time="at")
    windows = counts.agg(n=hf.count()).operator
    seen: dict[str, list[Any]] = {"late": [], "windows": []}

    def process(rows: DataFrame, _: int) -> None:
        passed = first.apply(rows)
        seen["late"] += collect(first.side_output("late").select("value"))
        seen["windows"] += collect(windows.apply(passed).select("key", "n"))

    query = stateful_query(process, first, windows)
    job.start(query, keyed_stream(job), availableNow=True).awaitTermination()
    assert seen == {"late": [(4,)], "windows": [(0, 1), (1, 1)]}


@pytest.mark.parametrize(
    ("name", "message"),
    [("odd", "has side outputs .'rejected', 'parts'., not 'odd'"), ("parts", "call apply")],
)
def test_wrong_reads_of_side_outputs_are_refused(name: str, message: str, job: Job) -> None:
    job.feed(files=1, rows=1)
    options: Any = {"key": "key", "schema": "key long, total long", "side_outputs": SIDES}
    totals = stateful(Totals(), uid="totals", parallelism=1, **options)

    def process(rows: DataFrame, _: int) -> None:
        totals.side_output(name)
        totals.apply(rows)

    with pytest.raises(StreamingQueryException, match=message):
        job.start(
            stateful_query(process, totals), keyed_stream(job), availableNow=True
        ).awaitTermination()


def test_undeclared_side_output_is_refused(job: Job) -> None:
    job.feed(files=1, rows=1)
    totals = job.operator(Totals(), key="key", schema="key long, total long")
    with pytest.raises(
        StreamingQueryException, match=r"has side outputs \[\], not 'rejected'.*side_outputs="
    ):
        job.start(totals, keyed_stream(job), availableNow=True).awaitTermination()


def test_bad_declarations_of_side_outputs_are_refused(job: Job) -> None:
    for arguments, message in (
        ({"side_outputs": {"late"}}, "must map names to schemas"),
        ({"side_outputs": {"a.b": "id long"}}, "names without dots and backticks, got 'a.b'"),
        ({"side_outputs": {"a": 5}}, "side output 'a' of operator 'operator' must be a Spark"),
        ({"late_rows": True}, "no row is late for it"),
        ({"late_rows": 1}, "late_rows must be True or False"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            job.operator(Days(), key="key", **arguments)
    rows = keyed(keyed_stream(job), "key", uid="late", late_rows=True)
    with pytest.raises(InvalidRequestError, match="no row is late for it"):
        rows.agg(n=hf.count())
    windows = rows.window(hf.tumbling_windows(timedelta(seconds=1)), time="at")
    with pytest.raises(InvalidRequestError, match="count distinct values"):
        windows.agg(n=hf.approx_count_distinct("value"))
    with pytest.raises(InvalidRequestError, match="must be a DataFrame, or a schema"):
        keyed(None, "key", uid="late")  # type: ignore[arg-type]
