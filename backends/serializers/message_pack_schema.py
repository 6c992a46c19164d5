"""What msgspec writes of a type as MessagePack, in the words of JSON schemas.

msgspec's own JSON schemas say it of JSON, where a datetime is a string and all keys are strings.
"""

import math
from collections.abc import Callable
from inspect import get_annotations
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from holdfast.errors import InvalidRequestError

Schema = dict[str, Any]

_SIMPLE: dict[type[inspect.Type], Schema] = {
    inspect.AnyType: {},
    inspect.RawType: {},
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
    inspect.BytesType: {"type": "string", "contentEncoding": "binary"},
    inspect.ByteArrayType: {"type": "string", "contentEncoding": "binary"},
    inspect.MemoryViewType: {"type": "string", "contentEncoding": "binary"},
    # An extension if it has a time zone, else a string.
    inspect.DateTimeType: {"type": "string", "format": "date-time"},
    inspect.TimeType: {"type": "string", "format": "time"},
    inspect.DateType: {"type": "string", "format": "date"},
    inspect.TimeDeltaType: {"type": "string", "format": "duration"},
    inspect.UUIDType: {"type": "string", "format": "uuid"},
    inspect.DecimalType: {"type": "string", "format": "decimal"},
    inspect.ExtType: {"type": "extension"},
}

_BOUNDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "tz": "timeZone",
}


def schema_of(type: Any, *, with_defaults: bool = False) -> Schema:
    """The JSON schema of a type; equal schemas are equal dicts.

    Args:
        type: What msgspec takes for a type.
        with_defaults: Whether the schema also has the values of fields that are missing. It is meant for
            judging what was stored, not for storing: a default may be another one each time.

    Raises:
        TypeError: msgspec does not know the type, or something inside of it.
    """
    described = _Described(with_defaults=with_defaults)
    schema = described.schema(inspect.type_info(type))
    return {**schema, "$defs": described.definitions}


class _Described:
    def __init__(self, *, with_defaults: bool) -> None:
        self._with_defaults = with_defaults
        self.definitions: Schema = {}
        self._names: dict[int, str] = {}  # by identity: a type that refers to itself comes again
        self._types: list[inspect.Type] = []  # keeps the identities

    def schema(self, described: inspect.Type) -> Schema:
        simple = _SIMPLE.get(type(described))
        if simple is not None:
            return simple | _bounds(described)
        describe = _DESCRIBED.get(type(described))
        if describe is not None:
            return describe(self, described)
        name = self._names.get(id(described))
        if name is None:
            name = self._name(described)
            self.definitions[name] = self._named(described)
        return {"$ref": f"#/$defs/{name}"}

    def union(self, described: Any) -> Schema:
        return {"anyOf": [self.schema(inner) for inner in described.types]}

    def array(self, described: Any) -> Schema:
        return {"type": "array", "items": self.schema(described.item_type)} | _limits(
            described, "Items"
        )

    def set(self, described: Any) -> Schema:
        return self.array(described) | {"uniqueItems": True}

    def tuple(self, described: Any) -> Schema:
        items = [self.schema(inner) for inner in described.item_types]
        bounds = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, "items": False} | bounds

    def dict(self, described: Any) -> Schema:
        schema: Schema = {"type": "object", "propertyNames": self.schema(described.key_type)}
        return (
            schema
            | _limits(described, "Properties")
            | {"additionalProperties": self.schema(described.value_type)}
        )

    def _name(self, described: inspect.Type) -> str:
        title = getattr(getattr(described, "cls", None), "__name__", "")
        used = set(self._names.values())
        names = [title, *(f"{title}-{number}" for number in range(2, len(used) + 3))]
        name = self._names[id(described)] = next(name for name in names if name not in used)
        self._types.append(described)
        return name

    def _named(self, described: inspect.Type) -> Schema:
        match described:
            case inspect.EnumType(cls=cls):
                return {"enum": sorted((member.value for member in cls), key=repr)}
            case inspect.StructType(array_like=True) | inspect.NamedTupleType():
                return self._tuple_like(described)
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return self._object(described)
        raise TypeError(f"type {getattr(described, 'cls', described)!r} is not supported")

    def _object(self, described: Any) -> Schema:
        _check_fields(described)
        properties = {field.encode_name: self.schema(field.type) for field in described.fields}
        leaves_out = isinstance(described, inspect.StructType) and _config(described).omit_defaults
        for field in described.fields:
            if leaves_out:
                properties[field.encode_name] |= _left_out(field)
            if self._with_defaults:
                properties[field.encode_name] |= _defaults(field)
        required = [field.encode_name for field in described.fields if field.required]
        if getattr(described, "tag", None) is not None:
            properties[described.tag_field] = {"enum": [described.tag]}
            required.append(described.tag_field)
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        if getattr(described, "forbid_unknown_fields", False):
            schema["additionalProperties"] = False
        return schema

    def _tuple_like(self, described: Any) -> Schema:
        _check_fields(described)
        items = [self.schema(field.type) for field in described.fields]
        names = [field.name for field in described.fields]
        required = sum(field.required for field in described.fields)
        if getattr(described, "tag", None) is not None:
            items.insert(0, {"enum": [described.tag]})
            names.insert(0, "")
            required += 1
        schema: Schema = {
            "type": "array",
            "prefixItems": items,
            "names": names,
            "minItems": required,
        }
        if isinstance(described, inspect.NamedTupleType) or described.forbid_unknown_fields:
            schema["maxItems"] = len(items)
        return schema


def _check_fields(described: Any) -> None:
    """Refuse a struct that was pickled by value: its fields are gone, and its values would be.

    Raises:
        InvalidRequestError: The struct was pickled by value.
    """
    if not isinstance(described, inspect.StructType):
        return
    cls: Any = get_origin(described.cls) or described.cls
    fields = set(cls.__struct_fields__)
    for base in cls.__mro__:
        for name, hint in get_annotations(base).items():
            if name not in fields and "ClassVar" not in str(hint):
                message = (
                    f"struct {cls.__name__} has lost its field {name!r} on the way here, because it is "
                    "defined in the file that was started; define it in a module that executors can "
                    "import, or make it a dataclass"
                )
                raise InvalidRequestError(message)


def _bounds(described: Any) -> Schema:
    bounds = {word: getattr(described, name, None) for name, word in _BOUNDS.items()}
    return {word: bound for word, bound in bounds.items() if bound is not None}


def _config(described: inspect.StructType) -> Any:
    cls: Any = described.cls  # for a generic class: the class that was given parameters
    return (get_origin(cls) or cls).__struct_config__


def _left_out(field: inspect.Field) -> Schema:
    """The default that msgspec leaves out when it writes: it compares objects by identity.

    Among defaults that a factory makes it leaves out only empty lists, dicts and sets.
    """
    if field.default is not msgspec.NODEFAULT:
        return {"leftOut": _in_one_form(field.default)}
    if field.default_factory in (list, dict, set):
        return {"leftOut": msgspec.to_builtins(field.default_factory())}
    return {}


def _defaults(field: inspect.Field) -> Schema:
    """The default in each form in which it may have been stored as left out."""
    try:
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        elif field.default is not msgspec.NODEFAULT:
            default = field.default
        else:
            return {}
        forms = [_as_json(_in_one_form(default)), _as_json(default)]
    except Exception:  # noqa: BLE001  # of any class's own code; then it is no default to rely on
        return {}
    if isinstance(field.type, inspect.UnionType) and forms[0] is not None:
        forms = [
            form for form in forms if form is not None
        ]  # NaN, which must not be taken for None
    return {"defaults": forms}


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _in_one_form(default: Any) -> Any:
    """The default as JSON holds it: the same in each process, and no two alike.

    The order of a set's elements depends on the process; and NaN has no number in JSON.
    """
    try:
        plain = msgspec.to_builtins(default, order="deterministic")
    except TypeError:  # keys that have no order
        plain = msgspec.to_builtins(default)
    return _with_texts(plain)


def _with_texts(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _with_texts(item) for key, item in plain.items()}
    if isinstance(plain, list | tuple):
        return [_with_texts(item) for item in plain]
    is_finite = not isinstance(plain, float) or math.isfinite(plain)
    return plain if is_finite else str(plain)


def _limits(described: Any, what: str) -> Schema:
    bounds = {f"min{what}": described.min_length, f"max{what}": described.max_length}
    return {word: bound for word, bound in bounds.items() if bound is not None}


_DESCRIBED: dict[type[inspect.Type], Callable[[_Described, Any], Schema]] = {
    inspect.Metadata: lambda described, metadata: described.schema(metadata.type),
    inspect.UnionType: _Described.union,
    inspect.LiteralType: lambda _, literal: {"enum": list(literal.values)},
    inspect.ListType: _Described.array,
    inspect.VarTupleType: _Described.array,
    inspect.SetType: _Described.set,
    inspect.FrozenSetType: _Described.set,
    inspect.TupleType: _Described.tuple,
    inspect.DictType: _Described.dict,
}
"""Types that are described where they stand; others have names, because they can hold themselves."""
