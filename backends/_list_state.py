"""List state in Arrow chunks: what is in it stays columnar from the stream to the file."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from holdfast.backends._casts import MisfitError
from holdfast.backends._elements import Elements, chunks_of, scalar_of
from holdfast.errors import InvalidRequestError


class ListState:
    """A list of elements of one Arrow type, spread over subtasks when a job is rescaled.

    Chunks are never changed, only replaced, so a snapshot shares them with the running state.

    Source:
        Flink, ListState and PartitionableListState. Here a `None` inside `add_all` or `update`
        is found before anything is changed.
    """

    def __init__(self, name: str, element_type: pa.DataType) -> None:
        self._name = name
        self._type = element_type
        self._chunks: list[pa.Array] = []
        self._pending: list[pa.Scalar] = []  # single elements, until somebody needs them in a chunk

    @property
    def name(self) -> str:
        """The name that it is registered by."""
        return self._name

    @property
    def type(self) -> pa.DataType:
        """Arrow type of an element."""
        return self._type

    def __len__(self) -> int:
        """Number of elements."""
        return sum(map(len, self._chunks)) + len(self._pending)

    def __iter__(self) -> Iterator[Any]:
        """The elements as Python objects, in order."""
        return iter(self.get())

    def get(self) -> list[Any]:
        """All elements as Python objects; an empty list if there are none."""
        return list(self.to_arrow().to_pylist())

    def to_arrow(self) -> pa.ChunkedArray:
        """All elements, without a copy."""
        self._chunk_pending()
        return pa.chunked_array(self._chunks, type=self._type)

    def to_table(self) -> pa.Table:
        """All elements as rows, without a copy.

        Raises:
            InvalidRequestError: The elements are not structs.
        """
        if not pa.types.is_struct(self._type):
            message = f"state {self._name!r} has elements of type {self._type}, which are no rows"
            raise InvalidRequestError(message)
        self._chunk_pending()
        schema = pa.schema([self._type.field(i) for i in range(self._type.num_fields)])
        batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in self._chunks]
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)

    def add(self, value: Any) -> None:
        """Append one element.

        Raises:
            InvalidRequestError: It is None or of another type; the state is unchanged then.
        """
        try:
            self._pending.append(scalar_of(value, self._type))
        except MisfitError as error:
            raise self._refused(error) from None

    def add_all(self, values: Elements) -> None:
        """Append elements.

        Raises:
            InvalidRequestError: One is None or of another type; the state is unchanged then.
        """
        chunks = self._as_chunks(values)
        self._chunk_pending()
        self._chunks += chunks

    def update(self, values: Elements) -> None:
        """Replace all elements; empty `values` clear the state.

        Raises:
            InvalidRequestError: One is None or of another type; the state is unchanged then.
        """
        self._chunks = self._as_chunks(values)
        self._pending = []

    def clear(self) -> None:
        """Remove all elements."""
        self._chunks = []
        self._pending = []

    def chunks(self) -> tuple[pa.Array, ...]:
        """The elements as they are held; what a snapshot shares."""
        self._chunk_pending()
        return tuple(self._chunks)

    def _chunk_pending(self) -> None:
        if self._pending:
            self._chunks.append(pa.array(self._pending, type=self._type))
            self._pending = []

    def _as_chunks(self, values: Elements) -> list[pa.Array]:
        try:
            return chunks_of(values, self._type)
        except MisfitError as error:
            raise self._refused(error) from None

    def _refused(self, error: MisfitError) -> InvalidRequestError:
        message = f"elements don't fit list state {self._name!r} of type {self._type}: {error}"
        return InvalidRequestError(message)
