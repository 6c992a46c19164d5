"""Elements of MessagePack as Arrow columns, and back, by the schema that is stored with them.

The classes that the elements were written from are not needed: a struct becomes a struct of its fields, a
dict a map, and what Arrow has no type for becomes JSON text.
"""

import base64
import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import MisfitError, is_untyped, json_text, way_back_of

Schema = Mapping[str, Any]
_Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MessagePackColumn:
    """How values of a schema become values of an Arrow type; neither way is given None.

    Attributes:
        type: The Arrow type.
        show: Takes what MessagePack holds to what Arrow makes a value of.
        hide: Takes what Arrow gives to what a class is made of. Raises a MisfitError where that isn't
            known, or a field is missing that has no default.
        is_nullable: Whether the schema has values of None.
    """

    type: pa.DataType
    show: _Change
    hide: _Change
    is_nullable: bool = False


class NotReadableError(Exception):
    """MessagePack of this schema can't be decoded without the classes that it was written from."""


def column_of(schema: Schema, *, wide_integers: bool) -> MessagePackColumn:
    """The column of elements of a schema.

    Args:
        schema: A schema as `message_pack_schema` makes it.
        wide_integers: Whether whole numbers become decimals, which have room for all of them.

    Raises:
        NotReadableError: Keys of a dict can't be looked up once they are decoded.
    """
    integer = _WIDE_INTEGER if wide_integers else _INTEGER
    return _Columns(schema.get("$defs", {}), integer).column(schema, frozenset())


class _Columns:
    def __init__(self, definitions: Schema, integer: MessagePackColumn) -> None:
        self._definitions = definitions
        self._integer = integer

    def column(self, schema: Schema, inside: frozenset[str]) -> MessagePackColumn:
        """The column of a schema.

        Args:
            schema: The schema.
            inside: Names of the definitions that the schema stands in.
        """
        schema, inside, is_recursive = self._resolved(schema, inside)
        if is_recursive:  # no Arrow type holds itself
            return self._json(schema)
        if is_untyped(schema):
            return replace(self._json(schema), is_nullable=True)
        if "anyOf" in schema:
            return self._union([(alternative, inside) for alternative in schema["anyOf"]])
        if "enum" in schema:
            return self._of_values(schema["enum"])
        return self._of_type(schema, inside)

    def _of_type(self, schema: Schema, inside: frozenset[str]) -> MessagePackColumn:
        match schema.get("type"):
            case "integer":
                return self._integer
            case "array" if "prefixItems" in schema:
                return self._tuple(schema, inside)
            case "array":
                return self._list(schema, inside)
            case "object" if "properties" in schema:
                return self._struct([(schema, inside)])
            case "object":
                return self._map(schema, inside)
            case "string":
                return _text(schema)
            case _:
                return _SIMPLE[schema["type"]]

    def _resolved(
        self, schema: Schema, inside: frozenset[str]
    ) -> tuple[Schema, frozenset[str], bool]:
        reference = schema.get("$ref")
        if reference is None:
            return schema, inside, False
        name = reference.removeprefix("#/$defs/")
        return self._definitions[name], inside | {name}, name in inside

    def _union(self, alternatives: list[tuple[Schema, frozenset[str]]]) -> MessagePackColumn:
        others = [
            (alternative, inside)
            for alternative, inside in alternatives
            if alternative.get("type") != "null"
        ]
        is_nullable = len(others) < len(alternatives)
        if len(others) == 1:
            ((schema, inside),) = others
            column = self.column(schema, inside)
            return replace(column, is_nullable=is_nullable or column.is_nullable)
        resolved = [self._resolved(alternative, inside) for alternative, inside in others]
        if others and all(
            "properties" in alternative and not is_recursive
            for alternative, _, is_recursive in resolved
        ):
            structs = [(alternative, inside) for alternative, inside, _ in resolved]
            return replace(self._struct(structs), is_nullable=is_nullable)
        return replace(
            self._json({"anyOf": [alternative for alternative, _ in others]}),
            is_nullable=is_nullable,
        )

    def _of_values(self, values: list[Any]) -> MessagePackColumn:
        kinds = {type(value) for value in values} - {type(None)}
        is_nullable = None in values
        if kinds == {str}:
            return replace(_TEXT, is_nullable=is_nullable)
        if kinds == {int}:
            return replace(self._integer, is_nullable=is_nullable)
        return replace(self._json({"enum": values}), is_nullable=is_nullable)

    def _struct(self, structs: list[tuple[Schema, frozenset[str]]]) -> MessagePackColumn:
        """One struct with the fields of all; each value of a union has the fields of one alternative."""
        columns: dict[str, MessagePackColumn] = {}
        schemas: dict[str, list[Schema]] = {}
        for schema, inside in structs:
            for name, inner in _fields(schema):
                column = self.column(inner, inside)
                known = columns.setdefault(name, column)
                others = schemas.setdefault(name, [])
                is_same = inner in others or known == column
                others.append(inner)
                if not is_same:
                    json = self._json({"anyOf": others})
                    columns[name] = replace(json, is_nullable=known.is_nullable)
                if column.is_nullable:
                    columns[name] = replace(columns[name], is_nullable=True)
        is_alone = len(structs) == 1
        alternatives = [_Alternative.of(schema, is_alone=is_alone) for schema, _ in structs]
        return _struct_column(columns, alternatives)

    def _tuple(self, schema: Schema, inside: frozenset[str]) -> MessagePackColumn:
        columns = {
            f"_{number}": self.column(inner, inside)
            for number, inner in enumerate(schema["prefixItems"], 1)
        }

        def show(value: Any) -> Any:
            return {
                name: None if item is None else columns[name].show(item)
                for name, item in zip(columns, value, strict=False)
            }

        def hide(value: Any) -> Any:
            return [
                None if value[name] is None else column.hide(value[name])
                for name, column in columns.items()
            ]

        type = pa.struct([(name, column.type) for name, column in columns.items()])
        return MessagePackColumn(type, show, hide)

    def _list(self, schema: Schema, inside: frozenset[str]) -> MessagePackColumn:
        item = self.column(schema["items"], inside)
        return MessagePackColumn(
            pa.list_(item.type),
            lambda value: [None if element is None else item.show(element) for element in value],
            lambda value: [None if element is None else item.hide(element) for element in value],
        )

    def _map(self, schema: Schema, inside: frozenset[str]) -> MessagePackColumn:
        names = schema.get("propertyNames", {"type": "string"})
        if self._holds_dicts(names, inside):
            raise NotReadableError
        key, item = self.column(names, inside), self.column(schema["additionalProperties"], inside)
        if key.is_nullable:  # in Arrow no key is missing
            return self._json(schema)

        def show(value: Any) -> Any:
            return [
                (key.show(name), None if element is None else item.show(element))
                for name, element in value.items()
            ]

        def hide(value: Any) -> Any:
            return {
                _hashable(key.hide(name)): None if element is None else item.hide(element)
                for name, element in (value.items() if isinstance(value, dict) else value)
            }

        return MessagePackColumn(pa.map_(key.type, item.type), show, hide)

    def _json(self, schema: Schema) -> MessagePackColumn:
        """JSON text; the way back is there if the schema says of every part what it was."""
        parts = self._parts(schema, set())
        return MessagePackColumn(pa.string(), json_text, way_back_of(list(parts)))

    def _parts(self, schema: Schema, seen: set[str]) -> Iterator[Schema]:
        """The schemas that a schema is made of, without references and unions; keys of dicts are left out."""
        if "$ref" in schema:
            if schema["$ref"] not in seen:
                seen.add(schema["$ref"])
                yield from self._parts(self._resolved(schema, frozenset())[0], seen)
            return
        inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
        inner += schema.get("properties", {}).values()
        inner += [
            schema[name] for name in ("items", "additionalProperties") if _is_schema(schema, name)
        ]
        if "anyOf" not in schema:
            yield schema
        for part in inner:
            yield from self._parts(part, seen)

    def _holds_dicts(self, schema: Schema, inside: frozenset[str]) -> bool:
        schema, inside, is_recursive = self._resolved(schema, inside)
        if is_recursive or schema.get("type") == "object" or not schema:
            return True
        inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
        if schema.get("items"):
            inner.append(schema["items"])
        return any(self._holds_dicts(part, inside) for part in inner)


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    """Fields of a struct: first those that have to be there, in the order of the class."""
    names = dict.fromkeys([*schema.get("required", ()), *schema["properties"]])
    return [(name, schema["properties"][name]) for name in names]


@dataclass(frozen=True, slots=True)
class _Alternative:
    """A struct that a value of a union may be.

    Attributes:
        tags: Fields that tell the struct from the others, with their values.
        names: Names of the struct's fields.
        required: The fields that have no default.
        defaults: The values of fields that are not written.
    """

    tags: Mapping[str, Any]
    names: Collection[str]
    required: Collection[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Schema, *, is_alone: bool) -> "_Alternative":
        """A struct of this schema."""
        fields = schema["properties"]
        tags = {
            name: fields[name]["enum"][0]
            for name in schema.get("required", ())
            if len(fields[name].get("enum", ())) == 1 and not is_alone
        }
        defaults = {name: field["leftOut"] for name, field in fields.items() if "leftOut" in field}
        return cls(tags, fields.keys(), schema.get("required", ()), defaults)

    def is_of(self, value: Mapping[str, Any]) -> bool:
        """Whether the value is of this alternative."""
        return all(value.get(name) == tag for name, tag in self.tags.items())


def _struct_column(
    columns: Mapping[str, MessagePackColumn], alternatives: Sequence[_Alternative]
) -> MessagePackColumn:
    def chosen(value: Mapping[str, Any]) -> _Alternative:
        for alternative in alternatives:
            if alternative.is_of(value):
                return alternative
        raise LookupError

    def show(value: Any) -> Any:
        defaults = chosen(value).defaults
        shown = {}
        for name, column in columns.items():
            item = value.get(name, defaults.get(name))
            shown[name] = None if item is None else column.show(item)
        return shown

    def hide(value: Any) -> Any:
        given = value.keys()
        alternative = chosen(value)
        for name in alternative.names:
            # A field that the class doesn't have may be the missing field by another name.
            if name not in given and (name in alternative.required or given - columns.keys()):
                message = f"rows have no field {name!r}"
                raise MisfitError(message)
        return {
            name: None if value[name] is None else columns[name].hide(value[name])
            for name in alternative.names
            if name in given and (value[name] is not None or columns[name].is_nullable)
        }

    fields = [(name, column.type) for name, column in columns.items()]
    return MessagePackColumn(pa.struct(fields), show, hide)


def _same(value: Any) -> Any:
    return value


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _as_bytes(value: Any) -> bytes:
    """Bytes. A default that is not written stands in the schema as text."""
    return base64.b64decode(value) if isinstance(value, str) else bytes(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(msgspec.to_builtins(value))


def _parsed(type: Any) -> _Change:
    def parse(value: Any) -> Any:
        return value if isinstance(value, type) else msgspec.convert(value, type)

    return parse


def _is_schema(schema: Schema, name: str) -> bool:
    return isinstance(schema.get(name), Mapping)


def _extension(value: Mapping[str, Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(value["code"], value["data"])


_INTEGER = MessagePackColumn(pa.int64(), _same, int)
_WIDE_INTEGER = MessagePackColumn(pa.decimal128(20, 0), Decimal, int)
_TEXT = MessagePackColumn(pa.string(), _as_text, _same)
_BINARY = MessagePackColumn(pa.binary(), _as_bytes, _same)

_SIMPLE = {
    "null": MessagePackColumn(pa.null(), _same, _same, is_nullable=True),
    "boolean": MessagePackColumn(pa.bool_(), _same, _same),
    "number": MessagePackColumn(pa.float64(), float, _same),
    "extension": MessagePackColumn(
        pa.struct([("code", pa.int64()), ("data", pa.binary())]),
        lambda value: {"code": value.code, "data": bytes(value.data)},
        _extension,
    ),
}

_DATE = MessagePackColumn(pa.date32(), _parsed(dt.date), _same)
_DURATION = MessagePackColumn(pa.duration("us"), _parsed(dt.timedelta), _same)
_INSTANT = MessagePackColumn(pa.timestamp("us", "UTC"), _parsed(dt.datetime), _same)
_LOCAL_TIMESTAMP = MessagePackColumn(pa.timestamp("us"), _parsed(dt.datetime), _same)
_TIME = MessagePackColumn(pa.time64("us"), _parsed(dt.time), _same)


def _text(schema: Schema) -> MessagePackColumn:
    """A string in JSON, whatever it says.

    Times may or may not have a zone, unless the type says so; as text they keep what they are.
    """
    if "contentEncoding" in schema:
        return _BINARY
    match schema.get("format"), schema.get("timeZone"):
        case "date", _:
            return _DATE
        case "duration", _:
            return _DURATION
        case "date-time", True:
            return _INSTANT
        case "date-time", False:
            return _LOCAL_TIMESTAMP
        case "time", False:
            return _TIME
    return _TEXT
