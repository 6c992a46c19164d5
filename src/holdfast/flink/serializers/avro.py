"""Avro records in Flink's state: the schema is in the savepoint, and values are in a format specific to Flink.

    number          as written by Java, big-endian and of fixed width
    string, bytes   int n, n bytes
    enum, union     int number of the symbol or branch; for a union followed by the value
    array, map      blocks of { varint n, n items }, 0

Source:
    flink-avro, AvroSerializerSnapshot and DataInputDecoder (2.3.0); Avro 1.11, Specification.
"""

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.composite import struct_of
from holdfast.flink.serializers.serializer import Read, Serializer, read_bytes, unreadable

_INT = struct.Struct(">i")
_MAX_DIGITS = 38
_Schema = Any
"""JSON: the name of a type, an object, or a list of the branches of a union."""

_LOGICAL: dict[tuple[str, Any], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def avro_of(java_class: str, schema: str) -> Serializer:
    """Make the reader of `AvroSerializer`; values of unknown or recursive schemas can only be read as bytes."""
    try:
        return _Types(java_class).of(json.loads(schema))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return unreadable(f"{java_class} (by Avro)")


class _Types:
    """The types of a schema, which may refer to earlier ones by name."""

    def __init__(self, java_class: str) -> None:
        self._java_class = java_class
        self._named: dict[str, Serializer] = {}

    def of(self, schema: _Schema, space: str = "") -> Serializer:
        """Return the serializer of a schema in a namespace. Raises Python's errors for an invalid schema."""
        if isinstance(schema, list):
            return self._union(schema, space)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, space)
        if kind in _PRIMITIVE:
            return _logical(kind, _PRIMITIVE[kind], schema)
        if isinstance(schema, str):
            return self._named.get(kind) or self._named[f"{space}.{kind}"]
        if kind == "array":
            element = self.of(schema["items"], space)
            return Serializer(pa.list_(element.type), _blocks(element.read))
        if kind == "map":
            value = self.of(schema["values"], space)
            return Serializer(pa.map_(pa.string(), value.type), _blocks(_pair(value.read)))
        return self._named_type(kind, schema, space)

    def _named_type(self, kind: str, schema: _Schema, space: str) -> Serializer:
        """Return the serializer of a record, an enum or a fixed-width type, or of an earlier one by name."""
        if kind not in {"record", "error", "enum", "fixed"}:
            return self.of(kind, space)
        space = schema.get("namespace", space)
        full = schema["name"] if "." in schema["name"] else f"{space}.{schema['name']}"
        space = full.rpartition(".")[0]
        if kind == "enum":
            names = schema["symbols"]
            made = Serializer(pa.string(), lambda data, position: _symbol(names, data, position))
        elif kind == "fixed":
            size = int(schema["size"])
            read_fixed = Serializer(
                pa.binary(), lambda data, position: read_bytes(data, position, size)
            )
            made = _logical(kind, read_fixed, schema)
        else:
            made = struct_of(
                {field["name"]: self.of(field["type"], space) for field in schema["fields"]}
            )
        self._named[full] = made
        return made

    def _union(self, branches: list[_Schema], space: str) -> Serializer:
        parts = [self.of(branch, space) for branch in branches]
        others = [part for part in parts if not pa.types.is_null(part.type)]
        if len(others) == 1:
            type: pa.DataType = others[0].type
            names = [""] * len(parts)
        else:
            names = [
                "" if pa.types.is_null(part.type) else f"f{number}"
                for number, part in enumerate(parts)
            ]
            named = zip(names, parts, strict=True)
            type = pa.struct([(name, part.type) for name, part in named if name])

        def read(data: bytes, position: int) -> tuple[Any, int]:
            number = _index(data, position, len(parts))
            value, position = parts[number].read(data, position + _INT.size)
            return ({names[number]: value} if names[number] else value), position

        return Serializer(type, read)


def _logical(kind: str, plain: Serializer, schema: _Schema) -> Serializer:
    """Apply the logical type of a schema to a serializer."""
    name = None if isinstance(schema, str) else schema.get("logicalType")
    if (kind, name) in _LOGICAL:
        return Serializer(_LOGICAL[kind, name], plain.read)
    if name != "decimal" or not 1 <= schema["precision"] <= _MAX_DIGITS:
        return plain
    scale = schema.get("scale", 0)

    def read(data: bytes, position: int) -> tuple[Decimal, int]:
        digits, position = plain.read(data, position)
        value = int.from_bytes(digits, "big", signed=True)
        return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)), position

    return Serializer(pa.decimal128(schema["precision"], scale), read)


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    text, position = basic.BYTES.read(data, position)
    return text.decode(), position


def _index(data: bytes, position: int, count: int) -> int:
    number: int = _INT.unpack_from(data, position)[0]
    if not 0 <= number < count:
        message = f"number {number} is not one of {count} symbols or branches"
        raise ValueError(message)
    return number


def _symbol(names: list[str], data: bytes, position: int) -> tuple[str, int]:
    return names[_index(data, position, len(names))], position + _INT.size


def _pair(read_value: Read) -> Read:
    """Return a reader of map entries."""

    def read(data: bytes, position: int) -> tuple[tuple[str, Any], int]:
        name, position = _read_text(data, position)
        value, position = read_value(data, position)
        return (name, value), position

    return read


def _blocks(read_item: Read) -> Callable[[bytes, int], tuple[list[Any], int]]:
    """Return a reader of items in blocks, each with a count before it."""

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count = shift = 0
            more = True
            while more:
                byte = data[position]
                position += 1
                count |= (byte & 0x7F) << shift
                shift += 7
                more = byte >= 0x80
            if not count:
                return items, position
            if count + len(items) > len(data):
                message = f"{count} items can't fit into {len(data) - position} bytes"
                raise ValueError(message)
            for _ in range(count):
                item, position = read_item(data, position)
                items.append(item)

    return read


_PRIMITIVE = {
    "null": Serializer(pa.null(), lambda _data, position: (None, position)),
    "string": Serializer(pa.string(), _read_text),
    "boolean": basic.BOOLEAN,
    "int": basic.INT,
    "long": basic.LONG,
    "float": basic.FLOAT,
    "double": basic.DOUBLE,
    "bytes": basic.BYTES,
}
