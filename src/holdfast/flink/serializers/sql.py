"""Rows of SQL and the Table API: a binary format in which every field has a fixed position.

    row    int size, byte change type, null bits of fields (from bit 8, lowest first) to 8 bytes, 8 bytes for each
           field, variable part; numbers are little-endian
    field  a number | up to 7 bytes, with 80 | length in the last | u4 size, u4 offset in the variable part
    array  int size, u4 count, null bits of elements to 4 bytes, each element in 1, 2, 4 or 8 bytes, to 8 bytes,
           variable part
    map    int size, u4 size of the array of keys, that array, the array of values

The types of fields are Java objects in savepoints.

Source:
    Flink, BinaryRowData, BinaryArrayData, BinaryMapData, BinarySegmentUtils, and org.apache.flink.table.types.logical
    (flink-table-common 2.3.0).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.flink.binary import corrupted_error
from holdfast.flink.serializers import basic
from holdfast.flink.serializers.java_objects import JavaObject
from holdfast.flink.serializers.serializer import (
    Serializer,
    converting_reader,
    integer_of,
    null_key,
    read_bytes,
)
from holdfast.flink.serializers.serializer import decimal_of as unscaled_decimal

_LITTLE_INT, _LITTLE_LONG = struct.Struct("<I"), struct.Struct("<q")
_SLOT, _OFFSET_NANOS = struct.Struct("<II"), struct.Struct("<iI")
_KINDS = ("+I", "-U", "+U", "-D")
_MAX_LONG_DIGITS, _MAX_DIGITS = 18, 38
_MAX_MILLIS_DIGITS, _MAX_NANOS_DIGITS = 3, 9
_INLINE = 0x80
_TYPES = "org.apache.flink.table.types.logical."

_Field = Callable[[bytes, int], Any]
"""Reads a field from a row's bytes and the start of the field's 8 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSerializer(Serializer):
    """A serializer of the Table API, which also reads values as fields of rows and elements of arrays.

    Attributes:
        field: Reads a field of a row or an element of an array.
        size: Number of bytes of an element in the fixed part of an array.
    """

    field: _Field
    size: int = 8


def _number(plain: Serializer, code: str, type: pa.DataType | None = None) -> SqlSerializer:
    """Make the serializer of numbers with a code of `struct`."""
    form = struct.Struct(f"<{code}")
    unpack = form.unpack_from
    return SqlSerializer(
        type or plain.type,
        plain.read,
        field=lambda row, slot: unpack(row, slot)[0],
        size=form.size,
    )


def _bytes(row: bytes, slot: int) -> bytes:
    last = row[slot + 7]
    if last & _INLINE:
        return read_bytes(row, slot, min(last & 0x7F, 7))[0]
    size, offset = _SLOT.unpack_from(row, slot)
    return read_bytes(row, offset, size)[0]


def _in_bytes(type: pa.DataType, value: Callable[[bytes], Any]) -> SqlSerializer:
    """Make a serializer of values with a length prefix, or in the variable part of a row; `value` decodes them."""
    read = converting_reader(basic.BYTES.read, value)
    return SqlSerializer(type, read, field=lambda row, slot: value(_bytes(row, slot)))


BINARY = SqlSerializer(pa.binary(), basic.BYTES.read, field=_bytes)
"""The serializer of bytes, and of values that only a function of the job can read."""
STRING_DATA = _in_bytes(pa.string(), bytes.decode)
_INT = _number(basic.INT, "i")
_NUMBERS = {
    "BooleanType": (basic.BOOLEAN, _number(basic.BOOLEAN, "?")),
    "TinyIntType": (basic.BYTE, _number(basic.BYTE, "b")),
    "SmallIntType": (basic.SHORT, _number(basic.SHORT, "h")),
    "IntType": (basic.INT, _INT),
    "BigIntType": (basic.LONG, _number(basic.LONG, "q")),
    "FloatType": (basic.FLOAT, _number(basic.FLOAT, "f")),
    "DoubleType": (basic.DOUBLE, _number(basic.DOUBLE, "d")),
}


def as_field(serializer: Serializer) -> SqlSerializer:
    """Return the serializer as one of fields; unknown classes are read as bytes."""
    if isinstance(serializer, SqlSerializer):
        return serializer
    return next((field for plain, field in _NUMBERS.values() if serializer is plain), BINARY)


def decimal_of(precision: int, scale: int) -> SqlSerializer:
    """`DecimalDataSerializer`. Raises ValueError."""
    if not (1 <= precision <= _MAX_DIGITS and 0 <= scale <= precision):
        message = f"DECIMAL({precision}, {scale}) is not a valid type"
        raise ValueError(message)
    type = pa.decimal128(precision, scale)
    if precision > _MAX_LONG_DIGITS:
        return _in_bytes(type, lambda data: unscaled_decimal(integer_of(data), scale))
    value = partial(unscaled_decimal, scale=scale)
    return SqlSerializer(
        type,
        converting_reader(basic.LONG.read, value),
        field=lambda row, slot: value(_LITTLE_LONG.unpack_from(row, slot)[0]),
    )


def timestamp_of(precision: int, zone: str | None = None) -> SqlSerializer:
    """`TimestampDataSerializer`. Raises ValueError."""
    if not 0 <= precision <= _MAX_NANOS_DIGITS:
        message = f"TIMESTAMP({precision}) is not a valid type"
        raise ValueError(message)
    if precision <= _MAX_MILLIS_DIGITS:
        return _number(basic.LONG, "q", pa.timestamp("ms", zone))

    def field(row: bytes, slot: int) -> int:
        nanos, offset = _OFFSET_NANOS.unpack_from(row, slot)
        whole: int = _LITTLE_LONG.unpack_from(row, offset)[0] * 1_000_000
        return whole + int(nanos)

    type = pa.timestamp("ns", zone)
    plain = basic.of_numbers("qi", type, lambda millis, nanos: millis * 1_000_000 + nanos)
    return SqlSerializer(type, plain.read, field=field)


def raw_of(inner: Serializer) -> SqlSerializer:
    """`RawValueDataSerializer`: bytes of another serializer; they are returned as bytes if it is unreadable."""
    if inner.unreadable or pa.types.is_null(inner.type):
        return BINARY

    def value(data: bytes) -> Any:
        content, end = inner.read(data, 0)
        if end != len(data):
            message = f"a value of {len(data)} bytes ends after {end}"
            raise ValueError(message)
        return content

    return _in_bytes(inner.type, value)


def row_of(*fields: SqlSerializer) -> SqlSerializer:
    names = [f"f{number}" for number in range(len(fields))]
    reads = [field.field for field in fields]
    start = (len(fields) + 8 + 63) // 64 * 8

    def row(data: bytes) -> dict[str, Any]:
        if len(data) < start + 8 * len(fields):
            message = f"a row of {len(fields)} fields has {len(data)} bytes"
            raise ValueError(message)
        nulls = int.from_bytes(data[1:start], "little")
        values: dict[str, Any] = {"kind": _KINDS[data[0]]}
        for number, (name, read) in enumerate(zip(names, reads, strict=True)):
            is_null = nulls >> number & 1
            values[name] = None if is_null else read(data, start + 8 * number)
        return values

    types = zip(names, [field.type for field in fields], strict=True)
    return _in_bytes(pa.struct([("kind", pa.string()), *types]), row)


def array_of(element: SqlSerializer) -> SqlSerializer:
    return _in_bytes(pa.list_(element.type), lambda data: _elements(data, element))


def map_of(key: SqlSerializer, value: SqlSerializer) -> SqlSerializer:
    """`MapDataSerializer`, of maps and of multisets, whose values are counts of keys."""

    def pairs(data: bytes) -> list[tuple[Any, Any]]:
        (size,) = _LITTLE_INT.unpack_from(data)
        keys, position = read_bytes(data, _LITTLE_INT.size, size)
        names = _elements(keys, key)
        if None in names:
            raise null_key()
        return list(zip(names, _elements(data[position:], value), strict=True))

    return _in_bytes(pa.map_(key.type, value.type), pairs)


def _elements(data: bytes, element: SqlSerializer) -> list[Any]:
    (count,) = _LITTLE_INT.unpack_from(data)
    start = 4 + (count + 31) // 32 * 4
    if start + count * element.size > len(data):
        message = f"an array of {count} elements has {len(data)} bytes"
        raise ValueError(message)
    nulls = int.from_bytes(data[4:start], "little")
    read, size = element.field, element.size
    return [
        None if nulls >> number & 1 else read(data, start + size * number)
        for number in range(count)
    ]


def logical_type(value: Any) -> SqlSerializer | None:
    """Return the serializer of a type, or None for an unknown type.

    Raises:
        CheckpointCorruptedError: The type is not a valid SQL type.
    """
    if not isinstance(value, JavaObject) or not value.java_class.startswith(_TYPES):
        return None
    name = value.java_class.removeprefix(_TYPES)
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name not in _COMPOSITE:
        return None
    try:
        return _COMPOSITE[name](value.fields)
    except (ValueError, KeyError, TypeError) as error:
        raise corrupted_error(f"SQL type {name} is not valid: {error}") from error


def element_type(value: Any) -> SqlSerializer:
    """Return the serializer of fields and elements of a type; unknown types are read as bytes."""
    return logical_type(value) or BINARY


def _row(fields: dict[str, Any], name: str) -> SqlSerializer | None:
    """Return the serializer of rows, or None if a field has an unknown type. The fields are in a Java list of any class."""
    types = [logical_type(item.fields["type"]) for item in _items(fields[name])]
    known = [type for type in types if type is not None]
    return row_of(*known) if len(known) == len(types) else None


def _items(value: Any) -> list[JavaObject]:
    while isinstance(value, JavaObject):
        items = [item for item in value.items if isinstance(item, JavaObject)]
        if items:
            return items
        value = value.fields.get("c") or value.fields.get("list") or value.fields.get("a")
    return []


_SIMPLE = {
    **{name: field for name, (_, field) in _NUMBERS.items()},
    "CharType": STRING_DATA,
    "VarCharType": STRING_DATA,
    "BinaryType": BINARY,
    "VarBinaryType": BINARY,
    "DateType": _number(basic.INT, "i", pa.date32()),
    "TimeType": _number(basic.INT, "i", pa.time32("ms")),
    "YearMonthIntervalType": _INT,
    "DayTimeIntervalType": _number(basic.LONG, "q", pa.duration("ms")),
    "NullType": SqlSerializer(pa.null(), basic.VOID.read, field=lambda _row, _slot: None),
}
_COMPOSITE: dict[str, Callable[[dict[str, Any]], SqlSerializer | None]] = {
    "DecimalType": lambda fields: decimal_of(fields["precision"], fields["scale"]),
    "TimestampType": lambda fields: timestamp_of(fields["precision"]),
    "LocalZonedTimestampType": lambda fields: timestamp_of(fields["precision"], "UTC"),
    "ArrayType": lambda fields: array_of(element_type(fields["elementType"])),
    "MultisetType": lambda fields: map_of(element_type(fields["elementType"]), _INT),
    "MapType": lambda fields: map_of(
        element_type(fields["keyType"]), element_type(fields["valueType"])
    ),
    "RowType": lambda fields: _row(fields, "fields"),
    "StructuredType": lambda fields: _row(fields, "attributes"),
    "DistinctType": lambda fields: logical_type(fields["sourceType"]),
}
