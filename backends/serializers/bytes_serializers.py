"""Serializers that store each element as bytes: as MessagePack, or as a pickle."""

import json
import pickle
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.serializer import (
    AS_IS,
    Compatibility,
    Outcome,
    Serializer,
    StoredSerializer,
)
from holdfast.common import raise_shortage
from holdfast.errors import CheckpointCorruptedError


class BytesSerializer(Serializer):
    """The base of serializers whose columns have the bytes of one element in each row."""

    @property
    def storage_type(self) -> pa.DataType:
        return pa.large_binary()  # binary would count in 32 bits

    def encode(self, values: Elements) -> list[pa.Array]:
        return self.column_of([self.encode_one(value) for value in objects_in(values)])

    def encoded_in(self, column: pa.ChunkedArray) -> list[bytes]:
        return list(column.to_pylist())


def objects_in(values: Elements) -> list[Any]:
    """Return elements as a list of objects. Raises `IncompatibleValueError`."""
    if isinstance(values, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)):
        raise IncompatibleValueError("only states of an Arrow type take Arrow data")
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        raise IncompatibleValueError(f"{type(values).__name__} is not a list of elements")
    return list(values)


_PROTOCOL = 5


@dataclass(frozen=True, slots=True)
class Pickled:
    """The element type of objects that are stored by pickle.

    If you can change the stored bytes, you can make the reader run any code, so both the job that writes and the job
    that reads have to name this type. The elements can't be read as a DataFrame, nor by a program that lacks their
    classes, and they don't migrate.

    Attributes:
        type: The class of the elements, which may be instances of subclasses.
    """

    type: type = object


class PickleSerializer(BytesSerializer):
    """Stores each element as a separate pickle, protocol 5."""

    def __init__(self, pickled: Pickled) -> None:
        self._type = pickled.type

    @property
    def stored(self) -> StoredSerializer:
        return StoredSerializer("pickle", f"{self._type.__module__}.{self._type.__qualname__}")

    def encode_one(self, value: Any) -> bytes:
        if value is None or not isinstance(value, self._type):
            message = f"{type(value).__name__} is not a {self._type.__qualname__}"
            raise IncompatibleValueError(message)
        try:
            return pickle.dumps(value, _PROTOCOL)
        except Exception as error:  # noqa: BLE001  # of any class's own code
            raise_shortage(error)
            message = f"{type(value).__name__} can't be pickled ({type(error).__name__})"
            raise IncompatibleValueError(message) from None

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        if rows.null_count or not pa.types.is_binary(rows.type):
            raise IncompatibleValueError("pickled elements must be the bytes of their pickles")
        return list(rows.cast(self.storage_type).chunks)

    def decode_one(self, encoded: Any) -> Any:
        try:
            return pickle.loads(encoded)  # noqa: S301  # named by the job
        except Exception as error:  # noqa: BLE001  # of any class's own code; its text may hold data
            raise_shortage(error)
            detail = f": {error}" if isinstance(error, (ImportError, AttributeError)) else ""
            message = f"a pickled element can't be read ({type(error).__name__}{detail})"
            raise CheckpointCorruptedError(message) from None

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        return [self.decode_one(pickle) for pickle in column.to_pylist()]

    def compatibility(
        self,
        stored: StoredSerializer,
        storage_type: pa.DataType,  # noqa: ARG002  # it is bytes
    ) -> Compatibility:
        if stored.kind != "pickle":
            return Compatibility.incompatible(f"it was stored by {stored.kind}, not pickled")
        if self._type is not object and stored.name != self.stored.name:
            return Compatibility.incompatible("it is a pickle of another class")
        return AS_IS


_encode = msgspec.msgpack.Encoder().encode


class MessagePackSerializer(BytesSerializer):
    """Stores each element as MessagePack."""

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
        return self._objects_of_type.encode(value)

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        if rows.null_count:
            raise IncompatibleValueError("None is not a valid element")
        if not pa.types.is_string(rows.type):
            raise IncompatibleValueError(
                "elements that are stored as MessagePack must be JSON text"
            )
        return self.encode([self._objects_of_type.of_json(text) for text in rows.to_pylist()])

    def decode_one(self, encoded: Any) -> Any:
        return self._objects_of_type.read(encoded)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        read = self._objects_of_type.read_list
        parts = (self._objects_of_type.read_with(pack_elements, chunk) for chunk in column.chunks)
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
    """Return the reason why stored elements can't be read as MessagePack; empty if they can."""
    if stored.kind == "pickle":
        return "it was stored by pickle"
    if stored.kind == "arrow" and not stored.form and not pa.types.is_nested(storage_type):
        return f"it was stored by Arrow, as {storage_type}"
    if stored.leaves_out_defaults:
        return (
            "it was stored without fields that had their default (omit_defaults), so only the class of that "
            "time can read it"
        )
    return ""


def migrated_objects(
    objects: Objects,
    stored: StoredSerializer,
    column: pa.ChunkedArray,
    dropped: Collection[str] | None,
) -> list[Any]:
    """Convert elements that another type has stored to objects of a type.

    Raises:
        IncompatibleTypeError: An element is not of the type, or would lose something.
    """
    converted: list[Any] = []
    for chunk in column.chunks:
        try:
            if stored.kind == "messagepack":
                converted += objects.migrate(pack_elements(chunk), stored.fields, dropped)
            else:
                values = chunk.to_pylist(maps_as_pydicts="strict")
                converted += objects.migrate(_encode(values), stored.fields, dropped)
        except (IncompatibleValueError, LookupError, ValueError) as error:
            raise IncompatibleTypeError(str(error)) from None
    return converted


def pack_elements(chunk: pa.Array) -> bytes:
    """Make one array of MessagePack of all elements of a column: it contains their bytes one after the other.

    Raises:
        ValueError: The column has no bytes.
    """
    if chunk.type != pa.large_binary():
        raise ValueError(f"column is {chunk.type}")
    _, offsets, data = chunk.buffers()
    ends = memoryview(offsets).cast("q")[chunk.offset : chunk.offset + len(chunk) + 1]
    inside = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    return array_of(len(chunk), (inside,))


def array_of(count: int, parts: Iterable[bytes | memoryview]) -> bytes:
    """Make an array of MessagePack of the bytes of its elements."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *parts))


def _message_pack_of(type: Any, dropped: Collection[str] | None) -> MessagePackSerializer:
    return MessagePackSerializer(Objects(type), dropped)


def json_text(value: Any) -> str:
    """Convert a value of MessagePack to JSON text. Numbers without a JSON form become `NaN`, `Infinity`, `-Infinity`."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Convert a value to types of JSON: bytes to base64, times to ISO 8601, keys to text."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.msgpack.Ext):
        return {"code": value.code, "data": _plain(value.data)}
    return msgspec.to_builtins(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))
