"""Unmodified processors of PySpark as operators of a query, with and without initial state, on a real Spark."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pandas as pd
import pyarrow.parquet as pq
import pytest
from jobs.job import Job, keyed_stream, run_keyed
from jobs.processors import InitializedTotals, TotalsProcessor
from jobs.stateful_processor import StatefulProcessor
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession

from holdfast import keyed
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import ProcessorFunction, session_settings


class DigitCounts(StatefulProcessor):
    """Counts rows for each of ten keys, and keeps the names of the first ones."""

    def __init__(self, *, pandas: bool) -> None:
        self._pandas = pandas

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, at timestamp")
        self.names = handle.getListState("names", "name string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        count = (self.count.get() or (0,))[0]
        for each in rows:
            names = list(each["name"]) if self._pandas else [each.name]
            at = each["at"].iloc[-1] if self._pandas else each.at
            if not count:
                self.names.appendValue((names[0],))
            count += len(names)
        self.count.update((count, at))
        row = {"id": key[0], "count": count, "first": [name for (name,) in self.names.get()]}
        yield (
            pd.DataFrame({name: [value] for name, value in row.items()})
            if self._pandas
            else Row(**row)
        )

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("state_backend")
@pytest.mark.parametrize("flavour", ["row", pytest.param("pandas", marks=pytest.mark.exhaustive)])
def test_processor_state_survives_restarts_and_rescaling(
    spark: SparkSession, job: Job, flavour: Literal["row", "pandas"]
) -> None:
    def rows() -> Any:
        return job.stream().selectExpr("id % 10 AS id", "at", "name")

    for parallelism in (2, 3):
        job.feed(2)
        function = ProcessorFunction(
            DigitCounts(pandas=flavour == "pandas"),
            "id long, count long, first array<string>",
            flavour=flavour,
        )
        operator = job.operator(
            function, key="id", schema=function.output_schema, parallelism=parallelism
        )
        job.start(operator, rows(), availableNow=True).awaitTermination()
    written = [
        row
        for file in sorted(job.output.glob("batch=3/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert sorted(written, key=lambda row: row["id"]) == [
        {"id": digit, "count": 40, "first": [f"row {digit}"]} for digit in range(10)
    ]


def test_input_settings_are_those_of_the_session(spark: SparkSession) -> None:
    settings = session_settings(spark)
    assert settings.time_zone == "Europe/Berlin"
    assert settings.max_rows == 10_000
    assert settings.max_bytes >= 64 << 20


def test_bad_schema_is_refused_as_in_spark(spark: SparkSession) -> None:
    class Wrong(DigitCounts):
        def __init__(self, schema: str) -> None:
            self._schema = schema

        def init(self, handle: Any) -> None:
            handle.getValueState("v", self._schema)

    with pytest.raises(
        PySparkRuntimeError, match=r"(?s)Error parsing string schema.*PARSE_SYNTAX_ERROR"
    ):
        ProcessorFunction(Wrong("n long long"), "id long")
    with pytest.raises(PySparkRuntimeError, match="FAILED_PARSE_STRUCT_TYPE"):
        ProcessorFunction(Wrong("int"), "id long")


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
