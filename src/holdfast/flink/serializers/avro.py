"""Avro records in Flink's state: the schema is in the savepoint, and values are in a format specific to Flink.

    number          as written by Java, big-endian and of fixed width
    string, bytes   int n, n bytes
    enum, union     int number of the symbol or branch; for a union followed by the value
    array, map      blocks of { varint n, n items }, 0

Source:
    flink-avro, AvroSerializerSnapshot and DataInputDecoder (2.3.0); Avro 1.11, Specification.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.composite import struct_of
from holdfast.flink.serializers.serializer import (
    Read,
    Serializer,
    converting_reader,
    decimal_of,
    integer_of,
    read_bytes,
    unreadable,
)

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
            symbols = schema["symbols"]
            read_symbol = converting_reader(_index_reader(len(symbols)), symbols.__getitem__)
            made = Serializer(pa.string(), read_symbol)
        elif kind == "fixed":
            fixed = Serializer(pa.binary(), partial(read_bytes, length=int(schema["size"])))
            made = _logical(kind, fixed, schema)
        else:
            made = struct_of(
                {field["name"]: self.of(field["type"], space) for field in schema["fields"]}
            )
        self._named[full] = made
        return made

    def _union(self, branches: list[_Schema], space: str) -> Serializer:
        parts = [self.of(branch, space) for branch in branches]
        others = {
            number: part for number, part in enumerate(parts) if not pa.types.is_null(part.type)
        }
        is_one = len(others) == 1
        read_index = _index_reader(len(parts))

        def read(data: bytes, position: int) -> tuple[Any, int]:
            number, position = read_index(data, position)
            value, position = parts[number].read(data, position)
            return value if is_one or number not in others else {f"f{number}": value}, position

        if is_one:
            [other] = others.values()
            return Serializer(other.type, read)
        fields = [(f"f{number}", other.type) for number, other in others.items()]
        return Serializer(pa.struct(fields), read)


def _logical(kind: str, plain: Serializer, schema: _Schema) -> Serializer:
    """Apply the logical type of a schema to a serializer."""
    name = None if isinstance(schema, str) else schema.get("logicalType")
    if (kind, name) in _LOGICAL:
        return Serializer(_LOGICAL[kind, name], plain.read)
    if name != "decimal" or not 1 <= schema["precision"] <= _MAX_DIGITS:
        return plain
    scale = schema.get("scale", 0)
    read = converting_reader(plain.read, lambda digits: decimal_of(integer_of(digits), scale))
    return Serializer(pa.decimal128(schema["precision"], scale), read)


def _index_reader(count: int) -> Read:
    """Return a reader of the number of one of `count` symbols or branches."""

    def check(number: int) -> int:
        if not 0 <= number < count:
            message = f"number {number} is not one of {count} symbols or branches"
            raise ValueError(message)
        return number

    return converting_reader(basic.INT.read, check)


def _pair(read_value: Read) -> Read:
    """Return a reader of map entries."""

    def read(data: bytes, position: int) -> tuple[tuple[str, Any], int]:
        name, position = basic.UTF8.read(data, position)
        value, position = read_value(data, position)
        return (name, value), position

    return read


def _blocks(read_item: Read) -> Callable[[bytes, int], tuple[list[Any], int]]:
    """Return a reader of items in blocks, each with a count before it."""

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count = shift = 0
            byte = 0x80
            while byte >= 0x80:
                byte = data[position]
                position += 1
                count |= (byte & 0x7F) << shift
                shift += 7
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
    "null": basic.NULL_VALUE,
    "string": basic.UTF8,
    "boolean": basic.BOOLEAN,
    "int": basic.INT,
    "long": basic.LONG,
    "float": basic.FLOAT,
    "double": basic.DOUBLE,
    "bytes": basic.BYTES,
}
