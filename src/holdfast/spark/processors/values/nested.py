"""Arrays, maps and structs: values that have other values inside."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import named_conversion
from holdfast.spark.processors.values.row_classes import row_maker
from holdfast.spark.processors.values.value_type import NoValueError, ValueType


class Arrays(ValueType):
    is_immutable = False

    def __init__(self, element: ValueType, name: str) -> None:
        super().__init__(pa.list_(element.arrow), name)
        self._element = element

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise NoValueError(value, self.name)
        try:
            return list(map(self._element.canonical, value))
        except NoValueError as error:
            raise error.inside("element") from None

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        elements = self._element.column([each for value in values if value for each in value])
        return pa.ListArray.from_arrays(offsets, elements, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        elements = self._element.objects(column.values)
        return _cut(column, elements)

    def copied(self, value: Any) -> Any:
        return None if value is None else list(map(self._element.copied, value))

    def hashable(self, value: Any) -> Any:
        return None if value is None else tuple(map(self._element.hashable, value))


class Maps(ValueType):
    is_immutable = False

    def __init__(self, key: ValueType, item: ValueType, name: str) -> None:
        super().__init__(pa.map_(key.arrow, item.arrow), name)
        self._key, self._item = key, item

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            pairs = dict(value).items()
        except (TypeError, ValueError):
            raise NoValueError(value, self.name) from None
        try:
            entries = {self._key.canonical(key): self._item.canonical(item) for key, item in pairs}
        except NoValueError as error:
            raise error.inside("entry") from None
        if None in entries or len(set(map(self._key.hashable, entries))) < len(pairs):
            raise NoValueError(
                value, self.name
            )  # a key is missing, or two are the same value of their type
        return entries

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        keys = self._key.column([key for value in values if value for key in value])
        items = self._item.column([item for value in values if value for item in value.values()])
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        pairs = list(
            zip(self._key.objects(column.keys), self._item.objects(column.items), strict=True)
        )
        maps = _cut(column, pairs)
        return [None if entries is None else dict(entries) for entries in maps]

    def copied(self, value: Any) -> Any:
        if value is None:
            return None
        return {self._key.copied(key): self._item.copied(item) for key, item in value.items()}

    def hashable(self, value: Any) -> Any:
        if value is None:
            return None
        hashable_key, hashable_item = self._key.hashable, self._item.hashable
        return frozenset((hashable_key(key), hashable_item(item)) for key, item in value.items())


class Structs(ValueType):
    """Values of several fields: those of a state variable are plain tuples, those inside of others are rows."""

    def __init__(self, names: Sequence[str], fields: Sequence[ValueType], name: str) -> None:
        arrow = pa.struct(
            [pa.field(n, field.arrow) for n, field in zip(names, fields, strict=True)]
        )
        super().__init__(arrow, name)
        self.names = list(names)
        self.fields = tuple(fields)
        self.is_immutable = all(field.is_immutable for field in fields)
        self.row: Callable[[Any], Any] = row_maker(names)
        self._canonicals = [field.canonical for field in fields]
        self.is_hashed_as_it_is = all(
            type(field).hashable is ValueType.hashable for field in fields
        )

    def values(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """The canonical values of as many fields. Raises `NoValueError`."""
        try:
            return tuple([make(part) for make, part in zip(self._canonicals, given, strict=True)])
        except NoValueError:
            for name, make, part in zip(self.names, self._canonicals, given, strict=True):
                try:
                    make(part)
                except NoValueError as error:
                    raise error.inside(name) from None
            raise

    def array(self, values: Sequence[Sequence[Any] | None]) -> pa.StructArray:
        """The column of canonical values; null for None."""
        mask = None
        if None in values:
            mask = pa.array([value is None for value in values])
            nothing = (None,) * len(self.fields)
            values = [nothing if value is None else value for value in values]
        if not self.fields:
            return pa.array(
                [{}] * len(values), self.arrow, mask=None if mask is None else np.array(mask)
            )
        parts = zip(*values, strict=True) if values else ((),) * len(self.fields)
        columns = [field.column(list(part)) for field, part in zip(self.fields, parts, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask)

    def tuples(self, column: pa.StructArray) -> list[tuple[Any, ...]]:
        """The values of a column, as plain tuples; of what is null they don't matter."""
        if not self.fields:
            return [()] * len(column)
        parts = []
        for at, (name, field) in enumerate(zip(self.names, self.fields, strict=True)):
            with named_conversion(f"field {name!r}", field.arrow):
                parts.append(field.objects(column.field(at)))
        return list(zip(*parts, strict=True))

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = tuple(value.get(name) for name in self.names)
        if not isinstance(value, tuple | list) or len(value) != len(self.fields):
            raise NoValueError(value, self.name)
        return self.row(self.values(value))

    def column(self, values: list[Any]) -> pa.Array:
        return self.array(values)

    def objects(self, column: pa.Array) -> list[Any]:
        rows = list(map(self.row, self.tuples(column)))
        if column.null_count:
            for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                rows[index] = None
        return rows

    def copied(self, value: Any) -> Any:
        if value is None or self.is_immutable:
            return value
        return self.row(self.copied_values(value))

    def copied_values(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A copy of the values of all fields."""
        return tuple([field.copied(part) for field, part in zip(self.fields, values, strict=True)])

    def hashable(self, value: Any) -> Any:
        if value is None or self.is_hashed_as_it_is:
            return value
        return tuple([field.hashable(part) for field, part in zip(self.fields, value, strict=True)])


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array | None]:
    lengths = [len(value) if value else 0 for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    mask = pa.array([value is None for value in values]) if None in values else None
    return pa.array(offsets, pa.int32()), mask


def _cut(column: pa.Array, elements: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    lists: list[Any] = [elements[first:end] for first, end in itertools.pairwise(offsets)]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            lists[index] = None
    return lists
