"""Rows that come too late: their event time is not behind the watermark of the batch before."""

from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from holdfast.backends.functions import NO_WATERMARK
from holdfast.errors import InvalidRequestError

_DELAY = "spark.watermarkDelayMs"
"""The key under which Spark notes the delay in the metadata of a column that `withWatermark` was given."""

_END_OF_WINDOW = "end"


@dataclass(frozen=True, slots=True)
class LateRows:
    """Which rows of a batch are late.

    Attributes:
        event_time: Computes the event time of a row, in microseconds since 1970.
    """

    event_time: Column

    @classmethod
    def of(cls, rows: DataFrame, event_time: str | None, *, uid: str) -> Self:
        """The rule for late rows, for rows with the schema of these.

        Args:
            rows: The rows.
            event_time: The column with the event time; None for the column that `withWatermark` was given.
            uid: The operator, for errors.

        Raises:
            InvalidRequestError: There is no such column, or it has no instants; or Spark has a watermark of
                no column of the rows, or of several.
        """
        field = _field(rows.schema, event_time, uid=uid)
        name = field.name.replace("`", "``")
        column = F.col(f"`{name}`")
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
        """Whether a row is late; rows without an event time never are.

        Args:
            late_watermark: `BatchTimes.late_watermark`.
        """
        if late_watermark == NO_WATERMARK:
            return F.expr("false")
        return F.coalesce(self.event_time <= F.lit(1000 * late_watermark), F.expr("false"))


def has_watermark(schema: StructType) -> bool:
    """Whether a column has a watermark; if it was computed from such a column, it has none, though the rows have."""
    return any(_DELAY in (field.metadata or {}) for field in schema)


def _field(schema: StructType, name: str | None, *, uid: str) -> StructField:
    if name is not None:
        if name not in schema.names:
            message = (
                f"rows of operator {uid!r} have no column {name!r}, which is to be their event time; they "
                f"have {schema.names}"
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
            f"{message}; name that of their event time by event_time=, or drop the others"
        )
    message = (
        f"operator {uid!r} is in event time, and no column of its rows has a watermark: call "
        "withWatermark before writeStream. If a column was computed from the one with the watermark, name "
        "it by event_time=, or keep the one with the watermark"
    )
    raise InvalidRequestError(message)


def _is_window(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and _END_OF_WINDOW in kind.names
        and isinstance(kind[_END_OF_WINDOW].dataType, TimestampType)
    )
