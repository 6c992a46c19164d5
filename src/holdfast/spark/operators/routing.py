"""How rows get to the subtasks."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators.operator import Operator

# A bigint, for rows are likely to have others of that type: Spark's JVM writes rows with three kinds
# of columns into Arrow more slowly than those with two.
_SUBTASK = "__holdfast_subtask"
_RESERVED = "__holdfast_"

# Numbers begin anew, at a multiple of 2**33, in each partition: its id spreads their first rows.
_NUMBER = "((monotonically_increasing_id() + spark_partition_id()) & 2147483647)"
_PARTITION = f"cast(if({_SUBTASK} < 0, -{_SUBTASK} - 1, {_SUBTASK}) as int)"


@dataclass(frozen=True, slots=True)
class Routing:
    """How batches of one schema get to subtasks. Made once: every step costs calls to the JVM.

    Each subtask gets a partition of rows, with a last column that marks whose a row is. Rows of subtask i
    have i. A row without data has -(i + 1): it is there because Spark runs nothing at all over a partition
    that its optimizers know to be empty, but a subtask has state to carry on.

    Attributes:
        parallelism: Number of subtasks.
        subtask: Computes the subtask that a row belongs to.
        partition: Computes from its mark the partition that a row goes to.
        key_types: Spark's types of the key's columns.
        input_schema: The rows in Arrow, without the mark.
        marks: The rows without data.
    """

    parallelism: int
    subtask: Column
    partition: Column
    key_types: tuple[str, ...]
    input_schema: pa.Schema
    marks: DataFrame

    @classmethod
    def of(cls, rows: DataFrame, operator: Operator, max_parallelism: int) -> Self:
        """The routing of all rows that have the schema of these.

        Raises:
            InvalidRequestError: They lack a column of the key, or have columns that can't be used.
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
        subtask = F.expr(f"{_NUMBER} % {parallelism}")
        if operator.key:
            # Key groups as in Flink; the hash is Spark's own, for it is computed in the JVM.
            key_group = F.pmod(_hashed(rows, operator), F.lit(max_parallelism))
            subtask = F.call_function("div", key_group * parallelism, F.lit(max_parallelism))
        nulls = [F.lit(None).cast(column.dataType).alias(column.name) for column in rows.schema]
        mark = F.expr(f"-id - 1 as {_SUBTASK}")
        marks = rows.sparkSession.range(0, parallelism, 1, 1).select(*nulls, mark)
        key_types = tuple(rows.schema[column].dataType.simpleString() for column in operator.key)
        return cls(
            parallelism=parallelism,
            subtask=subtask,
            partition=F.expr(_PARTITION),
            key_types=key_types,
            input_schema=input_schema,
            marks=marks,
        )

    @staticmethod
    def marked(rows: DataFrame) -> DataFrame:
        """The rows where they are, each marked with its partition as its subtask."""
        return rows.withColumn(_SUBTASK, F.spark_partition_id().cast("bigint"))

    def dealt(self, rows: DataFrame) -> DataFrame:
        """The rows and the marks, where they belong."""
        return (
            rows.withColumn(_SUBTASK, self.subtask)
            .union(self.marks)
            .repartitionById(self.parallelism, self.partition)
        )


def _hashed(rows: DataFrame, operator: Operator) -> Column:
    """The hash of a row's key; not in SQL, which may take a quoted name for a regular expression.

    Raises:
        InvalidRequestError: Spark has no hash for a column of it.
    """
    for column in operator.key:
        kind = rows.schema[column].dataType.simpleString()
        if " collate " in kind:
            message = (
                f"column {column!r} of the key of operator {operator.uid!r} has type {kind}: strings "
                "that are equal to it have different hashes; use a column of plain strings that "
                "are alike, such as upper(...) of it, cast to string"
            )
            raise InvalidRequestError(message)
        try:
            rows.select(F.hash(F.col(f"`{column}`")))
        except AnalysisException as error:
            message = (
                f"column {column!r} of the key of operator {operator.uid!r} has type "
                f"{kind}, for which Spark has no hash; "
                "use columns without maps and variants, such as a string made of it"
            )
            raise InvalidRequestError(message) from error
    return F.hash(*(F.col(f"`{column}`") for column in operator.key))


def settled_table(frame: DataFrame, *, uid: str) -> pa.Table:
    """All rows of a small frame, in `arrow_schema`.

    Raises:
        InvalidRequestError: Its columns can't be used.
    """
    _check_columns(frame.columns, uid=uid)
    table = frame.toArrow()
    return table.cast(_settled_schema(table.schema))


def arrow_schema(frame: DataFrame, *, uid: str) -> pa.Schema:
    """How the frame's rows look in Arrow, whatever the session's settings for Arrow are.

    Columns are nullable, timestamps in UTC, strings and bytes of the 32-bit kinds: else state
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
    return pa.schema([pa.field(column.name, _settled(column.type)) for column in schema])


def _settled(type: pa.DataType) -> pa.DataType:
    """The type without what depends on the session's settings."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp(type.unit, "UTC")
    if pa.types.is_large_string(type):
        return pa.string()
    if pa.types.is_large_binary(type):
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([child.with_type(_settled(child.type)) for child in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_settled(type.value_type)))
    if pa.types.is_map(type):
        return pa.map_(
            type.key_field.with_type(_settled(type.key_type)),
            type.item_field.with_type(_settled(type.item_type)),
        )
    return type
