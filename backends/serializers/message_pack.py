"""Elements that Arrow has no type for: unions, classes that refer to themselves, and parts without a type."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import MisfitError
from holdfast.backends.serializers.arrow_migration import NoWayError, Rules
from holdfast.backends.serializers.bytes_serializer import BytesSerializer
from holdfast.backends.serializers.compatibility import AS_IS, Compatibility, Outcome
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.stored_form import StoredSerializer

_encode = msgspec.msgpack.Encoder().encode


class MessagePackSerializer(BytesSerializer):
    """Stores each element as MessagePack.

    Args:
        objects: The elements' type.
        dropped: Paths of stored fields whose values may be lost; None for keys of a map, which keep all.
    """

    def __init__(self, objects: Objects, dropped: Collection[str] | None = ()) -> None:
        self._objects_of_type = objects
        self.rules = Rules(dropped=dropped)

    def __reduce__(self) -> tuple[Any, ...]:
        # msgspec's decoders don't pickle.
        return _message_pack_of, (self._objects_of_type.type, self.rules.dropped)

    @property
    def type(self) -> Any:
        """The elements' type, as msgspec takes it."""
        return self._objects_of_type.type

    @property
    def stored(self) -> StoredSerializer:
        objects = self._objects_of_type
        return StoredSerializer(
            "messagepack", objects.name, objects.form, objects.fields, objects.leaves_out_defaults
        )

    def encode_one(self, value: Any) -> bytes:
        return self._objects_of_type.checked(value)

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        if rows.null_count:
            raise MisfitError("None is no element")
        if not pa.types.is_string(rows.type):
            raise MisfitError("elements of such a class are given as JSON text")
        return self.encode([self._objects_of_type.of_json(text) for text in rows.to_pylist()])

    def decode_one(self, encoded: Any) -> Any:
        return self._objects_of_type.read(encoded)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        read = self._objects_of_type.read_list
        parts = (self._objects_of_type.read_with(packed, chunk) for chunk in column.chunks)
        return [element for part in parts for element in read(part)]

    def compatibility(self, stored: StoredSerializer, storage_type: pa.DataType) -> Compatibility:
        if (stored.kind, stored.form) == ("messagepack", self._objects_of_type.form):
            return AS_IS
        objects_of_type, dropped = self._objects_of_type, self.rules.dropped
        reason = unreadable(stored, storage_type)
        if reason:
            return Compatibility.incompatible(reason)

        def migrate(column: pa.ChunkedArray) -> pa.ChunkedArray:
            objects = migrated_objects(objects_of_type, stored, column, dropped)
            return pa.chunked_array(self.column_of(list(map(_encode, objects))), self.storage_type)

        return Compatibility(Outcome.AFTER_MIGRATION, migrate=migrate)


def unreadable(stored: StoredSerializer, storage_type: pa.DataType) -> str:
    """Why stored elements can't be looked at as MessagePack; empty if they can."""
    if stored.kind == "pickle":
        return "it was stored by pickle"
    if stored.kind == "arrow" and not stored.form and not pa.types.is_nested(storage_type):
        return f"it was stored by Arrow, as {storage_type}"
    if stored.leaves_out_defaults:
        return (
            "it was stored without fields that had their default (omit_defaults), so only the class as it "
            "was then can read it"
        )
    return ""


def migrated_objects(
    objects: Objects,
    stored: StoredSerializer,
    column: pa.ChunkedArray,
    dropped: Collection[str] | None,
) -> list[Any]:
    """Objects of a type, made of what another type has stored.

    Args:
        objects: The type.
        stored: How the elements were stored.
        column: The stored elements.
        dropped: Paths of fields whose values may be lost; None for keys of a map, which keep all.

    Raises:
        NoWayError: An element is none of the type, or would lose something.
    """
    made: list[Any] = []
    for chunk in column.chunks:
        try:
            if stored.kind == "messagepack":
                made += objects.migrated(packed(chunk), stored.fields, dropped)
            else:
                values = chunk.to_pylist(maps_as_pydicts="strict")
                made += objects.migrated(_encode(values), stored.fields, dropped)
        except (MisfitError, LookupError, ValueError) as error:
            raise NoWayError(str(error)) from None
    return made


def packed(chunk: pa.Array) -> bytes:
    """All elements as one array of MessagePack: their bytes, one behind the other, are its inside.

    Raises:
        ValueError: The column doesn't hold bytes.
    """
    if chunk.type != pa.large_binary():
        raise ValueError(f"column is {chunk.type}")
    _, offsets, data = chunk.buffers()
    ends = memoryview(offsets).cast("q")[chunk.offset : chunk.offset + len(chunk) + 1]
    inside = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    return array_of(len(chunk), (inside,))


def array_of(count: int, parts: Iterable[bytes | memoryview]) -> bytes:
    """An array of MessagePack, of its elements' bytes."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *parts))


def _message_pack_of(type: Any, dropped: Collection[str] | None) -> MessagePackSerializer:
    return MessagePackSerializer(Objects(type), dropped)
