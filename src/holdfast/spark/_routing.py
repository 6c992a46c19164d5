"""How rows, and what subtasks need to know, get to the subtasks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.locations import ByteStreamStateHandle, OperatorStateHandle

Assigned = tuple[tuple[OperatorStateHandle, ...], ...]
"""Handles to restore from, by subtask."""

_MOST_BYTES_WITH_THE_FUNCTION = 256 << 10
_SUBTASK = "__holdfast_subtask"
_RESERVED = "__holdfast_"


def dealt(batch: DataFrame, parallelism: int) -> DataFrame:
    """The batch in one partition a subtask, with a last column that marks whose a row is.

    Rows of subtask i have i. One row that is none has -(i + 1): Spark runs nothing at all over
    an empty partition that its optimizers know of, but a subtask has state to carry on.
    """
    # A row's number begins anew, at a multiple of 2**33, in each partition.
    number = F.monotonically_increasing_id() + F.spark_partition_id()
    owner = F.pmod(number, F.lit(parallelism)).cast("int").alias(_SUBTASK)
    marks = batch.sparkSession.range(0, parallelism, 1, 1).select(
        *(F.lit(None).cast(column.dataType).alias(column.name) for column in batch.schema),
        (-F.col("id") - 1).cast("int").alias(_SUBTASK),
    )
    marked = F.col(_SUBTASK)
    partition = F.when(marked < 0, -marked - 1).otherwise(marked)
    return batch.select("*", owner).union(marks).repartitionById(parallelism, partition)


@contextmanager
def shared(session: SparkSession, assigned: Assigned) -> Iterator["Assigned | Broadcast[Assigned]"]:
    """What tasks restore from: with the function they run, or once for each executor.

    State can be inside handles. A function that has grown over a MiB by it PySpark would
    broadcast by itself, in every batch, and never delete the file.
    """
    inline = sum(
        handle.size
        for handles in assigned
        for handle in handles
        if isinstance(handle.stream, ByteStreamStateHandle)
    )
    if inline <= _MOST_BYTES_WITH_THE_FUNCTION:
        yield assigned
        return
    broadcast = session.sparkContext.broadcast(assigned)
    try:
        yield broadcast
    finally:
        broadcast.destroy()


def arrow_schema(frame: DataFrame, *, uid: str) -> pa.Schema:
    """How the frame's rows look in Arrow, whatever the session's settings for Arrow are.

    Columns are nullable, timestamps in UTC, strings and bytes of the 32-bit kinds: else state
    would depend on `spark.sql.session.timeZone` and `spark.sql.execution.arrow.useLargeVarTypes`.

    Raises:
        InvalidRequestError: There are no columns, or their names can't be used.
    """
    names = frame.columns
    repeated = {name for name in names if [one.lower() for one in names].count(name.lower()) > 1}
    unusable = {name for name in names if name.startswith(_RESERVED) or "." in name}
    if not names or repeated or unusable:
        message = (
            f"rows of operator {uid!r} have columns {names}; there must be at least one, and no two "
            f"alike, no dot in a name, and none that begins with {_RESERVED}"
        )
        raise InvalidRequestError(message)
    schema = frame.limit(0).toArrow().schema
    return pa.schema([pa.field(column.name, _settled(column.type)) for column in schema])


def _settled(one: pa.DataType) -> pa.DataType:
    """The type without what depends on the session's settings."""
    if pa.types.is_timestamp(one) and one.tz is not None:
        return pa.timestamp(one.unit, "UTC")
    if pa.types.is_large_string(one):
        return pa.string()
    if pa.types.is_large_binary(one):
        return pa.binary()
    if pa.types.is_struct(one):
        return pa.struct([child.with_type(_settled(child.type)) for child in one])
    if pa.types.is_list(one):
        return pa.list_(one.value_field.with_type(_settled(one.value_type)))
    if pa.types.is_map(one):
        return pa.map_(
            one.key_field.with_type(_settled(one.key_type)),
            one.item_field.with_type(_settled(one.item_type)),
        )
    return one
