"""Output rows of user code, one by one or a few at a time, as Arrow batches."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.backends.arrow import IncompatibleValueError, cast_rows, nullable_array
from holdfast.errors import InvalidRequestError

Row: TypeAlias = tuple[Any, ...] | Mapping[str, Any] | pa.RecordBatch | pa.Table
"""A row: a tuple in the order of the output's columns, or a mapping by their names. Or rows of Arrow."""

_BATCH_ROWS = 1 << 13


class OutputRows:
    """Collects output rows, in their order, until they are taken as batches.

    Attributes:
        names: The columns of the output.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.names = schema.names
        self._width = len(schema)
        self._tuples: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0  # of the batches

    @property
    def is_full(self) -> bool:
        """True if there are enough rows for a batch."""
        return self._rows + len(self._tuples) >= _BATCH_ROWS

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows. Raises `InvalidRequestError` if one does not have the columns of the output."""
        if isinstance(rows, str | Mapping | pa.RecordBatch | pa.Table) or not isinstance(
            rows, Iterable
        ):
            message = f"{type(rows).__name__} was returned instead of rows; yield each row, or return a list"
            raise InvalidRequestError(message)
        width, names = self._width, self.names
        for row in rows:
            if isinstance(row, tuple):
                if len(row) != width:
                    message = f"a row of {len(row)} values was yielded, and the output has columns {names}"
                    raise InvalidRequestError(message)
                self._tuples.append(row)
            elif isinstance(row, Mapping):
                if len(row) != width or any(name not in row for name in names):
                    raise InvalidRequestError(
                        f"a row with {list(row)} was yielded, and the output has columns {names}"
                    )
                self._tuples.append(tuple([row[name] for name in names]))
            elif isinstance(row, pa.RecordBatch):
                self._add_batch(row)
            elif isinstance(row, pa.Table):
                for batch in row.to_batches():
                    self._add_batch(batch)
            else:
                raise InvalidRequestError(
                    f"{type(row).__name__} was yielded; a row is a tuple or a dict, and several rows are "
                    "a pyarrow.RecordBatch or pyarrow.Table"
                )

    def take(self) -> list[pa.RecordBatch]:
        """Return all rows in batches, and forget them. Raises `InvalidRequestError` for a value of another type."""
        self._pack()
        batches, self._batches, self._rows = self._batches, [], 0
        if len(batches) < 2:
            return batches
        rows = pa.Table.from_batches(batches, self._schema).combine_chunks()
        return list(rows.to_batches())

    def _add_batch(self, batch: pa.RecordBatch) -> None:
        self._pack()
        try:
            self._batches.append(cast_rows(batch, self._schema))
        except IncompatibleValueError as error:
            message = f"rows were yielded that don't fit the output: {error}"
            raise InvalidRequestError(message) from None
        self._rows += batch.num_rows

    def _pack(self) -> None:
        """Convert tuples to a batch."""
        tuples, self._tuples = self._tuples, []
        if not tuples:
            return
        arrays = []
        for values, field in zip(zip(*tuples, strict=True), self._schema, strict=True):
            try:
                arrays.append(nullable_array(values, field.type))
            except IncompatibleValueError as error:
                message = f"rows were yielded that don't fit column {field.name!r}: {error}"
                raise InvalidRequestError(message) from None
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(tuples)
