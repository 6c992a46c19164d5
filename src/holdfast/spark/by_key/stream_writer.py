"""Writes what an operator gives for a stream: Spark's own writer, but for the function of `foreachBatch`."""

from collections.abc import Callable
from typing import Any, NoReturn, Self

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator


class KeyedStreamWriter:
    """Spark's `DataStreamWriter` of a stream by key. It writes by `foreachBatch` alone.

    Methods that aren't here are those of Spark's writer.

    Args:
        writer: Spark's writer of the rows that come to the operator.
        operator_with: Makes the operator with a sink.
    """

    def __init__(self, writer: Any, operator_with: Callable[[Sink], StatefulOperator]) -> None:
        self._writer = writer
        self._operator_with = operator_with
        self._has_sink = False

    def __getattr__(self, name: str) -> Any:
        known = getattr(self._writer, name)
        if not callable(known):
            return known

        def passed_on(*arguments: Any, **options: Any) -> Any:
            answer = known(*arguments, **options)
            return self if answer is self._writer else answer

        return passed_on

    def foreachBatch(self, func: Sink) -> Self:  # noqa: N802  # Spark's name
        """Give the rows of each batch that the operator yields to a function, with the batch id.

        The function has to read them in one action unless `keyed` was given `persist=True`, and to replace what it wrote for that id before.

        Raises:
            InvalidRequestError: The argument is no function.
        """
        self._writer.foreachBatch(self._operator_with(func))
        self._has_sink = True
        return self

    def start(self, path: str | None = None, format: str | None = None, **options: Any) -> Any:
        """Start the query. Arguments are those of Spark's `start`, without `path` and `format`.

        Raises:
            InvalidRequestError: There is no function of `foreachBatch`.
        """
        if path is not None or format is not None or not self._has_sink:
            _refuse("start")
        return self._writer.start(**options)

    def format(self, _source: str) -> NoReturn:
        """Refused: a checkpoint is made around `foreachBatch`. Raises `InvalidRequestError`."""
        _refuse("format")

    def foreach(self, _f: object) -> NoReturn:
        """Refused, as `format` is."""
        _refuse("foreach")

    def toTable(self, *_: object, **__: object) -> NoReturn:  # noqa: N802  # Spark's name
        """Refused, as `format` is."""
        _refuse("toTable")


def _refuse(method: str) -> NoReturn:
    message = (
        f"{method} of a stream by key needs foreachBatch: Holdfast makes a checkpoint around the function that "
        "writes a batch. Write by .foreachBatch(lambda rows, batch_id: rows.write…), and then .start()"
    )
    raise InvalidRequestError(message)
