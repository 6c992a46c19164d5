"""The choice of a column for a type of objects: a class is a struct of its fields, a dict a map, a set a list.

`object_column` decides once per type. Objects are then written and read a column at a time, not one by one.
"""

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from holdfast.backends.arrow import PYTHON_TYPES
from holdfast.backends.serializers.columns import (
    ConvertedColumn,
    DictColumn,
    InstantColumn,
    ItemsColumn,
    LiteralColumn,
    NoColumnError,
    ObjectColumn,
    PlainColumn,
    type_of_values,
)
from holdfast.backends.serializers.struct_columns import ClassColumn, TupleColumn, TypedDictColumn
from holdfast.backends.serializers.type_forms import CLASSES

_Outer = tuple[Any, ...]


def object_column(described: Any, outer: _Outer = ()) -> ObjectColumn:
    """Return the column of a type inside of some classes, as `msgspec.inspect.type_info` describes them.

    Raises `NoColumnError` if the type has unions, refers to itself, or has parts without a type.
    """
    make = _COLUMNS.get(type(described))
    if make is None:
        raise NoColumnError(type(described).__name__)
    column = make(described, outer)
    if _is_bounded(described):  # msgspec has to check each object
        column.kinds = frozenset()
        column.row_type = None
        column.is_plain = False
    return column


def _is_bounded(described: Any) -> bool:
    """Return whether a type has bounds, such as a minimum or a maximum length."""
    bounds = _BOUNDS.intersection(described.__struct_fields__)
    return any(getattr(described, name) is not None for name in bounds)


def _class(described: Any, outer: _Outer) -> ObjectColumn:
    if described.cls in outer:
        raise NoColumnError(f"{described.cls.__name__}, a recursive class")
    if not described.fields:
        raise NoColumnError("a class without fields")
    is_dict = isinstance(described, inspect.TypedDictType)
    columns: dict[str, ObjectColumn] = {}
    for field in described.fields:
        column = object_column(field.type, (*outer, described.cls))
        if not field.required and (is_dict or field.default is msgspec.UNSET):
            if column.may_be_none:
                raise NoColumnError("an optional field that may also be None")
            column.may_be_none = True
        elif not field.required:
            column.default = partial(_defaults, field, column)
        columns[field.encode_name] = column
    return TypedDictColumn(described, columns) if is_dict else ClassColumn(described, columns)


def _defaults(field: inspect.Field, column: ObjectColumn, count: int) -> pa.Array:
    """Make an array of a field's default, `count` times."""
    if field.default_factory is not msgspec.NODEFAULT:
        return column.write([field.default_factory() for _ in range(count)], checked=True)
    return column.write([field.default] * count, checked=True)


def _optional(described: inspect.UnionType, outer: _Outer) -> ObjectColumn:
    others = [part for part in described.types if not isinstance(part, inspect.NoneType)]
    if len(others) != 1:
        raise NoColumnError("a union")
    column = object_column(others[0], outer)
    column.may_be_none = True
    if column.row_type is not None:
        column.row_type = column.row_type | None
    return column


def _plain(described: Any, _outer: _Outer) -> ObjectColumn:
    kind, row_type = _PLAIN[type(described)]
    column = PlainColumn(PYTHON_TYPES[kind], kind)
    column.row_type = row_type
    column.is_plain = row_type is not None
    return column


def _text(kind: type, _described: Any, _outer: _Outer) -> ObjectColumn:
    column = ConvertedColumn(pa.string(), kind)
    column.is_plain = True
    return column


def _items(described: Any, outer: _Outer) -> ObjectColumn:
    return ItemsColumn(_COLLECTIONS[type(described)], object_column(described.item_type, outer))


def _dict(described: Any, outer: _Outer) -> ObjectColumn:
    key = object_column(described.key_type, outer)
    if key.may_be_none:
        raise NoColumnError("a dict with None as a key")
    return DictColumn(key, object_column(described.value_type, outer))


def _tuple(described: Any, outer: _Outer) -> ObjectColumn:
    if not described.item_types:
        raise NoColumnError("an empty tuple")
    return TupleColumn([object_column(item, outer) for item in described.item_types])


def _enum(described: Any, _outer: _Outer) -> ObjectColumn:
    return ConvertedColumn(
        type_of_values([member.value for member in described.cls]), described.cls
    )


def _time(described: Any, _outer: _Outer) -> ObjectColumn:
    is_instant = isinstance(described, inspect.DateTimeType)
    kind: Any = dt.datetime if is_instant else dt.time
    if described.tz is False:
        return PlainColumn(
            pa.timestamp("us") if is_instant else pa.time64("us"), kind, zones=frozenset([None])
        )
    if described.tz and is_instant:
        return InstantColumn()
    # Text keeps whether they have a zone.
    return ConvertedColumn(pa.string(), kind, zones=frozenset([dt.UTC, None]))


_INT64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_PLAIN: dict[type[inspect.Type], tuple[type, Any]] = {
    inspect.BoolType: (bool, bool),
    inspect.IntType: (int, _INT64),
    inspect.FloatType: (float, float),
    inspect.StrType: (str, str),
    inspect.BytesType: (bytes, bytes),
    inspect.DateType: (dt.date, dt.date),
    inspect.TimeDeltaType: (dt.timedelta, None),
}
"""The class of each type, and the type of its rows: integers of 64 bits only, and no durations, which may be too long."""

_COLLECTIONS: dict[type[inspect.Type], type] = {
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}
_BOUNDS = {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern"}

_COLUMNS: dict[type[inspect.Type], Callable[[Any, _Outer], ObjectColumn]] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_COLLECTIONS, _items),
    **dict.fromkeys(CLASSES, _class),
    inspect.Metadata: lambda described, outer: object_column(described.type, outer),
    inspect.UnionType: _optional,
    inspect.DateTimeType: _time,
    inspect.TimeType: _time,
    inspect.DecimalType: partial(_text, Decimal),
    inspect.UUIDType: partial(_text, uuid.UUID),
    inspect.EnumType: _enum,
    inspect.LiteralType: lambda described, _: LiteralColumn(list(described.values)),
    inspect.TupleType: _tuple,
    inspect.DictType: _dict,
}
