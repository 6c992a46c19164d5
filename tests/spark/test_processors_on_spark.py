"""Unmodified processors of PySpark as operators of a query, on a real Spark."""

from collections.abc import Iterator
from typing import Any, Literal

import pandas as pd
import pyarrow.parquet as pq
import pytest
from jobs.job import Job
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

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
