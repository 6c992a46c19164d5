"""Serializers that store each element as bytes: as MessagePack, or as a pickle."""

import json
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.serializer import Migrate, Serializer, StoredSerializer
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

    def migration(self, stored: StoredSerializer, storage_type: pa.DataType) -> None:  # noqa: ARG002  # it is bytes
        if stored.kind != "pickle":
            raise IncompatibleTypeError(f"it was stored by {stored.kind}, not pickled")
        if self._type is not object and stored.name != self.stored.name:
            raise IncompatibleTypeError("it is a pickle of another class")


_encode = msgspec.msgpack.Encoder().encode


class MessagePackSerializer(BytesSerializer):
    """Stores each element as MessagePack."""

    def __init__(self, objects: Objects, dropped: Collection[str] | None = ()) -> None:
        self._objects = objects
        self.rules = Rules(dropped=dropped)

    def __reduce__(self) -> tuple[Any, ...]:
        # msgspec's decoders don't pickle.
        return _message_pack_of, (self._objects.type, self.rules.dropped)

    @property
    def stored(self) -> StoredSerializer:
        objects = self._objects
        return StoredSerializer(
            "messagepack", objects.name, objects.form, objects.fields, objects.leaves_out_defaults
        )

    def encode_one(self, value: Any) -> bytes:
        return self._objects.encode(value)

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        if rows.null_count:
            raise IncompatibleValueError("None is not a valid element")
        if not pa.types.is_string(rows.type):
            raise IncompatibleValueError(
                "elements that are stored as MessagePack must be JSON text"
            )
        return self.encode([self._objects.of_json(text) for text in rows.to_pylist()])

    def decode_one(self, encoded: Any) -> Any:
        return self._objects.read(encoded)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        read = self._objects.read_list
        parts = (self._objects.read_with(pack_elements, chunk) for chunk in column.chunks)
        return [element for part in parts for element in read(part)]

    def migration(self, stored: StoredSerializer, storage_type: pa.DataType) -> Migrate | None:
        if (stored.kind, stored.form) == ("messagepack", self._objects.form):
            return None
        convert = object_conversion(self._objects, stored, storage_type, self.rules.dropped)
        return lambda chunk: self.column_of(list(map(_encode, convert(chunk))))


def object_conversion(
    objects: Objects,
    stored: StoredSerializer,
    storage_type: pa.DataType,
    dropped: Collection[str] | None,
) -> Callable[[pa.Array], list[Any]]:
    """Return the function that converts elements that another type has stored to objects of a type.

    Raises `IncompatibleTypeError` if the elements can't be read as MessagePack. The function also raises it, if an element
    is not of the type, or would lose something.
    """
    if stored.kind == "pickle":
        raise IncompatibleTypeError("it was stored by pickle")
    if stored.kind == "arrow" and not stored.form and not pa.types.is_nested(storage_type):
        raise IncompatibleTypeError(f"it was stored by Arrow, as {storage_type}")
    if stored.leaves_out_defaults:
        raise IncompatibleTypeError(
            "it was stored without fields that had their default (omit_defaults), so only the class of that "
            "time can read it"
        )

    def convert(chunk: pa.Array) -> list[Any]:
        try:
            if stored.kind == "messagepack":
                encoded = pack_elements(chunk)
            else:
                encoded = _encode(chunk.to_pylist(maps_as_pydicts="strict"))
            return objects.migrate(encoded, stored.fields, dropped)
        except (IncompatibleValueError, LookupError, ValueError) as error:
            raise IncompatibleTypeError(str(error)) from None

    return convert


def pack_elements(chunk: pa.Array) -> bytes:
    """Make one array of MessagePack of the bytes of all elements of a column. Raises `ValueError` if it has none."""
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
