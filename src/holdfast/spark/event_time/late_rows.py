"""Late rows: rows whose event time is at or before the watermark of the batch before."""

from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from holdfast.backends.functions import NO_WATERMARK
from holdfast.errors import InvalidRequestError
from holdfast.spark.sessions import column_named

_DELAY = "spark.watermarkDelayMs"
"""The key of the delay in the metadata of a column that was passed to `withWatermark`."""

_END_OF_WINDOW = "end"


@dataclass(frozen=True, slots=True)
class LateRows:
    """A rule for the late rows of a batch.

    Attributes:
        event_time: Computes the event time of a row, in microseconds since 1970.
    """

    event_time: Column

    @classmethod
    def of(cls, rows: DataFrame, event_time: str | None, *, uid: str) -> Self:
        """Return the rule for rows with the schema of these.

        Args:
            rows: The rows.
            event_time: The column with the event time; None for the column that was passed to `withWatermark`.
            uid: The operator, for errors.

        Raises:
            InvalidRequestError: There is no such column, or it doesn't hold instants; or no column of the rows has
                a watermark, or several have one.
        """
        field = _field(rows.schema, event_time, uid=uid)
        column = column_named(field.name)
        if _is_window(field.dataType):
            column = column[_END_OF_WINDOW]
        elif not isinstance(field.dataType, TimestampType):
            message = (
                f"column {field.name!r}, the event time of operator {uid!r}, is of type "
                f"{field.dataType.simpleString()}; it must be a timestamp or a window of timestamps, as "
                "for withWatermark. Cast it to timestamp before withWatermark"
            )
            raise InvalidRequestError(message)
        return cls(F.unix_micros(column))

    def before(self, late_watermark: int) -> Column:
        """Return a condition for late rows; rows without an event time are never late.

        Args:
            late_watermark: `BatchTimes.late_watermark`.
        """
        if late_watermark == NO_WATERMARK:
            return F.expr("false")
        return F.coalesce(self.event_time <= F.lit(1000 * late_watermark), F.expr("false"))


def has_watermark(schema: StructType) -> bool:
    """Return whether a column has a watermark. Spark doesn't note it on a column computed from such a column."""
    return any(_DELAY in (field.metadata or {}) for field in schema)


def _field(schema: StructType, name: str | None, *, uid: str) -> StructField:
    if name is not None:
        if name not in schema.names:
            message = (
                f"rows of operator {uid!r} have no column {name!r} for event_time=; they have "
                f"{schema.names}"
            )
            raise InvalidRequestError(message)
        return schema[name]
    fields = [field for field in schema if _DELAY in (field.metadata or {})]
    if len(fields) == 1:
        return fields[0]
    if fields:
        names = [field.name for field in fields]
        message = f"rows of operator {uid!r} have several columns with a watermark, {names}"
        raise InvalidRequestError(
            f"{message}; name the column of their event time with event_time=, or drop the others"
        )
    message = (
        f"operator {uid!r} is in event time, but no column of its rows has a watermark: call "
        "withWatermark before writeStream. If a column was computed from the one with the watermark, name "
        "it with event_time=, or keep the one with the watermark"
    )
    raise InvalidRequestError(message)


def _is_window(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and _END_OF_WINDOW in kind.names
        and isinstance(kind[_END_OF_WINDOW].dataType, TimestampType)
    )
