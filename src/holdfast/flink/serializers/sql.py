"""Rows of SQL and the Table API: a binary format in which every field has a fixed position.

    row    int size, byte change type, null bits of fields (from bit 8, lowest first) to 8 bytes, 8 bytes for each
           field, variable part; numbers are little-endian
    field  a number | up to 7 bytes, with 80 | length in the last | u4 size, u4 offset in the variable part
    array  int size, u4 count, null bits of elements to 4 bytes, each element in 1, 2, 4 or 8 bytes, to 8 bytes,
           variable part
    map    int size, u4 size of the array of keys, that array, the array of values

`logical_types` determines the fields.

Source:
    Flink, BinaryRowData, BinaryArrayData, BinaryMapData, BinarySegmentUtils (flink-table-common 2.3.0).
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.serializer import Read, Serializer, null_key, read_bytes, read_count

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_LITTLE_INT = struct.Struct("<I")
_SLOT, _LITTLE_LONG, _OFFSET_NANOS = struct.Struct("<II"), struct.Struct("<q"), struct.Struct("<iI")
_KINDS = ("+I", "-U", "+U", "-D")
_MAX_LONG_DIGITS, _MAX_DIGITS = 18, 38
_MAX_MILLIS_DIGITS = 3
_INLINE = 0x80

_Field = Callable[[bytes, int], Any]
"""Reads a field from a row's bytes and the start of the field's 8 bytes."""

_MAX_NANOS_DIGITS = 9


def _fixed_width(form: str) -> _Field:
    unpack = struct.Struct(form).unpack_from
    return lambda row, slot: unpack(row, slot)[0]


def _bytes(row: bytes, slot: int) -> bytes:
    last = row[slot + 7]
    if last & _INLINE:
        return read_bytes(row, slot, min(last & 0x7F, 7))[0]
    size, offset = _SLOT.unpack_from(row, slot)
    return read_bytes(row, offset, size)[0]


def _text(row: bytes, slot: int) -> str:
    return _bytes(row, slot).decode()


class SqlSerializer(Serializer):
    """A serializer of the Table API, which also reads values as fields of rows and elements of arrays."""

    __slots__ = ("field", "size")

    field: _Field
    size: int

    @classmethod
    def of(cls, type: pa.DataType, read: Read, field: _Field, size: int = 8) -> "SqlSerializer":
        """Make a serializer.

        Args:
            type: Arrow type of the values.
            read: Reads a separate value.
            field: Reads a field of a row or an element of an array.
            size: Number of bytes of an element in the fixed part of an array.
        """
        serializer = cls(type, read)
        object.__setattr__(serializer, "field", field)
        object.__setattr__(serializer, "size", size)
        return serializer


def _number(plain: Serializer, form: str, type: pa.DataType | None = None) -> SqlSerializer:
    return SqlSerializer.of(
        type or plain.type, plain.read, _fixed_width(form), struct.calcsize(form)
    )


BOOLEAN = _number(basic.BOOLEAN, "<?")
BYTE = _number(basic.BYTE, "<b")
SHORT = _number(basic.SHORT, "<h")
INT = _number(basic.INT, "<i")
LONG = _number(basic.LONG, "<q")
FLOAT = _number(basic.FLOAT, "<f")
DOUBLE = _number(basic.DOUBLE, "<d")
DATE = _number(basic.INT, "<i", pa.date32())
TIME = _number(basic.INT, "<i", pa.time32("ms"))
MILLISECONDS = _number(basic.LONG, "<q", pa.duration("ms"))
VOID = SqlSerializer.of(pa.null(), basic.VOID.read, lambda _row, _slot: None)
BINARY = SqlSerializer.of(pa.binary(), basic.BYTES.read, _bytes)
"""The serializer of bytes, and of values that only a function of the job can read."""

_KNOWN = (
    (basic.BOOLEAN, BOOLEAN),
    (basic.BYTE, BYTE),
    (basic.SHORT, SHORT),
    (basic.INT, INT),
    (basic.LONG, LONG),
    (basic.FLOAT, FLOAT),
    (basic.DOUBLE, DOUBLE),
)


def as_field(serializer: Serializer) -> SqlSerializer:
    """Return the serializer as one of fields; unknown classes are read as bytes."""
    if isinstance(serializer, SqlSerializer):
        return serializer
    return next((field for known, field in _KNOWN if serializer is known), BINARY)


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    count, position = read_count(data, position)
    text, position = read_bytes(data, position, count)
    return text.decode(), position


STRING_DATA = SqlSerializer.of(pa.string(), _read_text, _text)


def decimal_of(precision: int, scale: int) -> SqlSerializer:
    """`DecimalDataSerializer`. Raises ValueError."""
    if not (1 <= precision <= _MAX_DIGITS and 0 <= scale <= precision):
        message = f"DECIMAL({precision}, {scale}) is not a valid type"
        raise ValueError(message)

    def value(unscaled: int) -> Decimal:
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -scale))

    def read(data: bytes, position: int) -> tuple[Decimal, int]:
        if precision <= _MAX_LONG_DIGITS:
            return value(_LONG.unpack_from(data, position)[0]), position + 8
        count, position = read_count(data, position)
        digits, position = read_bytes(data, position, count)
        return value(int.from_bytes(digits, "big", signed=True)), position

    def field(row: bytes, slot: int) -> Decimal:
        if precision <= _MAX_LONG_DIGITS:
            return value(_LITTLE_LONG.unpack_from(row, slot)[0])
        return value(int.from_bytes(_bytes(row, slot), "big", signed=True))

    return SqlSerializer.of(pa.decimal128(precision, scale), read, field)


def timestamp_of(precision: int, zone: str | None = None) -> SqlSerializer:
    """`TimestampDataSerializer`. Raises ValueError."""
    if not 0 <= precision <= _MAX_NANOS_DIGITS:
        message = f"TIMESTAMP({precision}) is not a valid type"
        raise ValueError(message)
    is_millis = precision <= _MAX_MILLIS_DIGITS

    def read(data: bytes, position: int) -> tuple[int, int]:
        millis: int = _LONG.unpack_from(data, position)[0]
        if is_millis:
            return millis, position + 8
        nanos: int = _INT.unpack_from(data, position + 8)[0]
        return millis * 1_000_000 + nanos, position + 12

    def field(row: bytes, slot: int) -> int:
        if is_millis:
            value: int = _LITTLE_LONG.unpack_from(row, slot)[0]
            return value
        nanos, offset = _OFFSET_NANOS.unpack_from(row, slot)
        whole: int = _LITTLE_LONG.unpack_from(row, offset)[0] * 1_000_000
        return whole + int(nanos)

    return SqlSerializer.of(pa.timestamp("ms" if is_millis else "ns", zone), read, field)


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

    return _length_prefixed(inner.type, value)


def row_of(*fields: SqlSerializer) -> SqlSerializer:
    """`RowDataSerializer`."""
    names = [f"f{number}" for number in range(len(fields))]
    reads = [field.field for field in fields]
    types = [field.type for field in fields]
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

    type = pa.struct([("kind", pa.string()), *zip(names, types, strict=True)])
    return _length_prefixed(type, row)


def array_of(element: SqlSerializer) -> SqlSerializer:
    """`ArrayDataSerializer`."""
    return _length_prefixed(pa.list_(element.type), lambda data: _elements(data, element))


def map_of(key: SqlSerializer, value: SqlSerializer) -> SqlSerializer:
    """`MapDataSerializer`, of maps and of multisets, whose values are counts of keys."""

    def pairs(data: bytes) -> list[tuple[Any, Any]]:
        (size,) = _LITTLE_INT.unpack_from(data)
        keys, position = read_bytes(data, _LITTLE_INT.size, size)
        names = _elements(keys, key)
        if None in names:
            raise null_key()
        return list(zip(names, _elements(data[position:], value), strict=True))

    return _length_prefixed(pa.map_(key.type, value.type), pairs)


def _elements(data: bytes, element: SqlSerializer) -> list[Any]:
    """The elements of an array."""
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


def _length_prefixed(type: pa.DataType, value: Callable[[bytes], Any]) -> SqlSerializer:
    """Make a serializer of values with a length prefix, or in the variable part of a row.

    Args:
        type: Arrow type of the values.
        value: Decodes a value.
    """

    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = read_count(data, position)
        content, position = read_bytes(data, position, count)
        return value(content), position

    return SqlSerializer.of(type, read, lambda data, slot: value(_bytes(data, slot)))
