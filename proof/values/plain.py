"""Plain values: numbers, texts, bytes, lists and dicts that mean what an Arrow value means.

The model computes with these. Nothing is lost between them and Arrow: a decimal is its unscaled
integer, a date is days, a timestamp or duration is a number of its unit, a map is a list of pairs.
"""

import decimal
import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

_EXACT = decimal.Context(prec=200)


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of this type that has these plain values."""
    if types.is_null(kind):
        return pa.nulls(len(values))
    if types.is_decimal(kind):
        numbers = [None if value is None else _to_decimal(value, kind.scale) for value in values]
        return pa.array(numbers, kind)
    if types.is_date32(kind) or types.is_time32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if types.is_temporal(kind):
        return pa.array(values, pa.int64()).view(kind)
    if types.is_dictionary(kind):
        return to_arrow(values, kind.value_type).dictionary_encode().cast(kind)
    is_null = pa.array([value is None for value in values], pa.bool_())
    if types.is_struct(kind):
        fields = [
            to_arrow([None if value is None else value[field.name] for value in values], field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=is_null)
    if types.is_map(kind):
        pairs = [pair for value in values for pair in value or ()]
        keys = to_arrow([key for key, _ in pairs], kind.key_type)
        items = to_arrow([item for _, item in pairs], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)
    if types.is_list(kind) or types.is_large_list(kind):
        elements = to_arrow([each for value in values for each in value or ()], kind.value_type)
        is_large = types.is_large_list(kind)
        offsets = _offsets(values).cast(pa.int64() if is_large else pa.int32())
        make = pa.LargeListArray if is_large else pa.ListArray
        return make.from_arrays(offsets, elements, type=kind)
    return pa.array(values, kind)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offsets of lists; an offset is null where a list is."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _to_decimal(unscaled: int, scale: int) -> decimal.Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return decimal.Decimal((int(unscaled < 0), digits, -scale))


def from_arrow(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the plain values of an array."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in from_arrow(chunk)]
    kind = array.type
    valid = array.is_valid().to_pylist()
    if types.is_null(kind):
        return [None] * len(array)
    if types.is_decimal(kind):
        numbers = array.to_pylist()
        return [
            None if value is None else int(_EXACT.scaleb(value, kind.scale)) for value in numbers
        ]
    if types.is_date32(kind) or types.is_time32(kind):
        return list(array.view(pa.int32()).to_pylist())
    if types.is_temporal(kind):
        return list(array.view(pa.int64()).to_pylist())
    if types.is_dictionary(kind):
        return from_arrow(array.dictionary_decode())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [from_arrow(column) for column in array.flatten()]
        rows = zip(*columns, strict=True) if columns else [()] * len(array)
        return [
            dict(zip(names, row, strict=True)) if is_valid else None
            for row, is_valid in zip(rows, valid, strict=True)
        ]
    if types.is_map(kind):
        bounds = array.offsets.to_pylist()
        pairs = list(zip(from_arrow(array.keys), from_arrow(array.items), strict=True))
        return _cut(pairs, bounds, valid)
    if types.is_list(kind) or types.is_large_list(kind):
        return _cut(from_arrow(array.values), array.offsets.to_pylist(), valid)
    return list(array.to_pylist())


def _cut(elements: list[Any], bounds: list[int], valid: list[bool]) -> list[Any]:
    return [
        elements[bounds[index] : bounds[index + 1]] if is_valid else None
        for index, is_valid in enumerate(valid)
    ]


def frozen(value: Any) -> Any:
    """Return a hashable value that is equal for equal plain values: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(value, float):
        return ("NaN",) if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return ("struct", *((name, frozen(field)) for name, field in value.items()))
    if isinstance(value, list | tuple):
        return ("list", *map(frozen, value))
    if isinstance(value, bool):
        return ("bool", value)
    return value


def order_of(value: Any) -> Any:
    """Return the sort key of a plain value, in the order of Spark: null first, NaN last, texts by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    if isinstance(value, str):
        return (1, value.encode("utf-8"))
    if isinstance(value, dict):
        return (1, [order_of(field) for field in value.values()])
    if isinstance(value, list | tuple):
        return (1, [order_of(element) for element in value])
    return (1, value)


def short_name(kind: pa.DataType) -> str:
    """Return the name of a type without its parameters."""
    return re.split(r"[(<\[]", str(kind))[0]
