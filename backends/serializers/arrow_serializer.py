"""Elements of an Arrow type, which are the values of the column."""

import builtins
from collections.abc import Callable
from contextlib import suppress
from types import NoneType
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import (
    Elements,
    QuickType,
    chunks_of,
    fields_of,
    is_valid_text,
    leaf_rule,
    no_object_error,
    objects_of,
    plain_type,
    quick_type,
    scalar_of,
    types_in,
)
from holdfast.backends.serializers.arrow_migration import IncompatibleTypeError, Rules, change_of
from holdfast.backends.serializers.serializer import Migrate, Serializer, StoredSerializer

_2_63 = 1 << 63


class ArrowSerializer(Serializer):
    """Stores Arrow data unchanged."""

    makes_objects = False

    def __init__(self, type: pa.DataType, rules: Rules) -> None:
        self.storage_type = type
        self.rules = rules
        # The immutable Python type whose objects are the values, one for one; None if no type is. Some dates have no object.
        is_native = self.quick is not None and self.quick.convert is None
        is_native = is_native and not pa.types.is_temporal(type)
        self._native = self.quick.kind if self.quick is not None and is_native else None
        self.is_immutable = not fields_of(plain_type(type))
        self._may_differ = any(leaf_rule(part).may_differ(part) for part in types_in(type))

    @property
    def quick(self) -> QuickType | None:
        return quick_type(self.storage_type)

    @property
    def quick_copy(self) -> Callable[[Any], Any] | None:
        fields = fields_of(self.storage_type)
        if not fields or any(fields_of(plain_type(field.type)) for field in fields):
            return None
        return dict.copy if pa.types.is_struct(self.storage_type) else list.copy

    @property
    def stored(self) -> StoredSerializer:
        return StoredSerializer("arrow", str(self.storage_type))

    def field(self, name: str) -> pa.Field:
        return pa.field(name, self.storage_type)  # the type is the description

    def encode(self, values: Elements) -> list[pa.Array]:
        if type(values) is list and set(map(type, values)) == {self._native}:
            chunks = self._of_natives(values)
            if chunks is not None:
                return chunks
        return chunks_of(values, self.storage_type)

    def encode_with_nulls(self, values: list[Any]) -> list[pa.Array] | None:
        is_native = self._native is not None and set(map(type, values)) <= {self._native, NoneType}
        return self._of_natives(values) if is_native else None

    def _of_natives(self, values: list[Any]) -> list[pa.Array] | None:
        """Encode values of the native type. Arrow stores them unchanged, or refuses them: no check is needed."""
        with suppress(pa.ArrowException, OverflowError, ValueError):
            column = pa.array(values, self.storage_type)
            return column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return None

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        return self.encode(rows)

    def encode_one(self, value: Any) -> Any:
        if self._native is None:
            return scalar_of(value, self.storage_type)
        if type(value) is self._native and _arrow_takes(value):
            return value  # a hundred times faster, also for the column later
        return scalar_of(value, self.storage_type).as_py()

    def copy(self, element: Any) -> Any:
        return _copy(element)

    def decode_one(self, encoded: Any) -> Any:
        if self._native is not None:
            return encoded
        element = self._objects(encoded.as_py)
        if self._may_differ:
            self._check_kept([element], pa.chunked_array([pa.repeat(encoded, 1)]))
        return element

    def all_native(self, values: list[Any]) -> bool:
        return set(map(type, values)) == {self._native} and _arrow_takes_all(values, self._native)

    def encoded_in(self, column: pa.ChunkedArray) -> list[Any]:
        return list(column) if self._native is None else self.decode(column)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        objects: list[Any] = self._objects(lambda: objects_of(column))
        if self._may_differ:
            self._check_kept(objects, column)
        return objects

    def column_of(self, encoded: list[Any]) -> list[pa.Array]:
        try:
            return super().column_of(encoded)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):  # not of such scalars
            return [pa.concat_arrays([pa.repeat(element, 1) for element in encoded])]

    def _objects(self, made: Callable[[], Any]) -> Any:
        try:
            return made()
        except (OverflowError, ValueError, LookupError) as error:
            raise no_object_error("an element", self.storage_type, type(error).__name__) from None

    def _check_kept(self, objects: list[Any], column: pa.ChunkedArray) -> None:
        """Refuse objects of other times than the column's, such as NaT for the smallest one, or a time of more than a day."""
        if not pa.chunked_array([pa.array(objects, self.storage_type)]).equals(column):
            reason = "its time of day has nanoseconds, or a time is out of bounds"
            raise no_object_error("an element", self.storage_type, reason)

    def migration(self, stored: StoredSerializer, storage_type: pa.DataType) -> Migrate | None:
        if stored.kind != "arrow":
            raise IncompatibleTypeError(f"it was stored by {stored.kind}")
        if storage_type.equals(self.storage_type):
            return None
        change = change_of(storage_type, self.storage_type, self.rules)
        return lambda chunk: [change(chunk)]


def _copy(element: Any) -> Any:
    """Copy the Python object of an Arrow list, struct or map."""
    kind = type(element)
    if kind is list:
        return [_copy(item) for item in element]
    if kind is dict:
        return {name: _copy(item) for name, item in element.items()}
    if kind is tuple:
        return tuple(_copy(item) for item in element)
    return element


def _arrow_takes_all(values: list[Any], native: builtins.type | None) -> bool:
    """Return whether Arrow takes all values of a native type; faster than a check of each."""
    if native is int:
        return _arrow_takes(min(values)) and _arrow_takes(max(values))
    return native is not str or _arrow_takes("".join(values))


def _arrow_takes(value: Any) -> bool:
    """Return whether Arrow can store the value; a few values of native types it can't."""
    if type(value) is int:
        return -_2_63 <= value < _2_63
    return type(value) is not str or is_valid_text(value)
