"""Functions that differ by the version of PySpark do the same with all of them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from holdfast import (
    StatefulProcessor,
    StatefulProcessorHandle,
    import_spark_state,
    spark_initial_state,
)
from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import (
    IS_PYSPARK_4,
    active_java_session,
    arrow_schema_of,
    error_condition,
    java_settings,
    java_stack_trace,
    parse_data_type,
    read_arrow,
    require_pyspark_4,
    settings_of,
)
from holdfast.spark.engines import error_of_task


def test_rows_are_read_with_instants_in_utc(spark: SparkSession) -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    frame = spark.range(3).select("id", F.lit(noon).alias("at"), F.array("id").alias("list"))
    table = read_arrow(frame.orderBy("id"))
    assert table.column_names == ["id", "at", "list"]
    assert table["id"].to_pylist() == [0, 1, 2]
    assert table["list"].to_pylist() == [[0], [1], [2]]
    assert {moment.astimezone(UTC) for moment in table["at"].to_pylist()} == {noon}
    assert arrow_schema_of(frame.schema).field("at").type == pa.timestamp("us", "UTC")


def test_frame_without_rows_has_its_columns(spark: SparkSession) -> None:
    for frame in (spark.createDataFrame([], "a int, b string"), spark.range(0).select("id")):
        table = read_arrow(frame)
        assert table.num_rows == 0
        assert table.column_names == frame.columns


def test_failed_job_raises_the_error_of_its_task(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="as planned"):
        read_arrow(spark.range(1).select(F.raise_error(F.lit("as planned"))))

    def fail(_batches: Any) -> Any:
        raise InvalidRequestError("refused as planned")

    with pytest.raises(PySparkException) as raised:
        read_arrow(spark.range(1).mapInArrow(fail, "id long"))
    error = error_of_task(raised.value)
    assert isinstance(error, InvalidRequestError)
    assert str(error) == "refused as planned"


def test_settings_of_the_session_are_those_of_its_jvm(spark: SparkSession) -> None:
    settings = settings_of(spark)
    assert settings["spark.sql.session.timeZone"] == "Europe/Berlin"
    session = spark._jsparkSession  # noqa: SLF001  # the only access
    assert java_settings(session.conf()) == settings
    active = active_java_session(spark)
    assert active is None or active.conf().get("spark.app.id") == settings["spark.app.id"]


def test_error_has_its_condition_and_the_stack_of_the_jvm(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as raised:
        spark.sql("SELECT missing FROM VALUES (1) AS one(a)")
    assert str(error_condition(raised.value)).startswith("UNRESOLVED_COLUMN")
    assert isinstance(raised.value, CapturedException)
    assert "\tat org.apache.spark.sql" in java_stack_trace(raised.value)


@pytest.mark.parametrize("with_session", [True, False])
def test_schema_is_parsed_as_struct_or_type(spark: SparkSession, *, with_session: bool) -> None:
    session = spark if with_session else None
    assert parse_data_type(session, "a int, b string").simpleString() == "struct<a:int,b:string>"
    assert parse_data_type(session, "int") == IntegerType()


class Processor(StatefulProcessor):
    """Does nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803  # Spark's names
        yield from ()


@pytest.mark.skipif(IS_PYSPARK_4, reason="PySpark 4 has transformWithState")
def test_state_of_transform_with_state_is_refused_on_3_5(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequestError, match=r"needs PySpark 4\.0 or later, and this is"):
        spark_initial_state(spark, "file:///nowhere", Processor())
    with pytest.raises(InvalidRequestError, match="import it with a newer PySpark"):
        import_spark_state("file:///nowhere", uid="o", parallelism=1)


@pytest.mark.skipif(not IS_PYSPARK_4, reason="PySpark 3.5 has no such classes")
def test_public_classes_of_processors_are_those_of_spark() -> None:
    from pyspark.sql.streaming import stateful_processor

    assert StatefulProcessor is stateful_processor.StatefulProcessor
    assert StatefulProcessorHandle is stateful_processor.StatefulProcessorHandle
    require_pyspark_4("this", "do that")  # does nothing
