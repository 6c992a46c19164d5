"""Spark's types: conversion of the values that processors give, and of columns.

Values are converted when a processor gives them, so state that was written in this batch looks like state of an earlier
one. Spark stores null, another number or half of a text for a value of another type; here it is refused.

`value_type` chooses the class of a type, from here or from `scalar_types`. `RowSerializer` is the form in which state
has the values of a state variable.
"""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as spark

from holdfast.backends.arrow import Elements, QuickType, map_array, named_conversion
from holdfast.backends.serializers import ArrowSerializer, Rules
from holdfast.common import gc_paused
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.scalar_types import (
    Binaries,
    Booleans,
    Dates,
    Decimals,
    Durations,
    Floats,
    Integers,
    InvalidValueError,
    LocalTimestamps,
    Nulls,
    Strings,
    Timestamps,
    ValueType,
)


class Arrays(ValueType):
    is_immutable = False

    def __init__(self, element: ValueType, name: str) -> None:
        super().__init__(pa.list_(element.arrow), name)
        self._element = element

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise InvalidValueError(value, self.name)
        try:
            return list(map(self._element.convert, value))
        except InvalidValueError as error:
            raise error.inside("element") from None

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        elements = self._element.column([each for value in values if value for each in value])
        return pa.ListArray.from_arrays(offsets, elements, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        elements = self._element.objects(column.values)
        return _cut(column, elements)

    def copy(self, value: Any) -> Any:
        return None if value is None else list(map(self._element.copy, value))

    def hashable(self, value: Any) -> Any:
        return None if value is None else tuple(map(self._element.hashable, value))


class Maps(ValueType):
    is_immutable = False

    def __init__(self, key: ValueType, item: ValueType, name: str) -> None:
        super().__init__(pa.map_(key.arrow, item.arrow), name)
        self._key, self._item = key, item

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            pairs = dict(value).items()
        except (TypeError, ValueError):
            raise InvalidValueError(value, self.name) from None
        try:
            entries = {self._key.convert(key): self._item.convert(item) for key, item in pairs}
        except InvalidValueError as error:
            raise error.inside("entry") from None
        if None in entries or len(set(map(self._key.hashable, entries))) < len(pairs):
            raise InvalidValueError(value, self.name)  # missing or equal keys
        return entries

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        keys = self._key.column([key for value in values if value for key in value])
        items = self._item.column([item for value in values if value for item in value.values()])
        return map_array(offsets, keys, items, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        pairs = list(
            zip(self._key.objects(column.keys), self._item.objects(column.items), strict=True)
        )
        maps = _cut(column, pairs)
        return [None if entries is None else dict(entries) for entries in maps]

    def copy(self, value: Any) -> Any:
        if value is None:
            return None
        return {self._key.copy(key): self._item.copy(item) for key, item in value.items()}

    def hashable(self, value: Any) -> Any:
        if value is None:
            return None
        hashable_key, hashable_item = self._key.hashable, self._item.hashable
        return frozenset((hashable_key(key), hashable_item(item)) for key, item in value.items())


class Structs(ValueType):
    """Structs. Values of a state variable are plain tuples, and structs inside of others are rows.

    Attributes:
        names: The names of fields.
        fields: The types of fields.
        row: Makes a row from the values of all fields.
        has_hashable_values: Whether dictionaries can look up values as they are.
    """

    def __init__(self, names: Sequence[str], fields: Sequence[ValueType], name: str) -> None:
        arrow = pa.struct(
            [pa.field(n, field.arrow) for n, field in zip(names, fields, strict=True)]
        )
        super().__init__(arrow, name)
        self.names = list(names)
        self.fields = tuple(fields)
        self.is_immutable = all(field.is_immutable for field in fields)
        self.row: Callable[[Any], Any] = row_maker(names)
        self._converters = [field.convert for field in fields]
        self.has_hashable_values = all(
            type(field).hashable is ValueType.hashable for field in fields
        )

    def values(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Convert the values of all fields. Raises `InvalidValueError`."""
        try:
            return tuple([make(part) for make, part in zip(self._converters, given, strict=True)])
        except InvalidValueError:
            for name, make, part in zip(self.names, self._converters, given, strict=True):
                try:
                    make(part)
                except InvalidValueError as error:
                    raise error.inside(name) from None
            raise

    def column(self, values: list[Any]) -> pa.Array:
        mask = None
        if None in values:
            mask = pa.array([value is None for value in values])
            nulls = (None,) * len(self.fields)
            values = [nulls if value is None else value for value in values]
        if not self.fields:
            return pa.array(
                [{}] * len(values), self.arrow, mask=None if mask is None else np.array(mask)
            )
        parts = zip(*values, strict=True) if values else ((),) * len(self.fields)
        columns = [field.column(list(part)) for field, part in zip(self.fields, parts, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask)

    def tuples(self, column: pa.StructArray) -> list[tuple[Any, ...]]:
        """Return the values of a column as plain tuples; those of null are arbitrary."""
        if not self.fields:
            return [()] * len(column)
        parts = []
        for at, (name, field) in enumerate(zip(self.names, self.fields, strict=True)):
            with named_conversion(f"field {name!r}", field.arrow):
                parts.append(field.objects(column.field(at)))
        return list(zip(*parts, strict=True))

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = tuple(value.get(name) for name in self.names)
        if not isinstance(value, tuple | list) or len(value) != len(self.fields):
            raise InvalidValueError(value, self.name)
        return self.row(self.values(value))

    def objects(self, column: pa.Array) -> list[Any]:
        return _with_nulls(list(map(self.row, self.tuples(column))), column)

    def copy(self, value: Any) -> Any:
        if value is None or self.is_immutable:
            return value
        return self.row(self.copy_values(value))

    def copy_values(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a copy of the values of all fields."""
        return tuple([field.copy(part) for field, part in zip(self.fields, values, strict=True)])

    def hashable(self, value: Any) -> Any:
        if value is None or self.has_hashable_values:
            return value
        return tuple([field.hashable(part) for field, part in zip(self.fields, value, strict=True)])


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array | None]:
    lengths = [len(value) if value else 0 for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    mask = pa.array([value is None for value in values]) if None in values else None
    return pa.array(offsets, pa.int32()), mask


def _cut(column: pa.Array, elements: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    return _with_nulls([elements[first:end] for first, end in itertools.pairwise(offsets)], column)


def _with_nulls(objects: list[Any], column: pa.Array) -> list[Any]:
    """Replace the objects of nulls by None."""
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            objects[index] = None
    return objects


_SIMPLE: dict[type[spark.DataType], tuple[type[ValueType], pa.DataType]] = {
    spark.ByteType: (Integers, pa.int8()),
    spark.ShortType: (Integers, pa.int16()),
    spark.IntegerType: (Integers, pa.int32()),
    spark.LongType: (Integers, pa.int64()),
    spark.FloatType: (Floats, pa.float32()),
    spark.DoubleType: (Floats, pa.float64()),
    spark.BooleanType: (Booleans, pa.bool_()),
    spark.StringType: (Strings, pa.string()),
    spark.CharType: (Strings, pa.string()),
    spark.VarcharType: (Strings, pa.string()),
    spark.BinaryType: (Binaries, pa.binary()),
    spark.DateType: (Dates, pa.date32()),
    spark.TimestampType: (Timestamps, pa.timestamp("us", "UTC")),
    spark.TimestampNTZType: (LocalTimestamps, pa.timestamp("us")),
    spark.DayTimeIntervalType: (Durations, pa.duration("us")),
    spark.NullType: (Nulls, pa.null()),
}


def value_type(kind: spark.DataType) -> ValueType:
    """Return the class that converts values of a Spark type. Raises `InvalidRequestError` if state can't have the type."""
    if isinstance(kind, spark.StructType):
        return struct_type(kind)
    if isinstance(kind, spark.ArrayType):
        return Arrays(value_type(kind.elementType), kind.simpleString())
    if isinstance(kind, spark.MapType):
        return Maps(value_type(kind.keyType), value_type(kind.valueType), kind.simpleString())
    if isinstance(kind, spark.DecimalType):
        return Decimals(pa.decimal128(kind.precision, kind.scale), kind.simpleString())
    known = _SIMPLE.get(type(kind))
    if known is None:
        raise InvalidRequestError(
            f"values of Spark type {kind.simpleString()} can't be stored; cast them to another type"
        )
    make, arrow = known
    return make(arrow, kind.simpleString())


def struct_type(kind: spark.StructType) -> Structs:
    """Return the same as `value_type`, for a struct."""
    return _struct_type(kind.json())


@lru_cache(maxsize=256)
def _struct_type(text: str) -> Structs:
    kind = spark.StructType.fromJson(json.loads(text))
    repeated = sorted({name for name in kind.names if kind.names.count(name) > 1})
    if repeated:
        message = f"a struct has two fields of the name {repeated[0]!r}: {kind.simpleString()}"
        raise InvalidRequestError(message)
    fields = [value_type(field.dataType) for field in kind.fields]
    return Structs(kind.names, fields, kind.simpleString())


def row_maker(names: Sequence[str]) -> Callable[[Iterable[Any]], Row]:
    """Return a function that makes rows of these fields from their values.

    Spark's `Row` is a tuple with an attribute for the names, and looks up a field only after every other attribute.
    These rows are of a subclass whose fields are properties, except fields with the name of a method such as `count`:
    there `row.count` is the method, as in Spark.
    """
    fields: dict[str, Any] = {
        name: property(itemgetter(position))
        for position, name in reversed(list(enumerate(names)))
        if name.isidentifier() and not hasattr(Row, name) and not name.startswith("__")
    }
    row_class = type(
        "Row", (Row,), {**fields, "__fields__": list(names), "__module__": Row.__module__}
    )
    return partial(tuple.__new__, row_class)


class RowSerializer(ArrowSerializer):
    """Stores the values of a state variable: structs in columns, plain tuples in Python.

    Tuples must have converted values (`Structs.values`): they are stored without another check. `dropped` is as in `Rules`.
    """

    def __init__(self, rows: Structs, dropped: Collection[str] | None) -> None:
        super().__init__(rows.arrow, Rules(dropped=dropped))
        self._rows = rows
        self.is_immutable = rows.is_immutable

    @property
    def quick(self) -> QuickType:
        return QuickType(tuple)

    @property
    def quick_copy(self) -> Callable[[Any], Any] | None:
        return None if self.is_immutable else self._rows.copy_values

    @property
    def hashable(self) -> Callable[[Any], Any] | None:
        return None if self._rows.has_hashable_values else self._rows.hashable

    def encode(self, values: Elements) -> list[pa.Array]:
        return [self._rows.column(values)] if isinstance(values, list) else super().encode(values)

    def encode_with_nulls(self, values: list[Any]) -> list[pa.Array]:
        return [self._rows.column(values)]

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        with gc_paused():
            return [value for chunk in column.chunks for value in self._rows.tuples(chunk)]
