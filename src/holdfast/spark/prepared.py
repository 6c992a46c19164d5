"""Operations on the rows of each batch, whose arguments are prepared once in a run.

PySpark makes the Java objects of all arguments again in each call: a call of the JVM for each column, and some more for
each list of columns. In a small batch they take as long as its tasks. With Spark Connect there is nothing to prepare.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa
from py4j.java_collections import ListConverter, MapConverter
from py4j.java_gateway import JavaClass
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from holdfast.spark.compat import MAP_IN_ARROW, NO_SQL_FUNCTION, java_map_in_arrow

_MAX_COMMAND_BYTES = 1 << 20
"""PySpark broadcasts larger functions; the limit is a setting whose value takes a call."""

_FUNCTION = "org.apache.spark.api.python.SimplePythonFunction"
_UDF = "org.apache.spark.sql.execution.python.UserDefinedPythonFunction"


class PreparedColumns:
    """Columns for operations on frames with the same schema."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._java: Any = None

    def select(self, frame: DataFrame) -> DataFrame:
        """Return the columns of a frame."""
        if not _is_classic(frame):
            return frame.select(*self.columns)
        return _like(frame, _java(frame).select(self.java(frame)))

    def repartition(self, frame: DataFrame, partitions: int) -> DataFrame:
        """Move the rows of a frame to a number of partitions, by the hash of the columns."""
        if not _is_classic(frame):
            return frame.repartition(partitions, *self.columns)
        return _like(frame, _java(frame).repartition(partitions, self.java(frame)))

    def java(self, frame: DataFrame) -> Any:
        """Return the list of the columns in Spark's JVM."""
        if self._java is None:
            self._java = cast("Any", frame)._jcols(*self.columns)
        return self._java


class PreparedAggregation:
    """The aggregation of frames with the same schema, by groups. There is at least one result."""

    def __init__(self, groups: Sequence[Column], results: Sequence[Column]) -> None:
        self._groups = PreparedColumns(groups)
        self._results = tuple(results)
        self._others = PreparedColumns(results[1:])

    def __call__(self, frame: DataFrame) -> DataFrame:
        if not _is_classic(frame):
            return frame.groupBy(*self._groups.columns).agg(*self._results)
        first: Any = self._results[0]
        grouped = _java(frame).groupBy(self._groups.java(frame))
        return _like(frame, grouped.agg(first._jc, self._others.java(frame)))


class PreparedMap:
    """`DataFrame.mapInArrow` of frames with the same columns, with one schema of results."""

    def __init__(self, columns: Sequence[Column], schema: StructType) -> None:
        self._columns = PreparedColumns(columns)
        self._schema = schema
        self._java: _JavaArguments | None = None

    def __call__(
        self,
        frame: DataFrame,
        function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    ) -> DataFrame:
        if not _is_classic(frame):
            return frame.mapInArrow(function, self._schema)
        context: Any = frame.sparkSession.sparkContext
        command = cast("Any", CloudPickleSerializer)().dumps((function, self._schema))
        broadcasts = [broadcast._jbroadcast for broadcast in context._pickled_broadcast_vars]
        context._pickled_broadcast_vars.clear()
        if len(command) > _MAX_COMMAND_BYTES:
            return frame.mapInArrow(function, self._schema)
        if self._java is None or self._java.includes != context._python_includes:
            self._java = _JavaArguments.of(frame, self._schema)
        java = self._java
        java_function = java.make_function(
            bytearray(command),
            java.environment,
            java.java_includes,
            context.pythonExec,
            context.pythonVer,
            java.list_of(broadcasts) if broadcasts else java.empty_list,
            context._javaAccumulator,
        )
        no_sql = (java.empty_list,) * NO_SQL_FUNCTION
        name = function.__name__
        udf = java.make_udf(name, java_function, java.type, MAP_IN_ARROW, True, *no_sql)
        column = udf.apply(self._columns.java(frame))
        return _like(frame, java_map_in_arrow(_java(frame), column))


@dataclass(frozen=True, slots=True, kw_only=True)
class _JavaArguments:
    """The arguments of Java's constructors of functions that stay the same.

    Attributes:
        includes: The files that were added to Spark's context when they were made.
    """

    client: Any
    make_function: JavaClass
    make_udf: JavaClass
    environment: Any
    includes: list[str]
    java_includes: Any
    empty_list: Any
    type: Any

    @classmethod
    def of(cls, frame: DataFrame, schema: StructType) -> Self:
        session: Any = frame.sparkSession
        context = session.sparkContext
        client = context._gateway._gateway_client
        includes = [*context._python_includes]
        return cls(
            client=client,
            make_function=JavaClass(_FUNCTION, client),
            make_udf=JavaClass(_UDF, client),
            environment=MapConverter().convert(context.environment, client),
            includes=includes,
            java_includes=ListConverter().convert(includes, client),
            empty_list=ListConverter().convert([], client),
            type=session._jsparkSession.parseDataType(schema.json()),
        )

    def list_of(self, values: list[Any]) -> Any:
        return ListConverter().convert(values, self.client)


def _is_classic(frame: DataFrame) -> bool:
    return hasattr(frame, "_jdf")


def _java(frame: DataFrame) -> Any:
    return cast("Any", frame)._jdf


def _like(frame: DataFrame, java: Any) -> DataFrame:
    """Return a frame of Java in the session of another frame."""
    return cast("DataFrame", cast("Any", type(frame))(java, frame.sparkSession))
