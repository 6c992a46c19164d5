"""Routing of rows to subtasks, and rows of Spark in Arrow."""

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
from holdfast.spark.compat import HAS_SHUFFLE_CHECKSUMS, read_arrow
from holdfast.spark.event_time import LateRows
from holdfast.spark.operators.operator import Operator
from holdfast.spark.operators.partitions import PARTITION, number_at, partition_numbers
from holdfast.spark.operators.task_homes import TaskHomes
from holdfast.spark.prepared import PreparedColumns
from holdfast.spark.sessions import column_named

# A bigint, because rows are likely to have more columns of that type: Spark's JVM writes rows with three different
# types to Arrow more slowly than rows with two.
SUBTASK = "__holdfast_subtask"
"""The column of marks."""

_RESERVED = "__holdfast_"

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of rows with one schema to subtasks. Made once: every step costs calls of the JVM.

    Columns are built from functions, because Spark would parse SQL text in each batch.

    Each subtask gets a partition of rows, whose last column is the mark. Rows of subtask i have the mark i. A row
    without data has i - parallelism: it exists because Spark runs no task over a partition that its optimizer knows
    to be empty, but each subtask has to write its state to the checkpoint. A late row has i - 2 * parallelism: the
    subtask drops and counts it, which takes no separate job.

    Attributes:
        subtask: Computes the subtask of a row.
        partition: Computes, from the mark of a row, a number that Spark hashes to the row's partition.
        key: The key's columns in Arrow; no column if rows are distributed evenly.
        key_types: Spark's types of these columns.
        input_schema: The schema of the rows in Arrow, without the mark.
        marks: The rows without data.
        late_rows: Detects late rows; None if late rows are kept.
    """

    parallelism: int
    subtask: Column
    partition: PreparedColumns
    key: pa.Schema
    key_types: tuple[str, ...]
    input_schema: pa.Schema
    marks: DataFrame
    late_rows: LateRows | None

    @classmethod
    def of(
        cls, rows: DataFrame, operator: Operator, parallelism: int, max_parallelism: int
    ) -> Self:
        """Return the routing of all rows that have the schema of these rows. Raises `InvalidRequestError`."""
        input_schema = arrow_schema(rows, uid=operator.uid)
        missing = [column for column in operator.key if column not in rows.columns]
        if missing:
            raise InvalidRequestError(
                f"rows of operator {operator.uid!r} lack columns {missing} of its key; "
                f"they have {rows.columns}"
            )
        key = pa.schema([input_schema.field(column) for column in operator.key])
        if operator.key:
            # Key groups as in Flink, with Spark's hash, which is computed in the JVM.
            key_group = F.pmod(_hash_key(rows, operator), F.lit(max_parallelism))
            quotient = F.call_function("div", key_group * parallelism, F.lit(max_parallelism))
            subtask = quotient.cast("bigint")  # Spark has a setting for its type
            _check_key(key, uid=operator.uid)
        elif HAS_SHUFFLE_CHECKSUMS:
            # Numbers start at a multiple of 2**33 in each partition: adding its id distributes their first rows.
            number = F.monotonically_increasing_id() + F.spark_partition_id()
            subtask = number.bitwiseAND(_MAX_INT32) % parallelism
        else:
            subtask = subtask_of_content(rows, parallelism)
        key_types = tuple(rows.schema[column].dataType.simpleString() for column in operator.key)
        return cls(
            parallelism=parallelism,
            subtask=subtask,
            partition=PreparedColumns([_partition_number(parallelism)]),
            key=key,
            key_types=key_types,
            input_schema=input_schema,
            marks=_marks(rows, parallelism),
            late_rows=LateRows.of(rows, operator.event_time, uid=operator.uid)
            if operator.drops_late_rows
            else None,
        )

    def marks_of(self, rows: DataFrame) -> DataFrame:
        """Return the rows without data, with the columns of other rows."""
        return _marks(rows, self.parallelism)

    def mark(self, rows: DataFrame, late_watermark: int) -> DataFrame:
        """Mark rows with their partitions as their subtasks, and leave them there."""
        return self._mark(rows, F.spark_partition_id().cast("bigint"), late_watermark)

    def repartition(
        self, rows: DataFrame, late_watermark: int, tasks: int, homes: TaskHomes | None = None
    ) -> DataFrame:
        """Move rows, and the rows without data, to the partitions of their subtasks.

        With fewer tasks than subtasks a task reads several of these partitions one after the other.
        """
        marked = self._mark(rows, self.subtask, late_watermark).union(self.marks)
        if homes is None:
            routed = self.partition.repartition(marked, self.parallelism)
        else:
            numbered = marked.withColumn(PARTITION, *self.partition.columns)
            moved = numbered.repartition(self.parallelism, PARTITION)
            routed = homes.join(moved, self.parallelism).drop(PARTITION)
        return routed if tasks >= self.parallelism else routed.coalesce(tasks)

    def _mark(self, rows: DataFrame, subtask: Column, late_watermark: int) -> DataFrame:
        if self.late_rows is not None:
            late = self.late_rows.before(late_watermark).cast("bigint")
            subtask -= late * (2 * self.parallelism)
        return rows.withColumn(SUBTASK, subtask)


def _marks(rows: DataFrame, parallelism: int) -> DataFrame:
    nulls = [F.lit(None).cast(column.dataType).alias(column.name) for column in rows.schema]
    mark = (F.col("id") - parallelism).alias(SUBTASK)
    return rows.sparkSession.range(0, parallelism, 1, 1).select(*nulls, mark)


def _partition_number(parallelism: int) -> Column:
    index = F.pmod(F.col(SUBTASK), F.lit(parallelism).cast("bigint"))
    return number_at(partition_numbers(parallelism), index)


def subtask_of_content(rows: DataFrame, parallelism: int) -> Column:
    """Return the subtask of a row by its hash, which doesn't depend on the order of rows.

    The order can change when Spark repeats a lost part of a shuffle. Columns that Spark can't hash are left out.
    """
    columns = [column_named(name) for name in rows.columns if _can_hash(rows, name)]
    row_hash = F.xxhash64(F.lit(0), *columns)
    return F.pmod(row_hash, F.lit(parallelism).cast("bigint"))


def _can_hash(rows: DataFrame, column: str) -> bool:
    kind = rows.schema[column].dataType.simpleString()
    if "geometry(" in kind or "geography(" in kind:
        return False  # Spark detects it too late, in the optimizer
    try:
        rows.select(F.hash(column_named(column)))
    except AnalysisException:
        return False
    return True


def _hash_key(rows: DataFrame, operator: Operator) -> Column:
    """Return the hash of a row's key; without SQL, where a quoted name may be a regular expression."""
    for column in operator.key:
        data_type = rows.schema[column].dataType
        kind = data_type.simpleString()
        if is_collated(data_type):
            raise InvalidRequestError(
                f"column {column!r} of the key of operator {operator.uid!r} has type {kind}: strings "
                "that are equal by this collation have different hashes; use a normalized column of plain "
                "strings, such as upper(...) of it, cast to string"
            )
        if not _can_hash(rows, column):
            raise InvalidRequestError(
                f"column {column!r} of the key of operator {operator.uid!r} has type {kind}, which Spark can't "
                "hash; use columns without maps, variants and geometries, such as a string made from it"
            )
    return F.hash(*map(column_named, operator.key))


def is_collated(type: DataType) -> bool:
    """Return whether the type has strings with a collation. Arrow has no collations, and state compares bytes."""
    return " collate " in type.simpleString()


def _check_key(key: pa.Schema, *, uid: str) -> None:
    """Refuse keys with types that keyed state does not support. Raises `InvalidRequestError`."""
    for field in key:
        try:
            check_key_type(field.type)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"column {field.name!r} of the key of operator {uid!r} has the Arrow type {field.type}, which "
                f"keyed state does not support ({error.args[0]}); cast it to another type, such as a string"
            ) from None


def read_table(frame: DataFrame, *, uid: str | None = None) -> pa.Table:
    """Read all rows of a small frame in `arrow_schema`; names of columns are checked if they are rows of an operator."""
    if uid is not None:
        _check_columns(frame.columns, uid=uid)
    table = read_arrow(frame)
    schema = _normalize_schema(table.schema)
    columns = [
        conform_column(column, field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema)


def arrow_schema(frame: DataFrame, *, uid: str) -> pa.Schema:
    """Return the schema of a frame's rows in Arrow, independent of the session's settings for Arrow.

    Columns and values inside of them are nullable, whatever Spark infers from this query. Timestamps are in UTC, strings
    and binary have 32-bit offsets: otherwise state would depend on `spark.sql.session.timeZone` and
    `spark.sql.execution.arrow.useLargeVarTypes`.

    Raises:
        InvalidRequestError: There are no columns, or their names can't be used.
    """
    _check_columns(frame.columns, uid=uid)
    try:
        # Not with the frame itself, which could run an operator that the frame is computed from.
        schema = read_arrow(frame.sparkSession.createDataFrame([], frame.schema)).schema
    except PySparkException as error:
        raise InvalidRequestError(
            f"rows of operator {uid!r} have a column type that Arrow does not support ({error}); cast it "
            "to another type"
        ) from error
    return _normalize_schema(schema)


def _check_columns(names: list[str], *, uid: str) -> None:
    repeated = {
        name for name in names if [other.lower() for other in names].count(name.lower()) > 1
    }
    # mapInArrow parses names of columns as expressions.
    unusable = {
        name
        for name in names
        if name.lower().startswith(_RESERVED) or "." in name or "`" in name or name == "*"
    }
    if not names or repeated or unusable:
        raise InvalidRequestError(
            f"rows of operator {uid!r} have columns {names}; there must be at least one column, no "
            f"duplicate names, no dot, backtick or bare * in a name, and no name starting with {_RESERVED}"
        )


def _normalize_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            (column.name, mapped_type(column.type, _normalize_type, may_be_null=True))
            for column in schema
        ]
    )


def _normalize_type(type: pa.DataType) -> pa.DataType:
    """Return a type that does not depend on the session's settings; nested types are not changed."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp(type.unit, "UTC")
    if pa.types.is_large_string(type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type) else type
