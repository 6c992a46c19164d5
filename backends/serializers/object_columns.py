"""How objects lie in Arrow columns: a class is a struct of its fields, a dict a map, a set a list.

`object_column` decides once per type; then objects go in and out of arrays a column at a time, not one by one.
"""

import builtins
import dataclasses
import datetime as dt
import inspect as signatures
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import accumulate, chain, repeat
from operator import attrgetter, is_
from types import GenericAlias
from typing import Annotated, Any, get_origin

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from holdfast.backends.serializers.arrow_migration import Default
from holdfast.backends.serializers.type_forms import CLASSES


class NoColumnError(Exception):
    """Arrow has no type for objects of a type; the message says of which."""


class UnlikeError(Exception):
    """Objects may be other ones than their column would give back."""


class ObjectColumn(ABC):
    """Objects of one type as an Arrow array, and back.

    Attributes:
        type: Type of the array.
        may_be_none: Whether None is among the objects.
        kinds: Classes of objects that need no more looking at; none if each has to be looked at by msgspec.
        row_type: What msgspec makes of rows, which are objects' values without their classes; Arrow stores all of
            them. None if there is more to look at.
        has_classes: Whether rows are other than the objects.
    """

    type: pa.DataType
    may_be_none: bool = False
    kinds: frozenset[builtins.type] = frozenset()
    row_type: Any = None
    has_classes: bool = False

    def row(self, value: Any) -> Any:
        """What msgspec makes a row of: tuples in the place of classes. Raises `UnlikeError` for another class."""
        return value

    def of_row(self, row: Any) -> Any:
        """An object of its row; a new one, unless it can't change."""
        return row

    @abstractmethod
    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        """An array of the objects.

        Args:
            objects: The objects, or rows of them.
            checked: Whether they are known to be of this type in all their parts.

        Raises:
            UnlikeError: An object may be of another type.

        Raises Arrow's errors and `OverflowError`, too.
        """

    def check_kinds(self, objects: list[Any]) -> None:
        """Check the class of objects. Raises `UnlikeError`."""
        kinds = set(map(type, objects))
        if not kinds <= self.kinds and not (
            self.may_be_none and kinds <= {*self.kinds, type(None)}
        ):
            raise UnlikeError

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """The objects of an array; None where it is null. Raises msgspec's errors."""

    def defaults(self, path: str) -> Mapping[str, Default]:  # noqa: ARG002
        """For fields that have a default, by their path below `path`: an array of so many defaults."""
        return {}

    def closed(self, path: str) -> frozenset[str]:  # noqa: ARG002
        """Paths of classes that forbid fields that they do not have."""
        return frozenset()


def object_column(described: Any, outer: tuple[Any, ...] = ()) -> ObjectColumn:
    """The column of a type.

    Args:
        described: What `msgspec.inspect.type_info` says of the type.
        outer: Classes that the type is a part of.

    Raises:
        NoColumnError: The type has unions, refers to itself, or has parts without a type.
    """
    make = _COLUMNS.get(type(described))
    if make is None:
        raise NoColumnError(type(described).__name__)
    return make(described, outer)


class _Plain(ObjectColumn):
    """Values that Arrow and Python have alike."""

    def __init__(self, type: pa.DataType, kind: builtins.type) -> None:
        self.type = type
        self.kinds = frozenset([kind])
        self._is_number = pa.types.is_int64(type) or pa.types.is_float64(type)

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        array = pa.array(objects, self.type)
        if isinstance(array, pa.ChunkedArray):
            raise pa.ArrowCapacityError("too many bytes for an array")
        return array

    def read(self, array: pa.Array) -> list[Any]:
        if self._is_number and not array.null_count:
            return list(array.to_numpy().tolist())  # numpy makes all objects in one go
        return list(array.to_pylist())


class _Literals(_Plain):
    """Some values of one type."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(_type_of_values(values), type(values[0]))
        self._values = {*values, None}

    def check_kinds(self, objects: list[Any]) -> None:
        super().check_kinds(objects)
        if not set(objects) <= self._values:
            raise UnlikeError


class _Instants(_Plain):
    """Datetimes in UTC."""

    def __init__(self) -> None:
        super().__init__(pa.timestamp("us", "UTC"), dt.datetime)

    def check_kinds(self, objects: list[Any]) -> None:
        _check_zones(objects, {dt.UTC})
        super().check_kinds(objects)

    def read(self, array: pa.Array) -> list[Any]:
        local = array.cast(pa.timestamp("us")).to_pylist()
        return [value if value is None else value.replace(tzinfo=dt.UTC) for value in local]


class _Converted(_Plain):
    """Objects that msgspec makes of text or of numbers, such as decimals and members of enums."""

    def __init__(self, type: pa.DataType, python_type: Any) -> None:
        super().__init__(type, python_type)
        self._list = list[python_type | None]

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        return super().write(msgspec.to_builtins(objects), checked=True)

    def read(self, array: pa.Array) -> list[Any]:
        return list(msgspec.convert(super().read(array), self._list))


class _Times(_Converted):
    """Datetimes or times, with or without a zone: as text they keep what they are."""

    def __init__(self, python_type: type) -> None:
        super().__init__(pa.string(), python_type)

    def check_kinds(self, objects: list[Any]) -> None:
        _check_zones(objects, {dt.UTC, None})
        super().check_kinds(objects)


class _LocalTimes(_Plain):
    """Datetimes or times without a zone."""

    def check_kinds(self, objects: list[Any]) -> None:
        _check_zones(objects, {None})
        super().check_kinds(objects)


class _Items(ObjectColumn):
    """Lists, tuples of any length, and sets."""

    def __init__(self, item: ObjectColumn, kind: type, make: Callable[[list[Any]], Any]) -> None:
        self._item = item
        self.kinds = frozenset([kind])
        self._kind = kind
        self._make = make
        self.type = pa.list_(_field("item", item))
        self.has_classes = item.has_classes
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
        items = self._item.write(list(chain.from_iterable(filter(None, objects))), checked=checked)
        return pa.ListArray.from_arrays(
            _offsets(objects), items, type=self.type, mask=_mask(objects)
        )

    def read(self, array: pa.Array) -> list[Any]:
        items = self._item.read(array.flatten())
        make = self._make
        slices = _slices(array)
        if make is list:
            return [None if ends is None else items[ends] for ends in slices]
        return [None if ends is None else make(items[ends]) for ends in slices]

    def defaults(self, path: str) -> Mapping[str, Default]:
        return self._item.defaults(f"{path}[]")

    def closed(self, path: str) -> frozenset[str]:
        return self._item.closed(f"{path}[]")


class _Dict(ObjectColumn):
    kinds = frozenset([dict])

    def __init__(self, key: ObjectColumn, value: ObjectColumn) -> None:
        self._key = key
        self._value = value
        self.type = pa.map_(key.type, _field("value", value))
        self.has_classes = key.has_classes or value.has_classes
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
        present = [mapping for mapping in objects if mapping]
        keys = self._key.write(list(chain.from_iterable(present)), checked=checked)
        values = chain.from_iterable(mapping.values() for mapping in present)
        items = self._value.write(list(values), checked=checked)
        return pa.MapArray.from_arrays(
            _offsets(objects), keys, items, type=self.type, mask=_mask(objects)
        )

    def read(self, array: pa.Array) -> list[Any]:
        array = pa.concat_arrays([array])  # a slice's offsets would not begin at 0
        pairs = list(zip(self._key.read(array.keys), self._value.read(array.items), strict=True))
        parts = (None if ends is None else pairs[ends] for ends in _slices(array))
        return [None if part is None else _unique(dict(part), part) for part in parts]

    def defaults(self, path: str) -> Mapping[str, Default]:
        return {**self._key.defaults(f"{path}[key]"), **self._value.defaults(f"{path}[item]")}

    def closed(self, path: str) -> frozenset[str]:
        return self._key.closed(f"{path}[key]") | self._value.closed(f"{path}[item]")


class _Struct(ObjectColumn):
    """What becomes a struct in Arrow, by the columns of its fields."""

    def __init__(self, columns: Mapping[str, ObjectColumn]) -> None:
        self._columns = columns
        self.type = pa.struct([_field(name, column) for name, column in columns.items()])

    @abstractmethod
    def _parts(self, objects: list[Any]) -> Iterable[list[Any]]:
        """The fields' values, field by field."""

    @abstractmethod
    def _made(self, parts: list[list[Any]]) -> Iterable[Any]:
        """The objects, of their fields' values."""

    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        if not checked:
            self.check_kinds(objects)
        mask = _mask(objects)
        present = objects if mask is None else [each for each in objects if each is not None]
        parts = zip(self._columns.values(), self._parts(present), strict=True)
        arrays = [column.write(part, checked=checked) for column, part in parts]
        array = pa.StructArray.from_arrays(arrays, fields=list(self.type))
        if mask is None:
            return array
        rows = iter(range(len(present)))
        return array.take(
            pa.array([None if each is None else next(rows) for each in objects], pa.int64())
        )

    def read(self, array: pa.Array) -> list[Any]:
        present = array.drop_null() if array.null_count else array
        fields = (present.field(index) for index in range(len(self._columns)))
        parts = [
            column.read(field) for column, field in zip(self._columns.values(), fields, strict=True)
        ]
        made = self._made(parts)
        if present is array:
            return list(made)
        made = iter(made)
        return [next(made) if is_valid else None for is_valid in array.is_valid().to_pylist()]

    def defaults(self, path: str) -> Mapping[str, Default]:
        inner = [column.defaults(_below(path, name)) for name, column in self._columns.items()]
        return {field: default for fields in inner for field, default in fields.items()}

    def closed(self, path: str) -> frozenset[str]:
        inner = [column.closed(_below(path, name)) for name, column in self._columns.items()]
        return frozenset[str]().union(*inner)


class _Tuple(_Struct):
    kinds = frozenset([tuple])

    def _parts(self, objects: list[Any]) -> Iterable[list[Any]]:
        if any(len(each) != len(self._columns) for each in objects):
            raise UnlikeError
        return map(list, zip(*objects, strict=True)) if objects else [[] for _ in self._columns]

    def _made(self, parts: list[list[Any]]) -> Iterable[Any]:
        return zip(*parts, strict=True)


class _Tag(_Plain):
    """The field that tells a tagged struct from others."""

    def __init__(self, tag: str | int) -> None:
        super().__init__(_type_of_values([tag]), type(tag))
        self._tag = tag

    def read(self, array: pa.Array) -> list[Any]:
        tags = super().read(array)
        if set(tags) - {self._tag, None}:
            raise ValueError("elements have another tag")
        return tags

    def written(self, count: int) -> pa.Array:
        """So many tags."""
        return pa.repeat(pa.scalar(self._tag, self.type), count)


class _Class(_Struct):
    """Structs of msgspec, dataclasses and named tuples."""

    has_classes = True

    def __init__(self, described: Any, columns: Mapping[str, ObjectColumn]) -> None:
        super().__init__(columns)
        self._fields = described.fields
        cls: Any = get_origin(described.cls) or described.cls
        # What a class makes of its fields afterwards shows only once it is made.
        self.kinds = frozenset() if hasattr(cls, "__post_init__") else frozenset([cls])
        self._tag = getattr(described, "tag", None)
        self._tag_field = getattr(described, "tag_field", None) or ""
        self._is_closed = getattr(described, "forbid_unknown_fields", False)
        self._make = _constructor(described)
        self._may_be_unset = any(field.default is msgspec.UNSET for field in described.fields)
        self._class = cls
        self._parts_of = [columns[field.encode_name] for field in described.fields]
        self._values_of = _values_of(described)
        self._inner = [
            (index, column) for index, column in enumerate(self._parts_of) if column.has_classes
        ]
        self._row_class: Any = None
        types = [column.row_type for column in self._parts_of]
        if self.kinds and not self._may_be_unset and None not in types:
            names = (f"_{number}" for number in range(len(types)))
            # The garbage collector need not look at rows: nothing in a row can lead back to it.
            self.row_type = self._row_class = msgspec.defstruct(
                "Row", list(zip(names, types, strict=True)), array_like=True, frozen=True, gc=False
            )

    def row(self, value: Any) -> Any:
        if type(value) is not self._class:
            if value is None and self.may_be_none:
                return None
            raise UnlikeError
        values = self._values_of(value)
        if not self._inner:
            return values
        row = list(values)
        for index, column in self._inner:
            row[index] = column.row(row[index])
        return row

    def of_row(self, row: Any) -> Any:
        if row is None:
            return None
        values = msgspec.structs.astuple(row)
        return self._make(
            *[column.of_row(part) for column, part in zip(self._parts_of, values, strict=True)]
        )

    def _parts(self, objects: list[Any]) -> Iterable[list[Any]]:
        if objects and type(objects[0]) is self._row_class:
            for name in self._row_class.__struct_fields__:
                yield list(map(attrgetter(name), objects))
        else:
            yield from self._values(objects)
        if self._tag is not None:
            yield [self._tag] * len(objects)

    def _values(self, objects: list[Any]) -> Iterable[list[Any]]:
        for field in self._fields:
            part = list(map(attrgetter(field.name), objects))
            unset = self._may_be_unset and field.default is msgspec.UNSET
            yield [None if value is msgspec.UNSET else value for value in part] if unset else part

    def _made(self, parts: list[list[Any]]) -> Iterable[Any]:
        parts = parts[: len(self._fields)]
        if self._may_be_unset:
            parts = [
                [msgspec.UNSET if value is None else value for value in part]
                if field.default is msgspec.UNSET
                else part
                for field, part in zip(self._fields, parts, strict=True)
            ]
        return map(self._make, *parts)

    def defaults(self, path: str) -> Mapping[str, Default]:
        own = {
            _below(path, field.encode_name): _default_of(field, self._columns[field.encode_name])
            for field in self._fields
            if not field.required and field.default is not msgspec.UNSET
        }
        if self._tag is not None:
            own[_below(path, self._tag_field)] = _Tag(self._tag).written
        return {**own, **super().defaults(path)}

    def closed(self, path: str) -> frozenset[str]:
        own = frozenset([path]) if self._is_closed else frozenset[str]()
        return own | super().closed(path)


class _TypedDict(_Struct):
    def __init__(self, described: Any, columns: Mapping[str, ObjectColumn]) -> None:
        super().__init__(columns)
        self._optional = {field.name for field in described.fields if not field.required}

    def _parts(self, objects: list[Any]) -> Iterable[list[Any]]:
        return ([row.get(name) for row in objects] for name in self._columns)

    def _made(self, parts: list[list[Any]]) -> Iterable[Any]:
        rows = (dict(zip(self._columns, row, strict=True)) for row in zip(*parts, strict=True))
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


def _class(described: Any, outer: tuple[Any, ...]) -> ObjectColumn:
    if described.cls in outer:
        raise NoColumnError(f"{described.cls.__name__}, which refers to itself")
    if not described.fields:
        raise NoColumnError("a class without fields")
    outer = (*outer, described.cls)
    columns: dict[str, ObjectColumn] = {}
    for field in described.fields:
        column = columns[field.encode_name] = object_column(field.type, outer)
        is_left_out = not field.required and (
            field.default is msgspec.UNSET or isinstance(described, inspect.TypedDictType)
        )
        if is_left_out and column.may_be_none:
            raise NoColumnError("a field that may be None or not be there at all")
        column.may_be_none |= is_left_out
    if getattr(described, "tag", None) is not None:
        columns[described.tag_field] = _Tag(described.tag)
    if isinstance(described, inspect.TypedDictType):
        return _TypedDict(described, columns)
    return _Class(described, columns)


def _values_of(described: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of an object's fields."""
    names = [field.name for field in described.fields]
    if isinstance(described, inspect.StructType):
        return msgspec.structs.astuple
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return attrgetter(*names)


def _constructor(described: Any) -> Callable[..., Any]:
    """What makes an object of its fields' values, as msgspec does: without a constructor of the user's own."""
    cls: Any = get_origin(described.cls) or described.cls
    names = [field.name for field in described.fields]
    if not isinstance(described, inspect.DataclassType):
        parameters = signatures.signature(cls).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        if kinds == {signatures.Parameter.POSITIONAL_OR_KEYWORD} and list(parameters) == names:
            return cls  # type: ignore[no-any-return]
        return lambda *values: cls(**dict(zip(names, values, strict=True)))
    if not hasattr(cls, "__dataclass_fields__"):
        raise NoColumnError("a class of attrs")
    if _has_plain_constructor(cls, names):
        return cls  # type: ignore[no-any-return]

    def make(*values: Any) -> Any:
        made = cls.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made

    return make


def _has_plain_constructor(cls: Any, names: list[str]) -> bool:
    """Whether a dataclass has the constructor that `dataclass` makes, with its fields in order."""
    init = vars(cls).get("__init__")
    return (
        init is not None
        and init.__code__.co_filename == "<string>"
        and "__dataclass_params__" in vars(cls)
        and list(signatures.signature(cls).parameters) == names
        and not any(field.kw_only for field in dataclasses.fields(cls))
    )


def _default_of(field: inspect.Field, column: ObjectColumn) -> Default:
    def defaults(count: int) -> pa.Array:
        if field.default_factory is not msgspec.NODEFAULT:
            return column.write([field.default_factory() for _ in range(count)], checked=True)
        return column.write([field.default] * count, checked=True)

    return defaults


def _optional(described: inspect.UnionType, outer: tuple[Any, ...]) -> ObjectColumn:
    others = [part for part in described.types if not isinstance(part, inspect.NoneType)]
    if len(others) != 1:
        raise NoColumnError("a union")
    column = object_column(others[0], outer)
    column.may_be_none = True
    if column.row_type is not None:
        column.row_type = column.row_type | None
    return column


def _plain(described: Any, _outer: tuple[Any, ...]) -> ObjectColumn:
    kind = type(described)
    column = _Plain(*_PLAIN[kind])
    column.row_type = _ROW_TYPES.get(kind)
    return _bounded(column, described)


def _items(described: Any, outer: tuple[Any, ...]) -> ObjectColumn:
    item = object_column(described.item_type, outer)
    return _bounded(_Items(item, *_MAKERS[type(described)]), described)


def _dict(described: Any, outer: tuple[Any, ...]) -> ObjectColumn:
    key = object_column(described.key_type, outer)
    if key.may_be_none:
        raise NoColumnError("a dict with None as a key")
    return _bounded(_Dict(key, object_column(described.value_type, outer)), described)


def _tuple(described: Any, outer: tuple[Any, ...]) -> ObjectColumn:
    if not described.item_types:
        raise NoColumnError("an empty tuple")
    columns = [object_column(item, outer) for item in described.item_types]
    return _Tuple({f"_{number}": column for number, column in enumerate(columns, 1)})


def _enum(described: Any, _outer: tuple[Any, ...]) -> ObjectColumn:
    return _Converted(_type_of_values([member.value for member in described.cls]), described.cls)


def _time(described: Any, _outer: tuple[Any, ...]) -> ObjectColumn:
    is_instant = isinstance(described, inspect.DateTimeType)
    match is_instant, described.tz:
        case True, True:
            return _Instants()
        case True, False:
            return _LocalTimes(pa.timestamp("us"), dt.datetime)
        case False, False:
            return _LocalTimes(pa.time64("us"), dt.time)
    return _Times(dt.datetime if is_instant else dt.time)


def _bounded(column: ObjectColumn, described: Any) -> ObjectColumn:
    """The column; where the type has bounds, such as a least number, msgspec has to look at each object."""
    names = set(described.__struct_fields__) - {"item_type", "key_type", "value_type"}
    if any(getattr(described, name) is not None for name in names):
        column.kinds = frozenset()
        column.row_type = None
    return column


def _check_zones(objects: list[Any], zones: set[dt.tzinfo | None]) -> None:
    """Check the zones of times, for msgspec gives back other zones as UTC. Raises `UnlikeError`."""
    if not {getattr(value, "tzinfo", None) for value in objects if value is not None} <= zones:
        raise UnlikeError


def _type_of_values(values: list[Any]) -> pa.DataType:
    kinds = set(map(type, values))
    if len(kinds) != 1 or not kinds <= {str, int}:
        raise NoColumnError("values of several types")
    return pa.string() if kinds == {str} else pa.int64()


def _field(name: str, column: ObjectColumn) -> pa.Field:
    return pa.field(name, column.type, nullable=column.may_be_none)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _unique(made: Any, items: list[Any]) -> Any:
    """What was made of items. Raises `ValueError` if some of them are the same in it."""
    if len(made) < len(items):
        raise ValueError("items that were different are the same now")
    return made


def _offsets(objects: list[Any]) -> pa.Array:
    lengths = [0 if items is None else len(items) for items in objects]
    return pa.array(accumulate(lengths, initial=0), pa.int32())


def _mask(objects: list[Any]) -> pa.Array | None:
    if not any(map(is_, objects, repeat(None))):  # `in` would ask the objects' own classes
        return None
    return pa.array([value is None for value in objects], pa.bool_())


def _slices(array: pa.Array) -> Iterable[slice | None]:
    """Where the items of each list or map are in all items; None where it is null."""
    if pa.types.is_map(array.type):
        array = pa.ListArray.from_arrays(
            array.offsets, array.keys, mask=array.is_null() if array.null_count else None
        )
    lengths = pc.list_value_length(array).to_pylist()
    ends = list(accumulate((length or 0 for length in lengths), initial=0))
    return [
        None if length is None else slice(start, start + length)
        for length, start in zip(lengths, ends, strict=False)
    ]


_PLAIN: dict[type[inspect.Type], tuple[pa.DataType, type]] = {
    inspect.BoolType: (pa.bool_(), bool),
    inspect.IntType: (pa.int64(), int),
    inspect.FloatType: (pa.float64(), float),
    inspect.StrType: (pa.string(), str),
    inspect.BytesType: (pa.binary(), bytes),
    inspect.DateType: (pa.date32(), dt.date),
    inspect.TimeDeltaType: (pa.duration("us"), dt.timedelta),
}
_ROW_TYPES: dict[type[inspect.Type], Any] = {
    inspect.BoolType: bool,
    inspect.IntType: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.DateType: dt.date,
}
_MAKERS: dict[type[inspect.Type], tuple[type, Callable[[list[Any]], Any]]] = {
    inspect.ListType: (list, list),
    inspect.VarTupleType: (tuple, tuple),
    inspect.SetType: (set, lambda items: _unique(set(items), items)),
    inspect.FrozenSetType: (frozenset, lambda items: _unique(frozenset(items), items)),
}

_COLUMNS: dict[type[inspect.Type], Callable[[Any, tuple[Any, ...]], ObjectColumn]] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_MAKERS, _items),
    **dict.fromkeys(CLASSES, _class),
    inspect.Metadata: lambda described, outer: object_column(described.type, outer),
    inspect.UnionType: _optional,
    inspect.DateTimeType: _time,
    inspect.TimeType: _time,
    inspect.DecimalType: lambda *_: _Converted(pa.string(), Decimal),
    inspect.UUIDType: lambda *_: _Converted(pa.string(), uuid.UUID),
    inspect.EnumType: _enum,
    inspect.LiteralType: lambda described, _: _Literals(list(described.values)),
    inspect.TupleType: _tuple,
    inspect.DictType: _dict,
}
