"""The choice of a column for a type of objects, and the columns of those that are structs in Arrow.

A class is a struct of its fields, a tuple of a fixed length a struct of its items, a dict a map, a set a list.
`object_column` decides once per type. Objects are then written and read a column at a time, not one by one.
"""

import dataclasses
import datetime as dt
import inspect as signatures
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, get_origin

import msgspec
import pyarrow as pa
from msgspec import inspect

from holdfast.backends.arrow import PYTHON_TYPES, NotQuickError, QuickType, children_of
from holdfast.backends.serializers.columns import (
    ConvertedColumn,
    DictColumn,
    InexactError,
    InstantColumn,
    ItemsColumn,
    LiteralColumn,
    NoColumnError,
    ObjectColumn,
    PlainColumn,
    TagColumn,
    type_of_values,
)
from holdfast.backends.serializers.objects import CLASSES


class StructColumn(ObjectColumn):
    """The base of columns whose objects are structs in Arrow."""

    def __init__(self, kind: type, columns: Mapping[str, ObjectColumn]) -> None:
        fields = [column.field(name) for name, column in columns.items()]
        super().__init__(pa.struct(fields), kind, tuple(columns.values()))

    @abstractmethod
    def _values(self, objects: list[Any]) -> Iterable[list[Any]]:
        """Return the values of each field, field by field."""

    @abstractmethod
    def _make_all(self, values: list[list[Any]]) -> Iterable[Any]:
        """Make the objects of the values of each field."""

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        mask = self.mask(objects)
        present = objects if mask is None else [each for each in objects if each is not None]
        arrays = [
            part.write(values, checked=checked)
            for part, values in zip(self.parts, self._values(present), strict=True)
        ]
        array = pa.StructArray.from_arrays(arrays, fields=list(self.type))
        if mask is None:
            return array
        rows = iter(range(len(present)))
        return array.take(
            pa.array([None if each is None else next(rows) for each in objects], pa.int64())
        )

    def read(self, array: pa.Array) -> list[Any]:
        arrays = children_of(array.drop_null())
        values = [part.read(inner) for part, inner in zip(self.parts, arrays, strict=True)]
        objects = self._make_all(values)
        if not array.null_count:
            return list(objects)
        present = iter(objects)
        return [next(present) if is_valid else None for is_valid in array.is_valid().to_pylist()]


class TupleColumn(StructColumn):
    """Tuples of a fixed length, with a type for each item."""

    def __init__(self, items: Iterable[ObjectColumn]) -> None:
        super().__init__(tuple, {f"_{number}": item for number, item in enumerate(items, 1)})

    def _values(self, objects: list[Any]) -> Iterable[list[Any]]:
        if any(len(each) != len(self.parts) for each in objects):
            raise InexactError
        return map(list, zip(*objects, strict=True)) if objects else [[] for _ in self.parts]

    def _make_all(self, values: list[list[Any]]) -> Iterable[Any]:
        return zip(*values, strict=True)


class TypedDictColumn(StructColumn):
    """Dicts with known keys, which may be optional."""

    def __init__(
        self, described: inspect.TypedDictType, columns: Mapping[str, ObjectColumn]
    ) -> None:
        super().__init__(dict, columns)
        self.kinds = frozenset()  # msgspec has to check the keys
        self._names = list(columns)
        self._optional = {field.name for field in described.fields if not field.required}

    def _values(self, objects: list[Any]) -> Iterable[list[Any]]:
        return ([row.get(name) for row in objects] for name in self._names)

    def _make_all(self, values: list[list[Any]]) -> Iterable[Any]:
        rows = (dict(zip(self._names, row, strict=True)) for row in zip(*values, strict=True))
        if not self._optional:
            return rows
        return (
            {
                name: value
                for name, value in row.items()
                if value is not None or name not in self._optional
            }
            for row in rows
        )


class ClassColumn(StructColumn):
    """Structs of msgspec, dataclasses and named tuples. Columns of fields are by their stored names."""

    def __init__(self, described: Any, columns: Mapping[str, ObjectColumn]) -> None:
        cls: Any = get_origin(described.cls) or described.cls
        self._tag = getattr(described, "tag", None)
        tag = {} if self._tag is None else {described.tag_field: TagColumn(self._tag)}
        super().__init__(cls, {**columns, **tag})
        self.has_classes = True
        if hasattr(cls, "__post_init__"):
            self.kinds = frozenset()  # its effect on the fields is known only after the call
        self._class = cls
        self._make = constructor_of(described)
        self._names = [field.name for field in described.fields]
        self._unset = [field.default is msgspec.UNSET for field in described.fields]
        self._values_of = _values_of(described)
        self._columns = list(columns.values())
        self._inner = [
            (index, column) for index, column in enumerate(self._columns) if column.has_classes
        ]
        self._row_class: Any = None
        types = [column.row_type for column in self._columns]
        if self.kinds and not any(self._unset) and None not in types:
            names = (f"_{number}" for number in range(len(types)))
            # The garbage collector need not track rows: no value in a row can refer back to it.
            self.row_type = self._row_class = msgspec.defstruct(
                "Row", list(zip(names, types, strict=True)), array_like=True, frozen=True, gc=False
            )

        if self.kinds and not any(self._unset) and all(part.is_plain for part in self._columns):
            self._make_quick()

    def _make_quick(self) -> None:
        """Accept frozen objects unchanged, and copy others, if every field has an object of its column's class."""
        kinds = [
            column.kinds | {NoneType} if column.may_be_none else column.kinds
            for column in self._columns
        ]
        values_of, make, is_frozen = self._values_of, self._make, _is_frozen(self._class)

        def convert(value: Any) -> Any:
            values = values_of(value)
            for item, allowed in zip(values, kinds):  # noqa: B905  # `strict` takes time
                if type(item) not in allowed:
                    raise NotQuickError
            return value if is_frozen else make(*values)

        self.quick = QuickType(self._class, convert)
        self.quick_copy = None if is_frozen else lambda value: make(*values_of(value))

    def row(self, value: Any) -> Any:
        if type(value) is not self._class:
            if value is None and self.may_be_none:
                return None
            raise InexactError
        values = self._values_of(value)
        if not self._inner:
            return values
        row = list(values)
        for index, column in self._inner:
            row[index] = column.row(row[index])
        return row

    def from_row(self, row: Any) -> Any:
        if row is None:
            return None
        values = msgspec.structs.astuple(row)
        return self._make(
            *[column.from_row(part) for column, part in zip(self._columns, values, strict=True)]
        )

    def _values(self, objects: list[Any]) -> Iterable[list[Any]]:
        is_rows = bool(objects) and type(objects[0]) is self._row_class
        names = self._row_class.__struct_fields__ if is_rows else self._names
        for name, may_be_unset in zip(names, self._unset, strict=True):
            values = list(map(attrgetter(name), objects))
            yield _replace(values, msgspec.UNSET, None) if may_be_unset else values
        if self._tag is not None:
            yield [self._tag] * len(objects)

    def _make_all(self, values: list[list[Any]]) -> Iterable[Any]:
        return map(
            self._make,
            *(
                _replace(part, None, msgspec.UNSET) if may_be_unset else part
                for part, may_be_unset in zip(
                    values, self._unset, strict=False
                )  # a tag is left out
            ),
        )


def _is_frozen(cls: Any) -> bool:
    """Return whether the fields of an object of the class can't be set."""
    settings = getattr(cls, "__dataclass_params__", None) or getattr(cls, "__struct_config__", None)
    return issubclass(cls, tuple) or bool(settings and settings.frozen)


def _replace(values: list[Any], old: Any, new: Any) -> list[Any]:
    return [new if value is old else value for value in values]


def _values_of(described: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that returns the values of an object's fields."""
    names = [field.name for field in described.fields]
    if isinstance(described, inspect.StructType):
        return msgspec.structs.astuple
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return attrgetter(*names)


def constructor_of(described: Any) -> Callable[..., Any]:
    """Return the constructor that msgspec would use for a class, which takes the fields' values in their order.

    It never calls the user's own constructor. Raises `NoColumnError` for an attrs class.
    """
    cls: Any = get_origin(described.cls) or described.cls
    names = [field.name for field in described.fields]
    if not isinstance(described, inspect.DataclassType):
        parameters = signatures.signature(cls).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        if kinds == {signatures.Parameter.POSITIONAL_OR_KEYWORD} and list(parameters) == names:
            return cls  # type: ignore[no-any-return]  # a class is a callable
        return lambda *values: cls(**dict(zip(names, values, strict=True)))
    if not hasattr(cls, "__dataclass_fields__"):
        raise NoColumnError("an attrs class")
    if _has_plain_constructor(cls, names):
        return cls  # type: ignore[no-any-return]  # a class is a callable

    def make(*values: Any) -> Any:
        made = cls.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made

    return make


def _has_plain_constructor(cls: Any, names: list[str]) -> bool:
    """Return whether a dataclass has the constructor that `dataclass` makes, with the fields in order."""
    init = vars(cls).get("__init__")
    return (
        init is not None
        and init.__code__.co_filename == "<string>"
        and "__dataclass_params__" in vars(cls)
        and list(signatures.signature(cls).parameters) == names
        and not any(field.kw_only for field in dataclasses.fields(cls))
    )


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
    inspect.EnumType: lambda described, _: ConvertedColumn(
        type_of_values([member.value for member in described.cls]), described.cls
    ),
    inspect.LiteralType: lambda described, _: LiteralColumn(list(described.values)),
    inspect.TupleType: _tuple,
    inspect.DictType: _dict,
}
