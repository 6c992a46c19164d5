"""Differences between the versions of PySpark, 3.5 to 4.3. Other modules use these names, and don't look at the version.

PySpark 3.5 has neither `transformWithState` nor data sources in Python. Its classes are replaced by classes with the same
interface, so that processors run there too.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException, convert_exception
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import DataType, StructType

from holdfast.errors import InvalidRequestError

_VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))

IS_PYSPARK_4 = _VERSION >= (4, 0)
"""True if PySpark has `transformWithState`, sources of its state, and data sources in Python."""

HAS_SHUFFLE_CHECKSUMS = _VERSION >= (4, 1)
"""True if Spark notices that a repeated part of a shuffle has other rows, and then repeats the whole stage."""

if TYPE_CHECKING or IS_PYSPARK_4:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )
else:

    class ValueState:
        """A state of a processor with one value for each key."""

    class ListState:
        """A state of a processor with a list of values for each key."""

    class MapState:
        """A state of a processor with a map for each key."""

    class TimerValues:
        """The times of a batch, in milliseconds since 1970; -1 for a time that the time mode does not have."""

        def __init__(
            self, currentProcessingTimeInMs: int = -1, currentWatermarkInMs: int = -1
        ) -> None:
            self._processing_time_ms = currentProcessingTimeInMs
            self._watermark_ms = currentWatermarkInMs

        def getCurrentProcessingTimeInMs(self) -> int:
            """Return the processing time of the batch."""
            return self._processing_time_ms

        def getCurrentWatermarkInMs(self) -> int:
            """Return the watermark of the batch."""
            return self._watermark_ms

    class ExpiredTimerInfo:
        """The timer that has fired."""

        def __init__(self, expiryTimeInMs: int = -1) -> None:
            self._expiry_time_ms = expiryTimeInMs

        def getExpiryTimeInMs(self) -> int:
            """Return the time that the timer was registered for, in milliseconds since 1970."""
            return self._expiry_time_ms

    class StatefulProcessorHandle:
        """The states and timers of a processor, for `StatefulProcessor.init`, with the methods that PySpark 4 documents."""

    class StatefulProcessor(ABC):
        """A stateful function over the rows of each key, with the interface of PySpark 4's class of this name.

        `keyed(…).transformWithState` calls it with `Row`s, `keyed(…).transformWithStateInPandas` with pandas DataFrames.
        """

        @abstractmethod
        def init(self, handle: StatefulProcessorHandle) -> None:
            """Declare the states, before all other calls."""

        @abstractmethod
        def handleInputRows(
            self, key: Any, rows: Iterator[Any], timerValues: TimerValues
        ) -> Iterator[Any]:
            """Process the rows of a key, and return its output."""

        def handleExpiredTimer(
            self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
        ) -> Iterator[Any]:
            """Process a timer that has fired, and return output of its key."""
            return iter([])

        def close(self) -> None:
            """Release resources, after all other calls."""

        def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
            """Process a row of the initial state, in the operator's first batch."""

    class InputPartition:
        """A part that a task reads."""

        def __init__(self, value: Any) -> None:
            self.value = value

    class DataSourceReader:
        """Reads the parts of a data source."""


DATETIME_TYPES: tuple[type[DataType], ...] = tuple(
    getattr(spark_types, name)
    for name in ("DateType", "TimestampType", "TimestampNTZType", "TimeType")
    if hasattr(spark_types, name)
)

HAS_TIME_TYPE = hasattr(spark_types, "TimeType")
"""True if Spark has the type `time`: from PySpark 4.1 on."""


def require_pyspark_4(name: str, way_out: str) -> None:
    """Refuse what PySpark 3.5 has no counterpart for. Raises `InvalidRequestError`."""
    if not IS_PYSPARK_4:
        raise InvalidRequestError(
            f"{name} needs PySpark 4.0 or later, and this is PySpark {pyspark.__version__}; {way_out}"
        )


def read_arrow(frame: DataFrame) -> pa.Table:
    """Read all rows of a frame, as `DataFrame.toArrow` of PySpark 4 does. Raises `PySparkException` if the job fails."""
    if IS_PYSPARK_4:
        return frame.toArrow()
    try:
        batches = cast("Any", frame)._collect_as_arrow()
    except Py4JJavaError as error:
        # The thread that waited for the job wraps its error, so that PySpark doesn't recognize it.
        cause = error.java_exception.getCause()
        if cause is None:
            raise
        raise convert_exception(cause) from None
    # Batches have their own schema: the one computed here has another time zone.
    return (
        pa.Table.from_batches(batches) if batches else arrow_schema_of(frame.schema).empty_table()
    )


_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(arrow_types.to_arrow_schema).parameters else {}
)
"""Earlier versions have no such argument, because they always use UTC."""


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the schema in Arrow of rows with a schema of Spark, with timestamps in UTC."""
    return arrow_types.to_arrow_schema(schema, **_IN_UTC)


def settings_of(session: SparkSession) -> dict[str, str]:
    """Return the settings of a session. Raises `InvalidRequestError` for a session of Spark Connect 3.5."""
    if IS_PYSPARK_4:
        return dict(session.conf.getAll)
    if not hasattr(session.conf, "_jconf"):
        require_pyspark_4("Holdfast with Spark Connect", "use a classic session")
    return java_settings(cast("Any", session.conf)._jconf)


def java_settings(configuration: Any) -> dict[str, str]:
    """Return the settings in a `RuntimeConfig` of Spark's JVM."""
    if IS_PYSPARK_4:
        return dict(configuration.getAllAsJava())
    jvm: Any = SparkContext._jvm
    converter = jvm.scala.collection.JavaConverters.mapAsJavaMapConverter(configuration.getAll())
    return dict(converter.asJava())


def active_java_session(session: SparkSession) -> Any:
    """Return the session of this thread in Spark's JVM; None if it has none."""
    jvm: Any = session._jvm
    if IS_PYSPARK_4:
        java_class = session._get_j_spark_session_class(jvm)
    else:
        java_class = jvm.org.apache.spark.sql.SparkSession
    active = java_class.getActiveSession()
    return active.get() if active.isDefined() else None


def parse_data_type(session: SparkSession | None, text: str) -> DataType:
    """Parse a data type or a schema in DDL, as Spark parses schemas of processors.

    Without a session, that of this process parses it.
    """
    if session is not None and IS_PYSPARK_4:
        # The public function needs a classic session, unless the whole process is a client of Spark Connect.
        return session._parse_ddl(text)  # PySpark has no public access to it
    return cast("Any", spark_types)._parse_datatype_string(text)  # type: ignore[no-any-return]  # private


MAP_IN_ARROW = 207
"""PySpark's `PythonEvalType.SQL_MAP_ARROW_ITER_UDF`, which 3.5 has in another module."""

NO_SQL_FUNCTION = 2 if _VERSION >= (4, 3) else 0
"""The number of lists that a function in Spark's JVM has for SQL that replaces it."""


def java_map_in_arrow(frame: Any, function: Any) -> Any:
    """Apply a function over record batches, a column in Spark's JVM, to a frame there."""
    if IS_PYSPARK_4:
        return frame.mapInArrow(function, False, None)
    return frame.pythonMapInArrow(function.expr(), False)


def error_condition(error: PySparkException) -> str | None:
    """Return Spark's name for the condition of an error."""
    return error.getCondition() if IS_PYSPARK_4 else error.getErrorClass()


def java_stack_trace(error: CapturedException) -> str:
    """Return the stack trace of an error in Spark's JVM."""
    return str(error._stackTrace if IS_PYSPARK_4 else cast("Any", error).stackTrace)
