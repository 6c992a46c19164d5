"""Elements that are objects, and lie in Arrow columns: dataclasses, structs of msgspec, dicts, sets, ...."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import Elements, MisfitError, QuickType, missing_in
from holdfast.backends.serializers.arrow_migration import NoWayError, Rules, change_of
from holdfast.backends.serializers.bytes_serializers import (
    MessagePackSerializer,
    array_of,
    migrated_objects,
    objects_in,
    unreadable,
)
from holdfast.backends.serializers.column_choice import object_column
from holdfast.backends.serializers.columns import NoColumnError, ObjectColumn
from holdfast.backends.serializers.objects import Objects
from holdfast.backends.serializers.serializer import (
    AS_IS,
    Compatibility,
    Outcome,
    Serializer,
    StoredSerializer,
)
from holdfast.common import message_pack_decoder
from holdfast.errors import InvalidRequestError

_MAYBE_LARGE = re.compile(rb"\xcf[\x80-\xff]")
"""How whole numbers from 2**63 on begin in MessagePack; other data may look like that, too."""

_AT_ONCE = 256
"""Objects that exist at a time: the more there are, the longer Python's garbage collector looks at them."""

_encode = msgspec.msgpack.Encoder().encode
_plain = message_pack_decoder(Any, strict=False).decode


class ObjectSerializer(Serializer):
    """Stores objects in columns.

    Until somebody needs a column, single elements are rows of their values, or MessagePack where the column has
    no rows.

    Args:
        objects: The elements' type.
        column: The column for this type.
        renamed: The stored names of fields, by the path of each field.
        dropped: Paths of stored fields whose values may be lost; None for keys of a map, which keep all.
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
        with suppress(
            Exception
        ):  # msgspec makes objects of this type of them then, or says why not
            return [self._column.write(objects, checked=False)] if objects else []
        parts = (objects[start : start + _AT_ONCE] for start in range(0, len(objects), _AT_ONCE))
        return self._together(self._objects.copies(part) for part in parts)

    def encode_one(self, value: Any) -> Any:
        if self._read_row is None:
            return self._checked_one(value)
        try:
            encoded = _encode(value if self._row is None else self._row(value))
            row = self._read_row(encoded)  # shares nothing with the value
            if row is not None and _encode(row) == encoded:
                return row
        except Exception:  # noqa: BLE001, S110  # `suppress` takes as long as all of this
            pass  # msgspec makes an object of this type of the value then, or says why not
        return self._row_of(self._objects.read(self._checked_one(value)))

    def _row_of(self, value: Any) -> Any:
        """A row of an object, or its MessagePack."""
        if self._read_row is None:
            return _encode(value)
        return self._read_row(_encode(self._column.row(value)))

    def _checked_one(self, value: Any) -> bytes:
        encoded = self._objects.checked(value)
        if self._has_durations or (_MAYBE_LARGE.search(encoded) and _is_large(_plain(encoded))):
            self._written([value])  # refuses it now; later nobody could say who has given it
        return encoded

    def decode_one(self, encoded: Any) -> Any:
        return (
            self._objects.read(encoded) if self._read_row is None else self._column.of_row(encoded)
        )

    def column_of(self, encoded: list[Any]) -> list[pa.Array]:
        if self._read_row is not None:
            return self._written(encoded) if encoded else []
        parts = (encoded[start : start + _AT_ONCE] for start in range(0, len(encoded), _AT_ONCE))
        return self._together(self._objects.read_list(array_of(len(part), part)) for part in parts)

    def encoded_in(self, column: pa.ChunkedArray) -> list[Any]:
        return list(map(self._row_of, self.decode(column)))

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        read = self._objects.read_with
        return [element for chunk in column.chunks for element in read(self._column.read, chunk)]

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        rules = Rules(self.rules.defaults, are_rows=True)
        try:
            chunks = map(change_of(rows.type, self.storage_type, rules), rows.chunks)
            return [part for chunk in chunks for part in self._checked(chunk)]
        except NoWayError as error:
            raise MisfitError(str(error)) from None

    def compatibility(self, stored: StoredSerializer, storage_type: pa.DataType) -> Compatibility:
        if stored.kind == "arrow":
            is_same = storage_type.equals(self.storage_type)
            if is_same and stored.form == self._objects.form:
                return AS_IS
            try:
                change = change_of(storage_type, self.storage_type, self.rules)
            except NoWayError as error:
                return Compatibility.incompatible(str(error))
            return self._after(lambda chunk: self._checked(change(chunk)))
        dropped = self.rules.dropped
        reason = unreadable(stored, storage_type)
        if reason:
            return Compatibility.incompatible(reason)
        return self._after(
            lambda chunk: self._together(
                [migrated_objects(self._objects, stored, pa.chunked_array([chunk]), dropped)]
            )
        )

    def _after(self, change: Callable[[pa.Array], list[pa.Array]]) -> Compatibility:
        def migrate(column: pa.ChunkedArray) -> pa.ChunkedArray:
            try:
                parts = [part for chunk in column.chunks for part in change(chunk)]
            except MisfitError as error:
                raise NoWayError(str(error)) from None
            return pa.chunked_array(parts, self.storage_type)

        return Compatibility(Outcome.AFTER_MIGRATION, migrate=migrate)

    def _checked(self, chunk: pa.Array) -> list[pa.Array]:
        """The chunk, if all of its rows are objects of the class, whatever the class demands of them."""
        if chunk.null_count:
            raise MisfitError("None is no element")
        name = missing_in(chunk)
        if name:
            raise MisfitError(f"field {name!r} must not be None")
        self._objects.check(self._column.read, chunk)
        return [chunk] if len(chunk) else []

    def _together(self, parts: Iterable[list[Any]]) -> list[pa.Array]:
        """An array of all objects, or several if they are too large for an array."""
        arrays = [array for part in parts for array in self._written(part)]
        try:
            return [pa.concat_arrays(arrays)] if arrays else []
        except pa.ArrowInvalid:
            return arrays

    def _written(self, objects: list[Any]) -> list[pa.Array]:
        try:
            return [self._column.write(objects, checked=True)]
        except pa.ArrowCapacityError:  # more than 2 GiB of text
            if len(objects) == 1:
                raise MisfitError("an element is too large for an Arrow array") from None
        except (OverflowError, pa.ArrowInvalid):
            message = (
                "a number or time is too large for Arrow, which has 64 bits for whole numbers and for "
                "microseconds; let its type be Decimal or str"
            )
            raise MisfitError(message) from None
        middle = len(objects) // 2
        return self._written(objects[:middle]) + self._written(objects[middle:])


def serializer_of_objects(
    type: Any, renamed: Mapping[str, str], dropped: Collection[str] | None
) -> Serializer:
    """The serializer of a type of msgspec's: in columns where its parts have Arrow types, else MessagePack.

    Args:
        type: The type.
        renamed: The stored names of fields, by the path of each field.
        dropped: Paths of stored fields whose values may be lost; None for keys of a map, which keep all.

    Raises:
        InvalidRequestError: msgspec takes no such type, or its fields can't be renamed.
    """
    objects = Objects(type)
    try:
        return ObjectSerializer(objects, object_column(objects.described), renamed, dropped)
    except NoColumnError:
        if renamed:
            message = (
                f"{objects.name} is stored as MessagePack, whose fields can't be renamed; keep the stored name, in a "
                "msgspec Struct by msgspec.field(name=...)"
            )
            raise InvalidRequestError(message) from None
        return MessagePackSerializer(objects, dropped)


def _is_large(plain: Any) -> bool:
    """Whether a whole number inside is too large for 64 bits with a sign."""
    if isinstance(plain, dict):
        return any(map(_is_large, chain.from_iterable(plain.items())))
    if isinstance(plain, list | tuple):
        return any(map(_is_large, plain))
    return isinstance(plain, int) and plain >= 1 << 63
