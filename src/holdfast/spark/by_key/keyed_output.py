"""The output of a stream by key."""

from collections.abc import Callable
from functools import cached_property

from pyspark.sql import DataFrame

from holdfast.spark.by_key.stream_writer import KeyedStreamWriter
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator

MakeOperator = Callable[[Sink | None, IdleTicks | None], StatefulOperator]
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
        """The operator alone, to be given to `checkpointed` and applied to rows of batches.

        Where it has timers, `IdleTicks` has batches come for them.
        """
        return self._make(None, None)

    @property
    def writeStream(self) -> KeyedStreamWriter:  # noqa: N802  # Spark's name
        """A new writer for the stream: `.foreachBatch(write).option("checkpointLocation", …).start()`.

        Raises:
            InvalidRequestError: The rows are no stream.
        """
        idle_ticks = IdleTicks() if self._has_timers else None
        rows = self._rows if idle_ticks is None else idle_ticks.add_to(self._rows)
        return KeyedStreamWriter(rows.writeStream, lambda sink: self._make(sink, idle_ticks))
