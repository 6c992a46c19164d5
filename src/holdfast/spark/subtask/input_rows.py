"""The rows that come to a subtask, without the marks by which they found it."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import cast_rows


def marked_subtask(batch: pa.RecordBatch) -> int:
    """The number of the subtask that the rows of a batch belong to, by their marks.

    Rows of subtask i are marked by i, the row without data that each subtask gets by -(i + 1).
    """
    mark: int = batch.columns[-1][0].as_py()
    return mark if mark >= 0 else -mark - 1


class InputRows:
    """The rows of a subtask, counted, and in the schema that the state knows.

    Spark names the session's time zone in timestamps; ours is always UTC, so that state stays
    readable when that setting changes.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self.count = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        for rows in self._batches:
            if rows.num_rows:
                self.count += rows.num_rows
                return cast_rows(rows, self._schema)
        self.exhausted = True
        raise StopIteration


def without_marks(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that have data, without the column that says whose they are."""
    marks = batch.columns[-1]
    rows = batch.select(range(batch.num_columns - 1))
    if not batch.num_rows or pc.min(marks).as_py() >= 0:
        return rows
    return rows.filter(pc.greater_equal(marks, 0))
