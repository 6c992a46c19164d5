"""Initial state of processors: the argument of `keyed(...).transformWithState`, as in Spark."""

from collections.abc import Callable
from typing import Any

import pytest
from jobs.job import Job, keyed_stream, run_keyed
from jobs.processors import InitializedTotals, TotalsProcessor
from pyspark.sql import DataFrame, SparkSession

from holdfast import keyed
from holdfast.errors import InvalidRequestError

OUT = "key long, total long, rows long"
STATES = [(0, 100, 1), (0, 200, 1), (7, 5, 1)]


@pytest.fixture
def states(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(STATES, "key long, amount long, n long")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda states: states, id="rows"),
        pytest.param(lambda states: states.groupBy("key"), id="grouped rows"),
        pytest.param(
            lambda states: states.withColumnRenamed("key", "other").groupBy("other"),
            marks=pytest.mark.exhaustive,
            id="grouped by another name",
        ),
    ],
)
def test_initial_state_is_used_only_in_the_first_batch(
    given: Callable[[DataFrame], Any], states: DataFrame, job: Job
) -> None:
    results = []
    for parallelism in (2, 3):
        job.feed(files=1, rows=3)
        rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=parallelism)
        output = rows.transformWithState(
            InitializedTotals(), OUT, "Update", "ProcessingTime", initialState=given(states)
        )
        results.append(run_keyed(job, output))
    first, second = results
    # Key 7 has no rows; timers yield both keys with initial state once more.
    assert first == {0: [(0, 300, 3), (0, 300, 3), (1, 1, 1), (2, 2, 1), (7, 5, 1)]}
    assert second == {1: [(0, 303, 4), (1, 5, 2), (2, 7, 2)]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda states: [(0, 100)], "type list"),
        (lambda states: states.drop("key"), "got \\['key'\\]"),
        (lambda states: states.groupBy(states.key + 1), "grouped by"),
        (lambda states: states.groupBy("key", "n"), "got \\['key', 'n'\\]"),
        (lambda states: states.groupBy(), "got \\[\\]"),
        (lambda states: states.selectExpr("string(key) as key"), "bigint, got string; cast it"),
    ],
    ids=["a list", "no key", "an expression", "two columns", "no column", "another type"],
)
def test_initial_state_must_be_rows_grouped_by_the_key(
    given: Callable[[DataFrame], Any], message: str, states: DataFrame, job: Job
) -> None:
    rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=2)
    with pytest.raises(InvalidRequestError, match=message):
        rows.transformWithState(
            TotalsProcessor(), OUT, "Update", "None", initialState=given(states)
        )


def test_event_time_column_of_the_output_is_refused(job: Job) -> None:
    rows = keyed(keyed_stream(job), "key", uid="sums", parallelism=2)
    with pytest.raises(InvalidRequestError, match="eventTimeColumnName must be empty, got 'at'"):
        rows.transformWithState(
            TotalsProcessor(), OUT, "Update", "EventTime", eventTimeColumnName="at"
        )
