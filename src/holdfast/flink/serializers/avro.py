"""Records of Avro as Flink keeps them in state: the schema stands in the savepoint, the values are in a form of Flink's own.

    number          as Java writes it, big-endian and of fixed width
    text, bytes     int n, n bytes
    enum, union     int number of the symbol or of the branch; of a union then the value
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
from holdfast.flink.serializers.serializer import Read, Serializer, sliced, unreadable

_INT = struct.Struct(">i")
_MOST_DIGITS = 38
_Schema = Any
"""JSON: a name of a type, an object, or a list of the branches of a union."""

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
    """`AvroSerializer`, of a class and its schema; of a schema that isn't known, or that contains itself, only bytes can be had."""
    try:
        return _Types(java_class).of(json.loads(schema))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return unreadable(f"{java_class} (by Avro)")


class _Types:
    """The types of a schema, which may name those that stand before."""

    def __init__(self, java_class: str) -> None:
        self._java_class = java_class
        self._named: dict[str, Serializer] = {}

    def of(self, schema: _Schema, space: str = "") -> Serializer:
        """What reads values of a schema, in a name space. Raises what Python raises of a schema that can't be."""
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
        return self._defined(kind, schema, space)

    def _defined(self, kind: str, schema: _Schema, space: str) -> Serializer:
        """A record, an enum or what has a fixed width; or one of these that stands before, by its name in an object."""
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
            fixed = Serializer(pa.binary(), lambda data, position: sliced(data, position, size))
            made = _logical(kind, fixed, schema)
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
    """The type with what else the schema says of it."""
    name = None if isinstance(schema, str) else schema.get("logicalType")
    if (kind, name) in _LOGICAL:
        return Serializer(_LOGICAL[kind, name], plain.read)
    if name != "decimal" or not 1 <= schema["precision"] <= _MOST_DIGITS:
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
        message = f"of {count} symbols or branches none is number {number}"
        raise ValueError(message)
    return number


def _symbol(names: list[str], data: bytes, position: int) -> tuple[str, int]:
    return names[_index(data, position, len(names))], position + _INT.size


def _pair(read_value: Read) -> Read:
    """Reads an entry of a map."""

    def read(data: bytes, position: int) -> tuple[tuple[str, Any], int]:
        name, position = _read_text(data, position)
        value, position = read_value(data, position)
        return (name, value), position

    return read


def _blocks(read_item: Read) -> Callable[[bytes, int], tuple[list[Any], int]]:
    """Reads items in blocks, each with a count before it."""

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
                message = f"{count} items are to follow, and {len(data) - position} bytes are left"
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
