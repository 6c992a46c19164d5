"""Serializers of objects that msgspec knows, or that the user lets pickle store.

BytesSerializer         the base of those that store each element as bytes
PickleSerializer        as a pickle
MessagePackSerializer   as MessagePack
ObjectSerializer        in Arrow columns: dataclasses, structs of msgspec, dicts, sets, …
"""

import json
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import (
    Elements,
    IncompatibleValueError,
    QuickType,
    missing_field,
    types_in,
)
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules, change_of
from holdfast.backends.serializers.column_choice import object_column
from holdfast.backends.serializers.columns import NoColumnError, ObjectColumn
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.serializer import Migrate, Serializer, StoredSerializer
from holdfast.common import message_pack_decoder, raise_shortage
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError


class BytesSerializer(Serializer):
    """The base of serializers whose columns have the bytes of one element in each row."""

    storage_type = pa.large_binary()  # binary would count in 32 bits

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
            raise CheckpointCorruptedError(message, kind="class-missing") from None

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
                encoded = _encode(_with_dicts(chunk))
            return objects.migrate(encoded, stored.fields, dropped)
        except (IncompatibleValueError, LookupError, ValueError) as error:
            raise IncompatibleTypeError(str(error)) from None

    return convert


def _with_dicts(chunk: pa.Array) -> list[Any]:
    """Return the elements of a column, with dicts for maps."""
    if not any(map(pa.types.is_map, types_in(chunk.type))):
        return list(chunk.to_pylist())
    try:
        return list(chunk.to_pylist(maps_as_pydicts="strict"))
    except TypeError:
        raise IncompatibleTypeError(
            "it was stored by Arrow and has maps, which only pyarrow 20 and later read as dicts"
        ) from None


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


_MAYBE_LARGE = re.compile(rb"\xcf[\x80-\xff]")
"""The first bytes of integers >= 2**63 in MessagePack; other data may contain them, too."""

_BATCH_OBJECTS = 256
"""Objects that exist at a time: the more there are, the longer Python's garbage collector takes."""

_decode_plain = message_pack_decoder(Any, strict=False).decode


class ObjectSerializer(Serializer):
    """Stores objects in columns.

    Until a column is needed, single elements are rows of their values, or MessagePack if the column has no rows.
    """

    def __init__(
        self,
        objects: Objects,
        column: ObjectColumn,
        renamed: Mapping[str, str],
        dropped: Collection[str] | None,
    ) -> None:
        self._objects = objects
        self._column = column
        self.storage_type = column.type
        self.is_immutable = column.quick is not None and column.quick_copy is None
        defaults = {
            path: each.default for path, each in column.by_path() if each.default is not None
        }
        self.rules = Rules(defaults, renamed, dropped, by_value=True)
        self._has_durations = "duration" in str(column.type)
        self._row = column.row if column.has_classes else None
        self._read_row = (
            None if column.row_type is None else message_pack_decoder(column.row_type).decode
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # msgspec's decoders don't pickle.
        return serializer_of_objects, (self._objects.type, self.rules.renamed, self.rules.dropped)

    @property
    def stored(self) -> StoredSerializer:
        return StoredSerializer(
            "arrow", self._objects.name, self._objects.form, self._objects.fields
        )

    @property
    def quick(self) -> QuickType | None:
        return self._column.quick

    @property
    def quick_copy(self) -> Callable[[Any], Any] | None:
        return self._column.quick_copy

    def encode(self, values: Elements) -> list[pa.Array]:
        objects = objects_in(values)
        with suppress(Exception):  # then msgspec converts them to this type, or finds the error
            return [self._column.write(objects, checked=False)] if objects else []
        parts = (
            objects[start : start + _BATCH_OBJECTS]
            for start in range(0, len(objects), _BATCH_OBJECTS)
        )
        return self._together(self._objects.copies(part) for part in parts)

    def encode_one(self, value: Any) -> Any:
        if self._read_row is None:
            return self._message_pack(value)
        try:
            encoded = _encode(value if self._row is None else self._row(value))
            row = self._read_row(encoded)  # shares nothing with the value
            if row is not None and _encode(row) == encoded:
                return row
        except Exception:  # noqa: BLE001, S110  # `suppress` takes as long as all of this
            pass  # then msgspec converts the value to this type, or finds the error
        return self._row_of(self._objects.read(self._message_pack(value)))

    def _row_of(self, value: Any) -> Any:
        """Return the row of an object, or its MessagePack."""
        if self._read_row is None:
            return _encode(value)
        return self._read_row(_encode(self._column.row(value)))

    def _message_pack(self, value: Any) -> bytes:
        """Encode an object. Raises `IncompatibleValueError`."""
        encoded = self._objects.encode(value)
        if self._has_durations or (
            _MAYBE_LARGE.search(encoded) and _is_large(_decode_plain(encoded))
        ):
            self._write([value])  # refuses it now, while the caller is known
        return encoded

    def decode_one(self, encoded: Any) -> Any:
        return (
            self._objects.read(encoded)
            if self._read_row is None
            else self._column.from_row(encoded)
        )

    def column_of(self, encoded: list[Any]) -> list[pa.Array]:
        if self._read_row is not None:
            return self._write(encoded) if encoded else []
        parts = (
            encoded[start : start + _BATCH_OBJECTS]
            for start in range(0, len(encoded), _BATCH_OBJECTS)
        )
        return self._together(self._objects.read_list(array_of(len(part), part)) for part in parts)

    def encoded_in(self, column: pa.ChunkedArray) -> list[Any]:
        return list(map(self._row_of, self.decode(column)))

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        read = self._objects.read_with
        return [element for chunk in column.chunks for element in read(self._column.read, chunk)]

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        rules = Rules(self.rules.defaults, from_rows=True)
        try:
            chunks = map(change_of(rows.type, self.storage_type, rules), rows.chunks)
            return [part for chunk in chunks for part in self._check(chunk)]
        except IncompatibleTypeError as error:
            raise IncompatibleValueError(str(error)) from None

    def migration(self, stored: StoredSerializer, storage_type: pa.DataType) -> Migrate | None:
        if stored.kind != "arrow":
            convert = object_conversion(self._objects, stored, storage_type, self.rules.dropped)
            return lambda chunk: self._together([convert(chunk)])
        if storage_type.equals(self.storage_type) and stored.form == self._objects.form:
            return None
        change = change_of(storage_type, self.storage_type, self.rules)
        return lambda chunk: self._check(change(chunk))

    def _check(self, chunk: pa.Array) -> list[pa.Array]:
        """Return the chunk if all of its rows are valid objects of the class. Raises `IncompatibleValueError`."""
        if chunk.null_count:
            raise IncompatibleValueError("None is not a valid element")
        name = missing_field(chunk)
        if name:
            raise IncompatibleValueError(f"field {name!r} must not be None")
        self._objects.check(self._column.read, chunk)
        return [chunk] if len(chunk) else []

    def _together(self, parts: Iterable[list[Any]]) -> list[pa.Array]:
        """Make one array of all objects, or several if they are too large for one."""
        arrays = [array for part in parts for array in self._write(part)]
        try:
            return [pa.concat_arrays(arrays)] if arrays else []
        except pa.ArrowInvalid:
            return arrays

    def _write(self, objects: list[Any]) -> list[pa.Array]:
        try:
            return [self._column.write(objects, checked=True)]
        except pa.ArrowCapacityError:  # more than 2 GiB of text
            if len(objects) == 1:
                raise IncompatibleValueError("an element is too large for an Arrow array") from None
        except (OverflowError, pa.ArrowInvalid):
            raise IncompatibleValueError(
                "a number or time is too large for Arrow, which has 64 bits for integers and for "
                "microseconds; let its type be Decimal or str"
            ) from None
        middle = len(objects) // 2
        return self._write(objects[:middle]) + self._write(objects[middle:])


def serializer_of_objects(
    type: Any, renamed: Mapping[str, str], dropped: Collection[str] | None
) -> Serializer:
    """Return the serializer of a type that msgspec knows: in columns if its parts have Arrow types, else as MessagePack.

    Raises `InvalidRequestError` if msgspec doesn't know the type, or its fields can't be renamed.
    """
    objects = Objects(type)
    try:
        return ObjectSerializer(objects, object_column(objects.described), renamed, dropped)
    except NoColumnError:
        if renamed:
            raise InvalidRequestError(
                f"{objects.name} is stored as MessagePack, whose fields can't be renamed; keep the stored name, with "
                "msgspec.field(name=...) in a msgspec Struct"
            ) from None
        return MessagePackSerializer(objects, dropped)


def _is_large(plain: Any) -> bool:
    """Return whether an integer inside is too large for 64 bits with a sign."""
    if isinstance(plain, dict):
        return any(map(_is_large, chain.from_iterable(plain.items())))
    if isinstance(plain, list | tuple):
        return any(map(_is_large, plain))
    return isinstance(plain, int) and plain >= 1 << 63
