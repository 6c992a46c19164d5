"""Elements that are objects and are stored in Arrow columns: dataclasses, structs of msgspec, dicts, sets, …."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError, QuickType, missing_field
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules, change_of
from holdfast.backends.serializers.bytes_serializers import (
    MessagePackSerializer,
    array_of,
    object_conversion,
    objects_in,
)
from holdfast.backends.serializers.column_choice import object_column
from holdfast.backends.serializers.columns import NoColumnError, ObjectColumn
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.serializer import Migrate, Serializer, StoredSerializer
from holdfast.common import message_pack_decoder
from holdfast.errors import InvalidRequestError

_MAYBE_LARGE = re.compile(rb"\xcf[\x80-\xff]")
"""The first bytes of integers >= 2**63 in MessagePack; other data may contain them, too."""

_BATCH_OBJECTS = 256
"""Objects that exist at a time: the more there are, the longer Python's garbage collector takes."""

_encode = msgspec.msgpack.Encoder().encode
_plain = message_pack_decoder(Any, strict=False).decode


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
    def storage_type(self) -> pa.DataType:
        return self._column.type

    @property
    def stored(self) -> StoredSerializer:
        return StoredSerializer(
            "arrow", self._objects.name, self._objects.form, self._objects.fields
        )

    @property
    def quick(self) -> QuickType | None:
        return self._column.quick

    @property
    def is_immutable(self) -> bool:
        return self._column.quick is not None and self._column.quick_copy is None

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
        if self._has_durations or (_MAYBE_LARGE.search(encoded) and _is_large(_plain(encoded))):
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
