"""Batches for timers that are due while a query's sources have no new rows."""

import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.spark.sessions import register_source
from pyspark_holdfast_ticks import (
    DIRECTORY,
    FORMAT,
    NAME,
    SUPPORTS_AVAILABLE_NOW,
    DefaultSource,
    cancel_request,
    is_tick_offset,
    request_batch,
    request_file,
)

AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Makes `availableNow` respect rate limits if one of the sources doesn't support this trigger."""

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


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
        columns = [StructField(each.name, each.dataType, each.nullable) for each in rows.schema]
        session = rows.sparkSession
        check_rows_per_batch(session)
        register_source(session, DefaultSource)
        if not SUPPORTS_AVAILABLE_NOW:
            # Otherwise one source in Python makes Spark 4.1 read all sources to their end in one batch, ignoring
            # their rate limits.
            session.conf.set(AVAILABLE_NOW_WRAPPER, "true")
        stream = (
            session.readStream.format(FORMAT).schema(StructType(columns)).option(NAME, self.name)
        )
        if hasattr(session, "_jsparkSession"):
            # Batches run in this process, whose temporary directory may differ from that of the source's process.
            # With Spark Connect both processes are started by the server.
            stream = stream.option(DIRECTORY, tempfile.gettempdir())
        return rows.union(stream.load())

    def ask(self, at_ms: int | None) -> None:
        """Request the next batch, replacing an earlier request. Call it in the process that runs batches.

        Args:
            at_ms: The latest time for it, in milliseconds since 1970; a time in the past means at once, None
                cancels the request.

        Raises:
            StorageUnavailableError: The request can't be written.
        """
        try:
            if at_ms is None:
                cancel_request(self.name)
            else:
                request_batch(self.name, at_ms)
        except OSError as error:
            message = f"can't ask Spark for a batch: writing the request failed ({error})"
            raise StorageUnavailableError(message, str(request_file(self.name))) from error

    def check_sources(self, sources: Sequence[str]) -> None:
        """Refuse a query whose rows don't come through `add_to`.

        Args:
            sources: The offsets of the query's sources in a batch.

        Raises:
            InvalidRequestError: No source is one that `add_to` adds.
        """
        if not any(map(is_tick_offset, sources)):
            message = (
                "the query has idle_ticks for its timers, but its rows have no source for them; start it "
                "with the rows that IdleTicks.add_to(rows) returns"
            )
            raise InvalidRequestError(message)


def check_rows_per_batch(session: SparkSession) -> None:
    """Refuse a session in which Spark's Python data sources fail on an assertion that doesn't name the setting.

    Raises:
        InvalidRequestError: `spark.sql.execution.arrow.maxRecordsPerBatch` is not positive.
    """
    rows = session.conf.get(_ROWS_PER_BATCH, "10000")
    if int(rows or 0) < 1:
        message = (
            f"{_ROWS_PER_BATCH} must be >= 1 for Spark's Python data sources, which this uses, got {rows}; for no limit "
            "set a large number, such as 1000000"
        )
        raise InvalidRequestError(message)


def is_tick_only(sources: Sequence[str], before: Sequence[str] | None) -> bool:
    """Return whether a batch was run only because it was requested: no other source has new data.

    Args:
        sources: The offsets of the sources in the batch.
        before: Their offsets in the batch before; None in the first batch.
    """
    return before is not None and _offsets_of_data(sources) == _offsets_of_data(before)


def _offsets_of_data(sources: Sequence[str]) -> list[str]:
    return [offset for offset in sources if not is_tick_offset(offset)]
