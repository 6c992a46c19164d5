"""The interface of every serializer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError, QuickType
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules
from holdfast.common import message_pack_decoder, raise_shortage
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StateMigrationError

Kind = Literal["arrow", "messagepack", "pickle"]


class StoredSerializer(msgspec.Struct, frozen=True):
    """The serializer that wrote stored elements, so that a later program can decide whether it can read them.

    Attributes:
        kind: `arrow`: the column has the elements themselves. `messagepack`, `pickle`: it has the bytes of each.
        name: Type of the elements, for people.
        form: The same text for types that read and write the same values; empty for Arrow types and for pickles.
        fields: Names of the fields of the classes that elements consist of.
        leaves_out_defaults: Whether MessagePack lacks fields that had their default.
    """

    kind: Kind
    name: str
    form: str = ""
    fields: list[str] = []
    leaves_out_defaults: bool = False


_KEY = b"holdfast.serializer"
_DECODER = message_pack_decoder(StoredSerializer)


def stored_serializer(field: pa.Field, state: str) -> StoredSerializer:
    """Read the serializer of a stored column. Raises `CheckpointCorruptedError` if its description can't be read."""
    content = (field.metadata or {}).get(_KEY)
    if content is None:
        return StoredSerializer("arrow", str(field.type))
    try:
        return _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        message = f"state {state!r} has no readable description of its serializer ({error})"
        raise CheckpointCorruptedError(message) from error


Migrate = Callable[[pa.Array], list[pa.Array]]
"""Converts a stored chunk to the wanted type, in one or more parts.

Raises `CheckpointCorruptedError`; `IncompatibleTypeError`, `IncompatibleValueError` and Arrow's own errors for values.
"""


class Serializer(ABC):
    """Writes elements as an Arrow column and reads them, many at a time.

    A column shares nothing with the objects that were written.

    Attributes:
        storage_type: Type of the column.
        rules: Migrations from other stored types that are allowed.
        makes_objects: Whether user code could change elements, as they are objects.
        is_immutable: Whether no decoded element can be changed.

    Source:
        Flink, TypeSerializer, which has one element at a time.
    """

    storage_type: pa.DataType
    rules: Rules = Rules()
    makes_objects: bool = True
    is_immutable: bool = False

    @property
    @abstractmethod
    def stored(self) -> StoredSerializer:
        """The description of this serializer that is stored with the elements."""

    def field(self, name: str) -> pa.Field:
        """Return the field of a column of elements, with the description of this serializer."""
        description = msgspec.msgpack.encode(self.stored)
        return pa.field(name, self.storage_type, metadata={_KEY: description})

    def __eq__(self, other: object) -> bool:
        """Return whether both store elements in the same form."""
        return (
            isinstance(other, Serializer)
            and self.stored == other.stored
            and bool(self.storage_type.equals(other.storage_type))
        )

    def __hash__(self) -> int:
        return hash(self.stored)

    @property
    def name(self) -> str:
        """Type of the elements, for people."""
        return self.stored.name

    @abstractmethod
    def encode(self, values: Elements) -> list[pa.Array]:
        """Encode elements as parts of a column. Raises `IncompatibleValueError`, also for None."""

    def encode_with_nulls(self, values: list[Any]) -> list[pa.Array] | None:  # noqa: ARG002  # others need it
        """Encode values as `encode` does, with a null for each None.

        Returns None if that needs more than one look at each value: then `encode` has to find the wrong ones.
        """
        return None

    @abstractmethod
    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        """Encode elements in the form in which `read_state` returns them. Raises `IncompatibleValueError`."""

    @abstractmethod
    def encode_one(self, value: Any) -> Any:
        """Convert an element to the value that `pa.array` takes as one row. Raises `IncompatibleValueError`, also for None."""

    @abstractmethod
    def decode_one(self, encoded: Any) -> Any:
        """Convert the value back to the element; a new object, unless it is immutable. Raises the same as `decode`."""

    @property
    def quick(self) -> QuickType | None:
        """The objects that `canonical` needs no column for; None if all need one."""
        return None

    @property
    def quick_copy(self) -> Callable[[Any], Any] | None:
        """The function that copies decoded elements whose parts are immutable; None if some parts are not."""
        return None

    @property
    def hashable(self) -> Callable[[Any], Any] | None:
        """The function that returns what dictionaries have in place of an element that can't be hashed; None if elements can be."""
        return None

    def canonical(self, value: Any) -> Any:
        """Return the element that the column would give back for a value, without anything mutable of the value.

        Raises `IncompatibleValueError`, also for None, and if Python has no object for the element.
        """
        encoded = self.encode_one(value)
        try:
            return self.decode_one(encoded)
        except InvalidRequestError as error:
            raise IncompatibleValueError(error.args[0]) from None

    def copy(self, element: Any) -> Any:
        """Copy a decoded element; returns the same object if it is immutable."""
        return self.canonical(element)

    def all_native(self, values: list[Any]) -> bool:  # noqa: ARG002  # others have no such types
        """Return whether all values are elements that `encode_one` and `decode_one` return unchanged."""
        return False

    def column_of(self, encoded: list[Any]) -> list[pa.Array]:
        """Make a column of results of `encode_one`."""
        column = pa.array(encoded, self.storage_type)
        # Arrow makes several chunks of more than 2 GiB of strings.
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [chunk for chunk in chunks if len(chunk)]

    @abstractmethod
    def encoded_in(self, column: pa.ChunkedArray) -> list[Any]:
        """Convert the rows of a column to results of `encode_one`."""

    @abstractmethod
    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        """Decode the elements of a column to new Python objects.

        Raises `CheckpointCorruptedError`, and `InvalidRequestError` if Python has no object for an element.
        """

    @abstractmethod
    def migration(self, stored: StoredSerializer, storage_type: pa.DataType) -> Migrate | None:
        """Return the migration of elements that another serializer has stored in a column of a type.

        Returns None if they can be read as they are. Raises `IncompatibleTypeError` if they can't be read at all.

        Source:
            Flink, TypeSerializerSchemaCompatibility; a type that is only reconfigured there is read as it is here.
        """


def migrated_column(
    name: str, field: pa.Field, stored: pa.ChunkedArray, serializer: Serializer
) -> pa.ChunkedArray:
    """Convert a stored column to the type of a serializer.

    Raises `StateMigrationError` if that is not possible, and the same as `stored_serializer`.
    """
    before = stored_serializer(field, name)
    try:
        migrate = serializer.migration(before, field.type)
        if migrate is None:
            return stored
        parts = [part for chunk in stored.chunks for part in migrate(chunk)]
        return pa.chunked_array(parts, serializer.storage_type)
    except pa.ArrowException as error:
        raise_shortage(error)
        reason = "Arrow can't convert the values"
    except (IncompatibleTypeError, IncompatibleValueError) as error:
        reason = str(error)
    raise StateMigrationError(
        f"state {name!r} is stored with type {before.name} and declared with type {serializer.name}: {reason}"
    )
