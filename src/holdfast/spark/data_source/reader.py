"""Reads the rows of a view in tasks of Spark."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.backends.inspection import StatePart
from holdfast.errors import InvalidRequestError
from holdfast.spark.data_source.spark_types import for_spark
from holdfast.spark.data_source.view import StateView


class StatePartition(InputPartition):
    """The part of a state that one task reads.

    Attributes:
        part: A part of the state; None if the view is a small table, which has all rows itself.
    """

    def __init__(self, part: StatePart | None) -> None:
        super().__init__(None)
        self.part = part


class StateReader(DataSourceReader):
    """Reads the rows of a view.

    Args:
        view: The state to read; the driver looked it up, once for all tasks.
        schema: The columns that Spark takes, which must be the view's.

    Raises:
        InvalidRequestError: The columns are others.
    """

    def __init__(self, view: StateView, schema: StructType) -> None:
        if schema != view.spark_schema:
            message = "columns are those of the state; leave schema(...) out, and cast afterwards"
            raise InvalidRequestError(message)
        self._view = view
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each subtask, several where its state is large."""
        state = self._view.state
        return [StatePartition(part) for part in (state.split() if state is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; every byte of them was verified."""
        self._view.stores.use()
        part = getattr(partition, "part", None)
        batches: Iterator[pa.RecordBatch] = iter(())
        if self._view.table is not None:
            batches = iter(self._view.table.to_batches())
        elif self._view.state is not None and part is not None:
            batches = self._view.state.batches([part])
        for batch in batches:
            yield for_spark(batch, self._schema)
