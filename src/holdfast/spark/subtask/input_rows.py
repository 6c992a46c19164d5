"""The rows of a task by subtask, and those of a subtask without the marks and the late rows."""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import IncompatibleValueError, cast_rows
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import SideRows


def rows_by_subtask(
    batches: Iterable[pa.RecordBatch], parallelism: int
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each subtask with its rows, which have to be read before the next subtask is requested.

    The rows of a subtask follow each other, whose marks are in the last column. Batches may have rows of several.
    """
    parts = (part for batch in batches for part in _parts_of_subtasks(batch, parallelism))
    for subtask, of_subtask in groupby(parts, key=itemgetter(0)):
        yield subtask, map(itemgetter(1), of_subtask)


def _parts_of_subtasks(
    batch: pa.RecordBatch, parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    subtasks = batch.columns[-1].to_numpy() % parallelism
    starts = np.flatnonzero(subtasks[1:] != subtasks[:-1]) + 1
    for start, end in pairwise([0, *starts.tolist(), batch.num_rows]):
        yield int(subtasks[start]), batch.slice(start, end - start)


class InputRows:
    """The rows of a subtask that aren't late, counted, without marks, in the schema of the operator's state.

    Spark names the session's time zone in timestamps; here it is always UTC, so that state stays readable when that
    setting changes.

    Attributes:
        late_output: Receives the late rows; None if they are only counted.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, parallelism: int
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._parallelism = parallelism
        self.count = 0
        self.late = 0
        self.late_output: SideRows | None = None
        self.is_exhausted = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            rows = self._without_marks(batch)
            if rows.num_rows:
                self.count += rows.num_rows
                try:
                    yield cast_rows(rows, self._schema)
                except IncompatibleValueError as error:
                    message = f"rows don't fit the schema that the operator's state knows: {error}"
                    raise InvalidRequestError(message) from error
        self.is_exhausted = True

    def _without_marks(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have data and aren't late, without the column of marks."""
        marks = batch.columns[-1]
        rows = batch.select(range(batch.num_columns - 1))
        if not batch.num_rows or pc.min(marks).as_py() >= 0:
            return rows
        is_late = pc.less(marks, -self._parallelism)
        self.late += pc.sum(is_late).as_py()
        if self.late_output is not None:
            # The rows of an initial state have columns that no late row needs.
            late = rows.filter(is_late)
            self.late_output.emit(late.select(self.late_output.names))
        return rows.filter(pc.greater_equal(marks, 0))
