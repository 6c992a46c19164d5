"""Batches that come for timers when no rows bring them."""

import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.spark.sessions import register_source
from pyspark_holdfast_wake import (
    DIRECTORY,
    FORMAT,
    NAME,
    SUPPORTS_AVAILABLE_NOW,
    DefaultSource,
    ask,
    file_of,
    forget,
    is_of_wake_ups,
)

AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Makes `availableNow` keep to rate limits beside a source that doesn't know this trigger."""

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True, slots=True)
class WakeUps:
    """Has Spark run batches of a query when timers are due and its sources have no new rows.

    The rows of the query have to come through `beside`, from its first batch on, and `stateful_query` or
    `stateful` must be given the same object, which then asks for batches behind each batch. It serves one query.

    Attributes:
        name: Tells the query's requests from those of other queries on the driver's host.
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def beside(self, rows: DataFrame) -> DataFrame:
        """The rows of a stream, with a source beside them that has none, but batches when they are asked for.

        Columns, their order and what Spark notes of their watermark stay. `withWatermark` has to come first.

        Raises:
            InvalidRequestError: The rows are no stream, or the session's setting for rows per batch is one that Spark's
                Python data sources don't run with.
        """
        if not rows.isStreaming:
            raise InvalidRequestError("only batches of a stream can be asked for; use readStream")
        columns = [StructField(each.name, each.dataType, each.nullable) for each in rows.schema]
        session = rows.sparkSession
        check_rows_per_batch(session)
        register_source(session, DefaultSource)
        if not SUPPORTS_AVAILABLE_NOW:
            # Otherwise one source in Python makes Spark 4.1 read all sources to their end in one batch, whatever
            # their rate limits are.
            session.conf.set(AVAILABLE_NOW_WRAPPER, "true")
        stream = (
            session.readStream.format(FORMAT).schema(StructType(columns)).option(NAME, self.name)
        )
        if hasattr(session, "_jsparkSession"):
            # Batches run in this process, whose directory for temporary files Spark's need not share. With
            # Spark Connect they run in a process that Spark starts, as that of the source.
            stream = stream.option(DIRECTORY, tempfile.gettempdir())
        return rows.union(stream.load())

    def ask(self, at_ms: int | None) -> None:
        """Ask for the next batch, in place of what was asked for before. Call it where batches run.

        Args:
            at_ms: When it has to come at the latest, in milliseconds since 1970; a time in the past means at
                once, None that nothing needs it.

        Raises:
            StorageUnavailableError: The request can't be written.
        """
        try:
            if at_ms is None:
                forget(self.name)
            else:
                ask(self.name, at_ms)
        except OSError as error:
            message = f"can't ask Spark for a batch, for which a file is needed ({error})"
            raise StorageUnavailableError(message, str(file_of(self.name))) from error

    def check_beside(self, sources: Sequence[str]) -> None:
        """Refuse a query whose rows don't come through `beside`.

        Args:
            sources: The offsets of the query's sources in a batch.

        Raises:
            InvalidRequestError: None of the sources is one of wake-ups.
        """
        if not any(map(is_of_wake_ups, sources)):
            message = (
                "the query is to run batches for its timers, and has no source that Spark could be asked "
                "by; start it over the rows that WakeUps.beside(...) gives"
            )
            raise InvalidRequestError(message)


def check_rows_per_batch(session: SparkSession) -> None:
    """Refuse a session in which Spark's Python data sources fail, by an assertion and without the name of the setting.

    Raises:
        InvalidRequestError: `spark.sql.execution.arrow.maxRecordsPerBatch` is not positive.
    """
    rows = session.conf.get(_ROWS_PER_BATCH, "10000")
    if int(rows or 0) < 1:
        message = (
            f"{_ROWS_PER_BATCH} is {rows}, and Spark's Python data sources, which this needs, run with positive numbers "
            "only; set a large one in place of no limit, such as 1000000"
        )
        raise InvalidRequestError(message)


def wakes_only(sources: Sequence[str], before: Sequence[str] | None) -> bool:
    """Whether a batch has come only because it was asked for: all other sources are where they were.

    Args:
        sources: The offsets of the sources in the batch.
        before: Their offsets in the batch before; None if there was none.
    """
    return before is not None and _others(sources) == _others(before)


def _others(sources: Sequence[str]) -> list[str]:
    return [offset for offset in sources if not is_of_wake_ups(offset)]
