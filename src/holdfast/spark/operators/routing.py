"""How rows get to the subtasks."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from holdfast.backends.arrow import conform_column, mapped_type
from holdfast.backends.keys import check_key_type
from holdfast.errors import InvalidRequestError
from holdfast.spark.event_time import LateRows
from holdfast.spark.operators.operator import Operator

# A bigint, for rows are likely to have others of that type: Spark's JVM writes rows with three kinds
# of columns into Arrow more slowly than those with two.
_SUBTASK = "__holdfast_subtask"
_RESERVED = "__holdfast_"

_MOST_NUMBERS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How batches of one schema get to subtasks. Made once: every step costs calls to the JVM.

    Columns are made of functions, not of texts: Spark would parse these in each batch.

    Each subtask gets a partition of rows, with a last column that marks whose a row is. Rows of subtask i
    have i. A row without data has i - parallelism: it is there because Spark runs nothing at all over a
    partition that its optimizers know to be empty, but a subtask has state to carry on. A row that is late has
    i - 2 * parallelism: the subtask drops it, for there it can be counted without a job of its own.

    Attributes:
        parallelism: Number of subtasks.
        subtask: Computes the subtask that a row belongs to.
        partition: Computes from its mark the partition that a row goes to.
        key: The key's columns in Arrow; no column if rows are dealt evenly.
        key_types: Spark's types of these.
        input_schema: The rows in Arrow, without the mark.
        marks: The rows without data.
        late_rows: Says which rows are late; None if none are.
    """

    parallelism: int
    subtask: Column
    partition: Column
    key: pa.Schema
    key_types: tuple[str, ...]
    input_schema: pa.Schema
    marks: DataFrame
    late_rows: LateRows | None

    @classmethod
    def of(cls, rows: DataFrame, operator: Operator, max_parallelism: int) -> Self:
        """The routing of all rows that have the schema of these.

        Raises:
            InvalidRequestError: The rows lack a column of the key, or have columns that can't be used.
        """
        parallelism = operator.parallelism
        input_schema = arrow_schema(rows, uid=operator.uid)
        missing = [column for column in operator.key if column not in rows.columns]
        if missing:
            message = (
                f"rows of operator {operator.uid!r} have no column {missing}, which is of its key; "
                f"they have {rows.columns}"
            )
            raise InvalidRequestError(message)
        # Numbers begin anew, at a multiple of 2**33, in each partition: its id spreads their first rows.
        number = F.monotonically_increasing_id() + F.spark_partition_id()
        subtask = number.bitwiseAND(_MOST_NUMBERS) % parallelism
        key = pa.schema([input_schema.field(column) for column in operator.key])
        if operator.key:
            # Key groups as in Flink; the hash is Spark's own, for it is computed in the JVM.
            key_group = F.pmod(_hashed(rows, operator), F.lit(max_parallelism))
            quotient = F.call_function("div", key_group * parallelism, F.lit(max_parallelism))
            subtask = quotient.cast("bigint")  # Spark has a setting for its type
            _check_has_state(key, uid=operator.uid)
        nulls = [F.lit(None).cast(column.dataType).alias(column.name) for column in rows.schema]
        mark = (F.col("id") - parallelism).alias(_SUBTASK)
        marks = rows.sparkSession.range(0, parallelism, 1, 1).select(*nulls, mark)
        key_types = tuple(rows.schema[column].dataType.simpleString() for column in operator.key)
        return cls(
            parallelism=parallelism,
            subtask=subtask,
            partition=F.pmod(F.col(_SUBTASK), F.lit(parallelism).cast("bigint")).cast("int"),
            key=key,
            key_types=key_types,
            input_schema=input_schema,
            marks=marks,
            late_rows=(
                LateRows.of(rows, operator.event_time, uid=operator.uid)
                if operator.drops_late_rows
                else None
            ),
        )

    def marked(self, rows: DataFrame, late_watermark: int) -> DataFrame:
        """The rows where they are, each marked with its partition as its subtask."""
        return self._marked(rows, F.spark_partition_id().cast("bigint"), late_watermark)

    def dealt(self, rows: DataFrame, late_watermark: int) -> DataFrame:
        """The rows and the marks, where they belong."""
        return (
            self._marked(rows, self.subtask, late_watermark)
            .union(self.marks)
            .repartitionById(self.parallelism, self.partition)
        )

    def _marked(self, rows: DataFrame, subtask: Column, late_watermark: int) -> DataFrame:
        if self.late_rows is not None:
            late = self.late_rows.before(late_watermark).cast("bigint")
            subtask -= late * (2 * self.parallelism)
        return rows.withColumn(_SUBTASK, subtask)


def _hashed(rows: DataFrame, operator: Operator) -> Column:
    """The hash of a row's key; not in SQL, which may take a quoted name for a regular expression.

    Raises:
        InvalidRequestError: Spark has no hash for a column of it.
    """
    for column in operator.key:
        data_type = rows.schema[column].dataType
        kind = data_type.simpleString()
        if is_collated(data_type):
            message = (
                f"column {column!r} of the key of operator {operator.uid!r} has type {kind}: strings "
                "that are equal to it have different hashes; use a column of plain strings that "
                "are alike, such as upper(...) of it, cast to string"
            )
            raise InvalidRequestError(message)
        message = (
            f"column {column!r} of the key of operator {operator.uid!r} has type {kind}, for which Spark "
            "has no hash; use columns without maps, variants and geometries, such as a string made of it"
        )
        # Spark sees it too late: in the optimizer.
        if "geometry(" in kind or "geography(" in kind:
            raise InvalidRequestError(message)
        try:
            rows.select(F.hash(F.col(f"`{column}`")))
        except AnalysisException as error:
            raise InvalidRequestError(message) from error
    return F.hash(*(F.col(f"`{column}`") for column in operator.key))


def is_collated(kind: DataType) -> bool:
    """Whether strings of the type, or in it, are compared by a collation, which Arrow has not: state compares bytes."""
    return " collate " in kind.simpleString()


def _check_has_state(key: pa.Schema, *, uid: str) -> None:
    """Refuse keys that state can't be looked up by. Raises `InvalidRequestError`."""
    for field in key:
        try:
            check_key_type(field.type)
        except InvalidRequestError as error:
            message = (
                f"column {field.name!r} of the key of operator {uid!r} has the Arrow type {field.type}, by "
                f"which no state can be kept ({error.args[0]}); cast it to another type, such as a string"
            )
            raise InvalidRequestError(message) from None


def settled_table(frame: DataFrame, *, uid: str) -> pa.Table:
    """All rows of a small frame, in `arrow_schema`.

    Raises:
        InvalidRequestError: Its columns can't be used.
    """
    _check_columns(frame.columns, uid=uid)
    return read_table(frame)


def read_table(frame: DataFrame) -> pa.Table:
    """All rows of a small frame in Arrow, whatever the session's settings for Arrow are."""
    table = frame.toArrow()
    schema = _settled_schema(table.schema)
    columns = [
        conform_column(column, field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema)


def arrow_schema(frame: DataFrame, *, uid: str) -> pa.Schema:
    """How the frame's rows look in Arrow, whatever the session's settings for Arrow are.

    Columns and all that is inside of them may be null, whatever Spark infers from this query; timestamps in UTC, strings and bytes of the 32-bit kinds: else state
    would depend on `spark.sql.session.timeZone` and `spark.sql.execution.arrow.useLargeVarTypes`.

    Raises:
        InvalidRequestError: There are no columns, or their names can't be used.
    """
    _check_columns(frame.columns, uid=uid)
    try:
        # Not by the frame itself, which could run an operator that the frame comes from.
        schema = frame.sparkSession.createDataFrame([], frame.schema).toArrow().schema
    except PySparkException as error:
        message = (
            f"rows of operator {uid!r} have a column of a type that Arrow has not ({error}); cast it "
            "to another type"
        )
        raise InvalidRequestError(message) from error
    return _settled_schema(schema)


def _check_columns(names: list[str], *, uid: str) -> None:
    repeated = {
        name for name in names if [other.lower() for other in names].count(name.lower()) > 1
    }
    # mapInArrow looks columns up by their names as if they were expressions.
    unusable = {
        name
        for name in names
        if name.lower().startswith(_RESERVED) or "." in name or "`" in name or name == "*"
    }
    if not names or repeated or unusable:
        message = (
            f"rows of operator {uid!r} have columns {names}; there must be at least one, and no two "
            f"alike, no dot, backtick or bare * in a name, and none that begins with {_RESERVED}"
        )
        raise InvalidRequestError(message)


def _settled_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [(column.name, mapped_type(column.type, _settled, may_be_null=True)) for column in schema]
    )


def _settled(type: pa.DataType) -> pa.DataType:
    """The type without what depends on the session's settings; what is inside of it is not looked at."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp(type.unit, "UTC")
    if pa.types.is_large_string(type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type) else type
