"""Event time: the times of a batch, late rows, and batches for timers of idle queries.

Spark computes the watermark; here it is read from Spark's log of the batch. `IdleTicks` asks Spark for batches when
timers are due, through a source in the query's plan (`pyspark_holdfast_ticks`, or `file_ticks` with PySpark 3.5). All
times are in ms since 1970.
"""

import tempfile
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

import pyspark_holdfast_ticks as ticks
from holdfast.backends.functions import NO_WATERMARK, BatchTimes
from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.spark import file_ticks
from holdfast.spark.compat import IS_PYSPARK_4
from holdfast.spark.sessions import column_named, register_source
from holdfast.spark_progress import SparkProgress, logged_times

NextTimers = tuple[int | None, int | None]
"""The earliest pending timers of event time and of processing time; None where no timer is pending."""

NO_TIMERS: NextTimers = (None, None)

AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Makes `availableNow` respect rate limits if one of the sources doesn't support this trigger."""

USES_FILES = not IS_PYSPARK_4
"""True if the source of idle ticks is one of files, because this PySpark has no data sources in Python."""

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"

_DELAY = "spark.watermarkDelayMs"
"""The key of the delay in the metadata of a column that was passed to `withWatermark`."""

_END_OF_WINDOW = "end"


def times_of_batch(offsets: str, last: SparkProgress | None) -> BatchTimes:
    """Return the times of a batch. All operators of a query share them, and a repeated batch has the same.

    Neither is lower than in the checkpoint before, even if this driver's clock is slow: expired state stays
    expired, and a fired timer stays in the past.

    Args:
        offsets: Spark's offset log entry of the batch, which is written before the batch runs.
        last: Spark's side of the checkpoint that the batch resumes from; None without one. Under a new
            checkpointLocation Spark's watermark begins at 0; state restored from a savepoint has seen a
            higher one, which holds until Spark's has passed it.
    """
    batch_time, watermark = logged_times(offsets)
    batch_time_before, before = (0, 0) if last is None else last.times
    return BatchTimes(
        max(batch_time, batch_time_before),
        _watermark_or_none_yet(max(watermark, before)),
        _watermark_or_none_yet(before),
    )


def earliest_timers(timers: Iterable[NextTimers]) -> NextTimers:
    """Return the earliest timers of several subtasks."""
    event, processing = zip(NO_TIMERS, *timers, strict=True)
    return (
        min((time for time in event if time is not None), default=None),
        min((time for time in processing if time is not None), default=None),
    )


def is_due(next_event: int | None, next_processing: int | None, times: BatchTimes) -> bool:
    """Return whether a timer that was pending before a batch fires in it."""
    return (next_event is not None and next_event <= times.watermark) or (
        next_processing is not None and next_processing <= times.batch_time
    )


def next_batch_time(
    next_event: int | None, next_processing: int | None, times: BatchTimes, *, has_input: bool
) -> int | None:
    """Return the time at which timers need the next batch; 0 for at once, None if no timer needs one.

    Spark advances its watermark after a batch, by the rows of that batch, and publishes it only when it plans the
    next one. So after a batch with input, a pending event-time timer needs a batch at once; if the timer is not due
    there, that batch does nothing.

    Args:
        next_event: The earliest event-time timer pending after a batch.
        next_processing: The earliest processing-time timer pending after it.
        times: The times of that batch.
        has_input: Whether a source had new data in that batch, which can advance the watermark.
    """
    if next_event is not None and (has_input or next_event <= times.watermark):
        return 0
    if next_processing is not None and next_processing <= times.batch_time:
        return 0
    return next_processing


def _watermark_or_none_yet(logged: int) -> int:
    """Translate the 0 that Spark logs until it has seen an event time after 1970; it logs no earlier watermark."""
    return logged or NO_WATERMARK


@dataclass(frozen=True, slots=True)
class IdleTicks:
    """Batches of a query when timers are due and its sources have no new rows.

    Pass the query's rows through `add_to`, from its first batch on, and give the same object to `stateful_query` or
    `stateful`, which then requests batches after each batch. An object serves one query.

    Attributes:
        name: Distinguishes the query's requests from those of other queries on the driver's host.
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def add_to(self, rows: DataFrame) -> DataFrame:
        """Add a source to a stream that has no rows, but a batch whenever one is requested.

        The columns, their order and Spark's watermark metadata stay. Call `withWatermark` first.

        Raises:
            InvalidRequestError: The rows are not a stream, or Spark's Python data sources can't run with the
                session's number of rows per batch.
        """
        if not rows.isStreaming:
            raise InvalidRequestError("idle ticks need a stream, got a DataFrame; use readStream")
        columns = StructType(
            [StructField(each.name, each.dataType, each.nullable) for each in rows.schema]
        )
        session = rows.sparkSession
        if USES_FILES:
            return rows.union(file_ticks.load(session, self.name, columns))
        check_rows_per_batch(session)
        register_source(session, ticks.DefaultSource)
        if not ticks.SUPPORTS_AVAILABLE_NOW:
            # Otherwise one source in Python makes Spark 4.1 read all sources to their end in one batch, ignoring
            # their rate limits.
            session.conf.set(AVAILABLE_NOW_WRAPPER, "true")
        stream = (
            session.readStream.format(ticks.FORMAT).schema(columns).option(ticks.NAME, self.name)
        )
        if hasattr(session, "_jsparkSession"):
            # Batches run in this process, whose temporary directory may differ from that of the source's process.
            # With Spark Connect both processes are started by the server.
            stream = stream.option(ticks.DIRECTORY, tempfile.gettempdir())
        return rows.union(stream.load())

    def ask(self, at_ms: int | None) -> None:
        """Request the next batch at the latest at a time, replacing an earlier request; None cancels that.

        A time in the past means at once. Call it in the process that runs batches.

        Raises:
            StorageUnavailableError: The request can't be written.
        """
        requests = file_ticks if USES_FILES else ticks
        try:
            if at_ms is None:
                requests.cancel_request(self.name)
            else:
                requests.request_batch(self.name, at_ms)
        except OSError as error:
            message = f"can't ask Spark for a batch: writing the request failed ({error})"
            raise StorageUnavailableError(message, str(requests.request_file(self.name))) from error

    def find_source(self, offsets: Sequence[str], execution: Any) -> int:
        """Return the index of the source of idle ticks.

        Args:
            offsets: The offsets of the query's sources in a batch.
            execution: The query in Spark's JVM; None with Spark Connect.

        Raises:
            InvalidRequestError: The query's rows don't come through `add_to`.
        """
        if USES_FILES:
            index = file_ticks.find_source(self.name, execution)
        else:
            indexes = (i for i, offset in enumerate(offsets) if ticks.is_tick_offset(offset))
            index = next(indexes, None)
        if index is None:
            raise InvalidRequestError(
                "the query has idle_ticks for its timers, but its rows have no source for them; start it "
                "with the rows that IdleTicks.add_to(rows) returns"
            )
        return index


def check_rows_per_batch(session: SparkSession) -> None:
    """Refuse a session in which Spark's Python data sources fail on an assertion that doesn't name the setting."""
    rows = session.conf.get(_ROWS_PER_BATCH, "10000")
    if int(rows or 0) < 1:
        raise InvalidRequestError(
            f"{_ROWS_PER_BATCH} must be >= 1 for Spark's Python data sources, which this uses, got {rows}; for no limit "
            "set a large number, such as 1000000"
        )


def is_tick_only(sources: Sequence[str], before: Sequence[str] | None, ticks: int) -> bool:
    """Return whether a batch was run only because it was requested: no other source has new data.

    Args:
        sources: The offsets of the sources in the batch.
        before: Their offsets in the batch before; None in the first batch.
        ticks: The index of the source of idle ticks.
    """

    def of_data(offsets: Sequence[str]) -> list[str]:
        return [offset for index, offset in enumerate(offsets) if index != ticks]

    return before is not None and of_data(sources) == of_data(before)


def include_requests(execution: Any, source: int) -> None:
    """Make a query with `availableNow` run the batches that were requested after it began.

    Such a query reads each source up to the offset that the source had when the query began. This updates the offset.
    From PySpark 4.2 on a source in Python has no such offset.

    Args:
        execution: The query in Spark's JVM.
        source: The index of the source of idle ticks.
    """
    if execution.trigger().toString() != "AvailableNowTrigger":
        return
    ticks = execution.sources().apply(source)
    streams = execution.uniqueSources().keysIterator()
    while streams.hasNext():
        stream = streams.next()
        is_wrapper = stream.getClass().getSimpleName().endswith("Wrapper")
        if ticks.equals(stream.delegate() if is_wrapper else stream):
            stream.prepareForTriggerAvailableNow()


@dataclass(frozen=True, slots=True)
class LateRows:
    """A rule for the late rows of a batch.

    Attributes:
        event_time: Computes the event time of a row, in microseconds since 1970.
    """

    event_time: Column

    @classmethod
    def of(cls, rows: DataFrame, event_time: str | None, *, uid: str) -> Self:
        """Return the rule for rows with the schema of these, by a column; None for that of `withWatermark`.

        Raises:
            InvalidRequestError: There is no such column, or it doesn't hold instants; or no column of the rows has
                a watermark, or several have one.
        """
        field = _field(rows.schema, event_time, uid=uid)
        column = column_named(field.name)
        if _is_window(field.dataType):
            column = column[_END_OF_WINDOW]
        elif not isinstance(field.dataType, TimestampType):
            raise InvalidRequestError(
                f"column {field.name!r}, the event time of operator {uid!r}, is of type "
                f"{field.dataType.simpleString()}; it must be a timestamp or a window of timestamps, as "
                "for withWatermark. Cast it to timestamp before withWatermark"
            )
        return cls(F.unix_micros(column))

    def before(self, late_watermark: int) -> Column:
        """Return a condition for late rows, by `BatchTimes.late_watermark`; rows without a time are never late."""
        if late_watermark == NO_WATERMARK:
            return F.expr("false")
        return F.coalesce(self.event_time <= F.lit(1000 * late_watermark), F.expr("false"))


def micros_of(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column of timestamps as microseconds since 1970."""
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def ceil_ms(micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return microseconds as milliseconds, rounded up."""
    milliseconds: npt.NDArray[np.int64] = -np.floor_divide(-micros, 1000)
    return milliseconds


def has_watermark(schema: StructType) -> bool:
    """Return whether a column has a watermark. Spark doesn't note it on a column computed from such a column."""
    return any(_DELAY in (field.metadata or {}) for field in schema)


def watermark_delay_ms(field: StructField) -> int | None:
    """Return the delay of the watermark that a column has; None if it has none."""
    delay: int | None = (field.metadata or {}).get(_DELAY)
    return delay


def _field(schema: StructType, name: str | None, *, uid: str) -> StructField:
    if name is not None:
        if name not in schema.names:
            raise InvalidRequestError(
                f"rows of operator {uid!r} have no column {name!r} for event_time=; they have "
                f"{schema.names}"
            )
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
    raise InvalidRequestError(
        f"operator {uid!r} is in event time, but no column of its rows has a watermark: call "
        "withWatermark before writeStream. If a column was computed from the one with the watermark, name "
        "it with event_time=, or keep the one with the watermark"
    )


def _is_window(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and _END_OF_WINDOW in kind.names
        and isinstance(kind[_END_OF_WINDOW].dataType, TimestampType)
    )
