"""List state in Arrow chunks: elements stay columnar from the stream to the file."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError, children_of
from holdfast.backends.serializers import Serializer
from holdfast.errors import InvalidRequestError

_MAX_PENDING = 1 << 13
"""Up to this number, single elements are still in the processor's cache when their columns are made."""

_MAX_PARTS = 8
"""From this number on, a chunk of columns of single elements is worth its overhead."""


class ListState:
    """A list of elements of one type, which is redistributed over subtasks when a job is rescaled.

    Elements are values: `get` returns copies of the added objects, and a change of either doesn't change the state.
    Chunks are never changed, only replaced, so a snapshot shares them with the running state.

    Attributes:
        name: The name of the state.
        type: Arrow type of an element, or of its bytes if elements are stored as bytes.
        serializer: The serializer of the elements.

    Source:
        Flink, ListState and PartitionableListState. Here `add_all` and `update` find a `None` before they change anything.
    """

    def __init__(self, name: str, serializer: Serializer, chunks: Iterable[pa.Array] = ()) -> None:
        self.name = name
        self.serializer = serializer
        self.type = serializer.storage_type
        self._chunks: list[pa.Array] = list(chunks)
        # Single elements, then columns of them, until a chunk of them is needed.
        self._pending: list[Any] = []
        self._parts: list[pa.Array] = []

    def __len__(self) -> int:
        """Number of elements."""
        return sum(map(len, self._chunks + self._parts)) + len(self._pending)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the elements as Python objects, in order."""
        return iter(self.get())

    def get(self) -> list[Any]:
        """Return all elements as Python objects.

        Raises:
            InvalidRequestError: Python has no object for an element, such as a date in the year
                10000; `to_arrow` returns it.
            CheckpointCorruptedError: Stored bytes are not an element of the type.
        """
        try:
            return self.serializer.decode(self.to_arrow())
        except InvalidRequestError as error:
            raise InvalidRequestError(f"list state {self.name!r}: {error.args[0]}") from error

    def to_arrow(self) -> pa.ChunkedArray:
        """Return all elements without a copy; as bytes, if elements are stored as bytes."""
        self._chunk_pending()
        return pa.chunked_array(self._chunks, type=self.type)

    def to_table(self) -> pa.Table:
        """Return all elements as rows, without a copy.

        Raises:
            InvalidRequestError: The elements are not structs.
        """
        if not pa.types.is_struct(self.type):
            message = f"state {self.name!r} has elements of type {self.type}; only structs are rows, use to_arrow"
            raise InvalidRequestError(message)
        self._chunk_pending()
        schema = pa.schema(list(self.type))
        batches = [
            pa.RecordBatch.from_arrays(children_of(chunk), schema=schema) for chunk in self._chunks
        ]
        return pa.Table.from_batches(batches, schema)

    def add(self, value: Any) -> None:
        """Append one element.

        Raises:
            InvalidRequestError: The element is `None`, or of another type. The state stays unchanged.
        """
        try:
            self._pending.append(self.serializer.encode_one(value))
            if len(self._pending) >= _MAX_PENDING:
                self._encode_pending()
                if len(self._parts) >= _MAX_PARTS:
                    self._chunk_pending()
        except IncompatibleValueError as error:
            raise self._error_for(error) from None

    def add_all(self, values: Elements) -> None:
        """Append elements.

        Raises:
            InvalidRequestError: An element is `None`, or of another type. The state stays unchanged.
        """
        chunks = self._as_chunks(values)
        self._chunk_pending()
        self._chunks += chunks

    def update(self, values: Elements) -> None:
        """Replace all elements; empty `values` clear the state.

        Raises:
            InvalidRequestError: An element is `None`, or of another type. The state stays unchanged.
        """
        chunks = self._as_chunks(values)
        self.clear()
        self._chunks = chunks

    def clear(self) -> None:
        """Remove all elements."""
        self._chunks = []
        self._pending = []
        self._parts = []

    def chunks(self) -> tuple[pa.Array, ...]:
        """Return the chunks of the elements, which a snapshot shares."""
        self._chunk_pending()
        return tuple(self._chunks)

    def _encode_pending(self) -> None:
        if self._pending:
            self._parts += self.serializer.column_of(self._pending)
            self._pending = []

    def _chunk_pending(self) -> None:
        self._encode_pending()
        if len(self._parts) > 1:
            with suppress(pa.ArrowInvalid):  # too large for one array
                self._parts = [pa.concat_arrays(self._parts)]
        self._chunks += self._parts
        self._parts = []

    def _as_chunks(self, values: Elements) -> list[pa.Array]:
        try:
            return self.serializer.encode(values)
        except IncompatibleValueError as error:
            raise self._error_for(error) from None

    def _error_for(self, error: IncompatibleValueError) -> InvalidRequestError:
        message = (
            f"elements don't fit list state {self.name!r} of type {self.serializer.name}: {error}"
        )
        return InvalidRequestError(message)
