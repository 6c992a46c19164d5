"""The interface of every serializer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import Elements, MisfitError, QuickType
from holdfast.backends.serializers.arrow_migration import Rules
from holdfast.backends.serializers.compatibility import Compatibility
from holdfast.backends.serializers.stored_form import StoredSerializer, column
from holdfast.errors import InvalidRequestError


class Serializer(ABC):
    """Makes an Arrow column of elements and elements of it, many at a time.

    A column no longer depends on the objects that it was made of.

    Attributes:
        rules: How elements that were stored with another type become these.

    Source:
        Flink, TypeSerializer, which does so one element at a time.
    """

    rules: Rules = Rules()

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """Type of the column."""

    @property
    @abstractmethod
    def stored(self) -> StoredSerializer:
        """The description of this serializer that is stored with the elements."""

    def field(self, name: str) -> pa.Field:
        """A column of elements, which says how they were written."""
        return column(name, self.storage_type, self.stored)

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
    def makes_objects(self) -> bool:
        """Whether elements are objects that whoever sees them could change."""
        return True

    @property
    def name(self) -> str:
        """The elements' type, for people."""
        return self.stored.name

    @abstractmethod
    def encode(self, values: Elements) -> list[pa.Array]:
        """The elements as parts of a column. Raises `MisfitError`, also for an element of None."""

    def encode_with_nulls(self, values: list[Any]) -> list[pa.Array] | None:  # noqa: ARG002  # see there
        """The values as `encode` makes a column of them, with a null for each None.

        None if that takes more than one look at each: then only `encode` can say what is wrong with the others.
        """
        return None

    @abstractmethod
    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        """Elements as they are shown to whoever reads a checkpoint, as parts of a column. Raises `MisfitError`."""

    @abstractmethod
    def encode_one(self, value: Any) -> Any:
        """The value of which `pa.array` makes one row. Raises `MisfitError`, also for None."""

    @abstractmethod
    def decode_one(self, encoded: Any) -> Any:
        """The element that `encode_one` was given; a new object, unless it can't change.

        Raises the same as `decode`.
        """

    @property
    def quick(self) -> QuickType | None:
        """Objects for which `own` has a quicker way; None if there are none."""
        return None

    @property
    def is_immutable(self) -> bool:
        """Whether no decoded element can be changed."""
        return False

    @property
    def quick_copy(self) -> Callable[[Any], Any] | None:
        """The function that copies decoded elements which have nothing inside that can be changed; None if they have."""
        return None

    @property
    def hashable(self) -> Callable[[Any], Any] | None:
        """The function that returns what dictionaries have in place of an element that can't be hashed; None if elements can be."""
        return None

    def own(self, value: Any) -> Any:
        """The element that the column would give back for a value; it shares nothing with the value that can change.

        Raises `MisfitError`, also for None, and where Python has no object for the element.
        """
        encoded = self.encode_one(value)
        try:
            return self.decode_one(encoded)
        except InvalidRequestError as error:
            raise MisfitError(error.args[0]) from None

    def copied(self, element: Any) -> Any:
        """A copy of a decoded element; the same object if it can't change."""
        return self.own(element)

    def are_native(self, values: list[Any]) -> bool:  # noqa: ARG002  # others have no such types
        """Whether they are elements, and for each `encode_one` and `decode_one` are the identity."""
        return False

    def column_of(self, encoded: list[Any]) -> list[pa.Array]:
        """The column of what `encode_one` has returned."""
        column = pa.array(encoded, self.storage_type)
        # Arrow makes several of more than 2 GiB of strings.
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [chunk for chunk in chunks if len(chunk)]

    @abstractmethod
    def encoded_in(self, column: pa.ChunkedArray) -> list[Any]:
        """The rows of a column, each as `encode_one` would return it."""

    @abstractmethod
    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        """The elements of a column as Python objects; new ones each time.

        Raises `CheckpointCorruptedError`; `InvalidRequestError` where there is no such object.
        """

    @abstractmethod
    def compatibility(self, stored: StoredSerializer, storage_type: pa.DataType) -> Compatibility:
        """Whether elements that were stored like this, in a column of that type, can be read."""
