"""The output of a stream by key."""

from collections.abc import Callable
from functools import cached_property

from pyspark.sql import DataFrame

from holdfast.spark.by_key.stream_writer import KeyedStreamWriter
from holdfast.spark.event_time import WakeUps
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator

MakeOperator = Callable[[Sink | None, WakeUps | None], StatefulOperator]
"""Makes an operator with a sink, and what wakes it; both may be missing."""


class KeyedOutput:
    """The rows that an operator yields for the rows of a stream.

    Args:
        rows: The stream.
        has_timers: Whether batches have to come for timers when no rows do.
        make: Makes the operator.
    """

    def __init__(self, rows: DataFrame, *, has_timers: bool, make: MakeOperator) -> None:
        self._rows = rows
        self._has_timers = has_timers
        self._make = make

    @cached_property
    def operator(self) -> StatefulOperator:
        """The operator alone, to be given to `stateful_query` and applied to rows of batches.

        Where it has timers, `WakeUps` has batches come for them.
        """
        return self._make(None, None)

    @property
    def writeStream(self) -> KeyedStreamWriter:  # noqa: N802  # Spark's name
        """A new writer for the stream: `.foreachBatch(write).option("checkpointLocation", …).start()`.

        Raises:
            InvalidRequestError: The rows are no stream.
        """
        wake_ups = WakeUps() if self._has_timers else None
        rows = self._rows if wake_ups is None else wake_ups.beside(self._rows)
        return KeyedStreamWriter(rows.writeStream, lambda sink: self._make(sink, wake_ups))
