"""Columns of collections: lists, tuples of any length, sets and dicts, as lists and maps of their items."""

from collections.abc import Callable
from itertools import chain
from types import GenericAlias
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import children_of
from holdfast.backends.serializers.object_column import ObjectColumn, offsets, slices


class ItemsColumn(ObjectColumn):
    """Lists, tuples of any length, and sets.

    Args:
        kind: The collections' class.
        item: Column of their items.
    """

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

    def of_row(self, row: Any) -> Any:
        return None if row is None else self._kind(map(self._item.of_row, row))

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
        made = [None if part is None else self._kind(part) for part in parts]
        if self._is_set:
            _check_unique(made, parts)
        return made


class DictColumn(ObjectColumn):
    """Dicts, as maps.

    Args:
        key: Column of their keys.
        value: Column of their values.
    """

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

    def of_row(self, row: Any) -> Any:
        if row is None:
            return None
        return {self._key.of_row(key): self._value.of_row(item) for key, item in row.items()}

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        mask = self.mask(objects)
        present = objects if mask is None else [mapping or {} for mapping in objects]
        keys = self._key.write(list(chain.from_iterable(present)), checked=checked)
        values = list(chain.from_iterable(map(dict.values, present)))
        items = self._value.write(values, checked=checked)
        return pa.MapArray.from_arrays(offsets(present), keys, items, type=self.type, mask=mask)

    def read(self, array: pa.Array) -> list[Any]:
        keys, items = children_of(array)
        pairs = list(zip(self._key.read(keys), self._value.read(items), strict=True))
        parts = [None if place is None else pairs[place] for place in slices(array)]
        made = [None if part is None else dict(part) for part in parts]
        _check_unique(made, parts)
        return made


def _check_unique(made: list[Any], parts: list[Any]) -> None:
    """Check that what was made of parts has as many items as these. Raises `ValueError`."""
    if sum(map(len, filter(None, made))) < sum(map(len, filter(None, parts))):
        raise ValueError("items that were different are the same now")
