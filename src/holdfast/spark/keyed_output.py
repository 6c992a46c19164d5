"""The output of a stream by key: a stream to write, or the operator."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, Self

from pyspark.sql import DataFrame

from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import settings_of
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.operators import Operator, Sink
from holdfast.spark.query import StatefulOperator, StatefulQuery
from holdfast.spark.settings import check_settings


class KeyedOutput:
    """The rows that an operator yields for the rows of a stream.

    Attributes:
        rows: The stream of the operator's input; of connected streams the rows of both, to which `operator` is applied.
    """

    def __init__(self, rows: DataFrame, operator: Operator) -> None:
        self.rows = rows
        self._operator = operator

    @cached_property
    def operator(self) -> StatefulOperator:
        """The operator without the stream, for `stateful_query`, where it is applied to rows of batches.

        If it has timers, `IdleTicks` runs batches for them.
        """
        return StatefulOperator(self._operator)

    def side_output(self, name: str) -> DataFrame:
        """Return the rows of a side output, from the same pass as the main output.

        Call it in the function that is passed to `foreachBatch`. With Spark Connect this object can't be sent to the
        server: assign `operator` to a variable, and use that.

        Args:
            name: A name of `side_outputs`, or "late" for `late_rows`.

        Raises:
            InvalidRequestError: The operator has no such side output, or this is not called in a batch.
        """
        return self.operator.side_output(name)

    @property
    def writeStream(self) -> "KeyedStreamWriter":  # noqa: N802  # Spark's name
        """A new writer for the stream: `.foreachBatch(write).option("checkpointLocation", …).start()`.

        Raises:
            InvalidRequestError: The rows are not a stream.
        """
        idle_ticks = IdleTicks() if self._operator.function.time_mode != "none" else None
        rows = self.rows if idle_ticks is None else idle_ticks.add_to(self.rows)
        return KeyedStreamWriter(
            rows, lambda sink: StatefulOperator(replace(self._operator, sink=sink), idle_ticks)
        )


class KeyedStreamWriter:
    """Spark's `DataStreamWriter` for a stream by key, which only supports `foreachBatch`.

    Other methods are those of Spark's writer.

    Args:
        rows: The operator's input rows.
        operator_with: Makes the operator with a sink.
    """

    def __init__(self, rows: DataFrame, operator_with: Callable[[Sink], StatefulQuery]) -> None:
        self._session = rows.sparkSession
        self._writer: Any = rows.writeStream
        self._operator_with = operator_with
        self._has_sink = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._writer, name)
        if not callable(attribute):
            return attribute

        def delegate(*arguments: Any, **options: Any) -> Any:
            result = attribute(*arguments, **options)
            return self if result is self._writer else result

        return delegate

    def foreachBatch(self, func: Sink) -> Self:  # noqa: N802  # Spark's name
        """Call a function with the operator's output rows of each batch, and the batch id.

        The function must read them in one action unless `keyed` has `persist=True`, and replace its earlier output of
        that id.

        Raises:
            InvalidRequestError: The argument is not a function.
        """
        self._writer.foreachBatch(self._operator_with(func))
        self._has_sink = True
        return self

    def start(self, path: str | None = None, format: str | None = None, **options: Any) -> Any:
        """Start the query. Arguments are those of Spark's `start`, without `path` and `format`.

        Raises:
            InvalidRequestError: `foreachBatch` was not called, or a setting of the session is not valid.
        """
        if path is not None or format is not None or not self._has_sink:
            _refuse("start")
        check_settings(settings_of(self._session))
        return self._writer.start(**options)

    def format(self, _source: str) -> NoReturn:
        """Not supported: a checkpoint is made around `foreachBatch`. Raises `InvalidRequestError`."""
        _refuse("format")

    def foreach(self, _f: object) -> NoReturn:
        """Not supported, as `format`."""
        _refuse("foreach")

    def toTable(self, *_: object, **__: object) -> NoReturn:  # noqa: N802  # Spark's name
        """Not supported, as `format`."""
        _refuse("toTable")


def _refuse(method: str) -> NoReturn:
    raise InvalidRequestError(
        f"{method} of a stream by key needs foreachBatch: Holdfast makes a checkpoint around the function that "
        "writes a batch. Call .foreachBatch(lambda rows, batch_id: rows.write…), and then .start()"
    )
