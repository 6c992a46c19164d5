"""Columns of objects that have nothing inside: numbers, texts, times, members of enums."""

import builtins
import datetime as dt
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.serializers.object_column import NoColumnError, ObjectColumn, UnlikeError


class PlainColumn(ObjectColumn):
    """Values that Arrow and Python have alike.

    Args:
        type: Type of the array.
        kind: Class of the objects.
        zones: The time zones that times may have: msgspec gives back others as UTC.
    """

    def __init__(
        self,
        type: pa.DataType,
        kind: builtins.type,
        *,
        zones: frozenset[dt.tzinfo | None] | None = None,
    ) -> None:
        super().__init__(type, kind)
        self._zones = zones
        self._form = {pa.int64(): "q", pa.float64(): "d"}.get(type)

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        if self._form:
            with suppress(struct.error):
                data = struct.pack(f"{len(objects)}{self._form}", *objects)
                return pa.Array.from_buffers(self.type, len(objects), [None, pa.py_buffer(data)])
        array = pa.array(objects, self.type)
        if isinstance(array, pa.ChunkedArray):
            raise pa.ArrowCapacityError("too many bytes for an array")
        return array

    def read(self, array: pa.Array) -> list[Any]:
        if self._form and not array.null_count:
            return list(array.to_numpy().tolist())  # numpy makes all objects in one go
        return list(array.to_pylist())

    def check_kinds(self, objects: list[Any]) -> None:
        super().check_kinds(objects)
        if self._zones is not None and not self._zones.issuperset(
            value.tzinfo for value in objects if value is not None
        ):
            raise UnlikeError


class LiteralColumn(PlainColumn):
    """Some values of one type."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(type_of_values(values), type(values[0]))
        self._values = {*values, None}

    def check_kinds(self, objects: list[Any]) -> None:
        super().check_kinds(objects)
        if not set(objects) <= self._values:
            raise UnlikeError


class TagColumn(PlainColumn):
    """The field that tells a tagged struct from others."""

    def __init__(self, tag: str | int) -> None:
        super().__init__(type_of_values([tag]), type(tag))
        self._tag = tag
        self.default = lambda count: pa.repeat(pa.scalar(tag, self.type), count)

    def read(self, array: pa.Array) -> list[Any]:
        tags = super().read(array)
        if set(tags) - {self._tag, None}:
            raise ValueError("elements have another tag")
        return tags


class InstantColumn(PlainColumn):
    """Datetimes in UTC."""

    def __init__(self) -> None:
        super().__init__(pa.timestamp("us", "UTC"), dt.datetime, zones=frozenset([dt.UTC]))

    def read(self, array: pa.Array) -> list[Any]:
        local = array.cast(pa.timestamp("us")).to_pylist()
        return [value if value is None else value.replace(tzinfo=dt.UTC) for value in local]


class ConvertedColumn(PlainColumn):
    """Objects that msgspec makes of text or of numbers, such as decimals and members of enums."""

    def __init__(
        self,
        type: pa.DataType,
        python_type: Any,
        *,
        zones: frozenset[dt.tzinfo | None] | None = None,
    ) -> None:
        super().__init__(type, python_type, zones=zones)
        self._list = list[python_type | None]

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        return super().write(msgspec.to_builtins(objects), checked=True)

    def read(self, array: pa.Array) -> list[Any]:
        return list(msgspec.convert(super().read(array), self._list))


def type_of_values(values: list[Any]) -> pa.DataType:
    """The type of a column of these values. Raises `NoColumnError` if there is none."""
    kinds = set(map(type, values))
    if len(kinds) != 1 or not kinds <= {str, int}:
        raise NoColumnError("values of several types")
    return pa.string() if kinds == {str} else pa.int64()
