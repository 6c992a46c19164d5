"""What every serializer can do."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from holdfast.backends._elements import Elements
from holdfast.backends._serializers._compatibility import Compatibility
from holdfast.backends._serializers._stored import StoredSerializer


class Serializer(ABC):
    """Makes an Arrow column of elements and elements of it, many at a time.

    What is in a column no longer depends on the objects that it was made of.

    Source:
        Flink, TypeSerializer, which does so one element at a time.
    """

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """Type of the column."""

    @property
    @abstractmethod
    def stored(self) -> StoredSerializer:
        """What is stored with the elements."""

    def __eq__(self, other: object) -> bool:
        """Whether they store elements in the same way."""
        return (
            isinstance(other, Serializer)
            and self.stored == other.stored
            and bool(self.storage_type.equals(other.storage_type))
        )

    def __hash__(self) -> int:
        return hash(self.stored)

    @property
    def name(self) -> str:
        """The elements' type, for people."""
        return self.stored.name

    @abstractmethod
    def encode(self, values: Elements) -> list[pa.Array]:
        """The elements as parts of a column. Raises `MisfitError`, also for an element of None."""

    @abstractmethod
    def encode_one(self, value: Any) -> Any:
        """What `pa.array` makes one row of. Raises `MisfitError`, also for None."""

    @property
    def is_native(self) -> bool:
        """Whether elements are immutable objects of Python's own, which may be encoded later."""
        return False

    def check(self, values: Collection[Any]) -> None:
        """Raises `MisfitError` if one of them can't be encoded."""
        for value in values:
            self.encode_one(value)

    @abstractmethod
    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        """The elements of a column as Python objects; new ones each time.

        Raises `CheckpointCorruptedError`.
        """

    @abstractmethod
    def compatibility(self, stored: StoredSerializer, storage_type: pa.DataType) -> Compatibility:
        """Whether elements that were stored like this, in a column of that type, can be read."""
