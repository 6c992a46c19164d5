"""Columns of objects: each writes the objects of a type to an Arrow array, and reads them.

`ObjectColumn` is the base. Leaves have nothing inside: numbers, texts, times, members of enums. Collections are lists and
maps of their items. `column_choice` has the columns of classes.
"""

import builtins
import datetime as dt
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from operator import is_
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import (
    QuickType,
    children_of,
    map_array,
    objects_of,
    offsets_of,
    paths_in,
)
from holdfast.backends.serializers.arrow_migration import Default


class NoColumnError(Exception):
    """Arrow has no type for the objects of a type, which the message names."""


class InexactError(Exception):
    """Objects may differ from those that their column would give back."""


class ObjectColumn(ABC):
    """Writes objects of one type to an Arrow array, and reads them.

    A row of an object has the same values, with tuples in the place of classes.

    Args:
        type: Type of the array.
        kind: Class of the objects.
        parts: Columns of the values inside the objects, in the order of the array's children.

    Attributes:
        may_be_none: Whether None is among the objects.
        kinds: Classes of objects that need no further check; empty if msgspec has to check each object.
        default: Makes an array of defaults, for a field that the stored class lacks; None without a default.
        has_classes: Whether rows differ from the objects.
        row_type: The type that msgspec decodes rows to, if Arrow stores every row of that type; else None.
        is_plain: Whether objects of the class are immutable and come back unchanged.
        quick: Objects that need no row to be checked and copied; None if all need one.
        quick_copy: Copies a quick object; None if it is immutable.
    """

    def __init__(
        self, type: pa.DataType, kind: builtins.type, parts: Sequence["ObjectColumn"] = ()
    ) -> None:
        self.type = type
        self.parts = parts
        self.may_be_none = False
        self.kinds = frozenset([kind])
        self.default: Default | None = None
        self.has_classes: bool = any(part.has_classes for part in parts)
        self.row_type: Any = None
        self.is_plain = False
        self.quick: QuickType | None = None
        self.quick_copy: Callable[[Any], Any] | None = None

    def row(self, value: Any) -> Any:
        """Return the object with tuples in the place of classes. Raises `InexactError` for an object of another class."""
        return value

    def from_row(self, row: Any) -> Any:
        """Make an object of its row; a new one, unless it is immutable."""
        return row

    @abstractmethod
    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        """Make an array of objects, or of their rows.

        Raises `InexactError` if an object may be of another type, unless they were `checked` with all their parts; also
        Arrow's errors and `OverflowError`.
        """

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """Make the objects of an array, with None for null. Raises errors of msgspec."""

    def check_kinds(self, objects: list[Any]) -> None:
        """Check the class of objects. Raises `InexactError`."""
        kinds = set(map(type, objects))
        if not kinds <= self.kinds and not (
            self.may_be_none and kinds <= {*self.kinds, type(None)}
        ):
            raise InexactError

    def by_path(self, path: str = "") -> Iterator[tuple[str, "ObjectColumn"]]:
        """Iterate over this column and all columns inside it, each with its path."""
        yield path, self
        for below, part in zip(paths_in(self.type, path), self.parts, strict=True):
            yield from part.by_path(below)

    def field(self, name: str) -> pa.Field:
        """Return the field for these objects in a type around them."""
        return pa.field(name, self.type, nullable=self.may_be_none)

    def mask(self, objects: list[Any]) -> pa.Array | None:
        """Mark the positions of None; returns None if there are no such positions."""
        if not self.may_be_none or not any(map(is_, objects, repeat(None))):
            return None  # `in` would ask the objects' own classes
        return pa.array([value is None for value in objects], pa.bool_())


def offsets(objects: list[Any]) -> pa.Array:
    """Return the positions at which the items of each object begin, and the end of the last one."""
    lengths = np.fromiter(map(len, objects), np.int64, len(objects))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def slices(array: pa.Array) -> Iterable[slice | None]:
    """Return the slice of all items that each list or map has; None if it is null."""
    ends = offsets_of(array).tolist()
    parts = map(slice, ends, ends[1:])
    if not array.null_count:
        return parts
    return (
        part if is_valid else None
        for part, is_valid in zip(parts, array.is_valid().to_pylist(), strict=True)
    )


class PlainColumn(ObjectColumn):
    """Values that are the same in Arrow and Python.

    Args:
        type: Type of the array.
        kind: Class of the objects.
        zones: The time zones that times may have: msgspec changes others to UTC.
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
        return objects_of(array)

    def check_kinds(self, objects: list[Any]) -> None:
        super().check_kinds(objects)
        if self._zones is not None and not self._zones.issuperset(
            value.tzinfo for value in objects if value is not None
        ):
            raise InexactError


class LiteralColumn(PlainColumn):
    """Some values of one type."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(type_of_values(values), type(values[0]))
        self._values = {*values, None}

    def check_kinds(self, objects: list[Any]) -> None:
        super().check_kinds(objects)
        if not set(objects) <= self._values:
            raise InexactError


class TagColumn(PlainColumn):
    """The tag of a tagged struct."""

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
    """Objects that msgspec converts from and to text or numbers, such as decimals and members of enums."""

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
    """Return the type of a column of these values. Raises `NoColumnError` if Arrow has no such type."""
    kinds = set(map(type, values))
    if len(kinds) != 1 or not kinds <= {str, int}:
        raise NoColumnError("values of several types")
    return pa.string() if kinds == {str} else pa.int64()


class ItemsColumn(ObjectColumn):
    """Lists, tuples of any length, and sets."""

    def __init__(self, kind: type, item: ObjectColumn) -> None:
        super().__init__(pa.list_(item.field("item")), kind, (item,))
        self._item = item
        self._kind: Callable[[Any], Any] = kind
        self._is_set = issubclass(kind, set | frozenset)
        if item.row_type is not None:
            rest = (...,) if kind is tuple else ()
            self.row_type = GenericAlias(kind, (item.row_type, *rest))

    def row(self, value: Any) -> Any:
        if value is None or not self.has_classes:
            return value
        return self._kind(map(self._item.row, value))

    def from_row(self, row: Any) -> Any:
        return None if row is None else self._kind(map(self._item.from_row, row))

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        mask = self.mask(objects)
        present = objects if mask is None else [items or () for items in objects]
        items = self._item.write(list(chain.from_iterable(present)), checked=checked)
        return pa.ListArray.from_arrays(offsets(present), items, type=self.type, mask=mask)

    def read(self, array: pa.Array) -> list[Any]:
        items = self._item.read(*children_of(array))
        parts = [None if place is None else items[place] for place in slices(array)]
        if self._kind is list:
            return parts
        collections = [None if part is None else self._kind(part) for part in parts]
        if self._is_set:
            _check_unique(collections, parts)
        return collections


class DictColumn(ObjectColumn):
    """Dicts, as maps."""

    def __init__(self, key: ObjectColumn, value: ObjectColumn) -> None:
        super().__init__(pa.map_(key.type, value.field("value")), dict, (key, value))
        self._key = key
        self._value = value
        if key.row_type is not None and value.row_type is not None:
            self.row_type = GenericAlias(dict, (key.row_type, value.row_type))

    def row(self, value: Any) -> Any:
        if value is None or not self.has_classes:
            return value
        return {self._key.row(key): self._value.row(item) for key, item in value.items()}

    def from_row(self, row: Any) -> Any:
        if row is None:
            return None
        return {self._key.from_row(key): self._value.from_row(item) for key, item in row.items()}

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        mask = self.mask(objects)
        present = objects if mask is None else [mapping or {} for mapping in objects]
        keys = self._key.write(list(chain.from_iterable(present)), checked=checked)
        values = list(chain.from_iterable(map(dict.values, present)))
        items = self._value.write(values, checked=checked)
        return map_array(offsets(present), keys, items, type=self.type, mask=mask)

    def read(self, array: pa.Array) -> list[Any]:
        keys, items = children_of(array)
        pairs = list(zip(self._key.read(keys), self._value.read(items), strict=True))
        parts = [None if place is None else pairs[place] for place in slices(array)]
        dicts = [None if part is None else dict(part) for part in parts]
        _check_unique(dicts, parts)
        return dicts


def _check_unique(collections: list[Any], parts: list[Any]) -> None:
    """Check that collections have as many items as the parts they were made of. Raises `ValueError`."""
    if sum(map(len, filter(None, collections))) < sum(map(len, filter(None, parts))):
        raise ValueError("items that were different are the same now")
