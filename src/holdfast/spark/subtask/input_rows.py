"""The rows that come to a subtask, without the marks by which they found it."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import IncompatibleValueError, cast_rows
from holdfast.errors import InvalidRequestError


def marked_subtask(batch: pa.RecordBatch, parallelism: int) -> int:
    """The number of the subtask that the rows of a batch belong to, by their marks, which `Routing` makes.

    Rows of subtask i are marked by i, the row without data that each subtask gets by i - parallelism, and rows
    that are late by i - 2 * parallelism.
    """
    mark: int = batch.columns[-1][0].as_py()
    return mark % parallelism


class InputRows:
    """The rows of a subtask that aren't late, counted, and in the schema that the state knows.

    Spark names the session's time zone in timestamps; ours is always UTC, so that state stays
    readable when that setting changes.

    Args:
        batches: The rows with their marks.
        schema: The schema that the state knows.
        parallelism: Number of the operator's subtasks.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, parallelism: int
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._parallelism = parallelism
        self.count = 0
        self.late = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        for batch in self._batches:
            rows = self._without_marks(batch)
            if rows.num_rows:
                self.count += rows.num_rows
                try:
                    return cast_rows(rows, self._schema)
                except IncompatibleValueError as error:
                    message = f"rows don't fit the schema that the operator's state knows: {error}"
                    raise InvalidRequestError(message) from error
        self.exhausted = True
        raise StopIteration

    def _without_marks(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have data and aren't late, without the column that says whose they are."""
        marks = batch.columns[-1]
        rows = batch.select(range(batch.num_columns - 1))
        if not batch.num_rows or pc.min(marks).as_py() >= 0:
            return rows
        self.late += pc.sum(pc.less(marks, -self._parallelism)).as_py()
        return rows.filter(pc.greater_equal(marks, 0))
