"""Rows of SQL and the Table API: a binary form in which every field has its place.

    row    int size, byte kind, bits of fields that are null (from bit 8, lowest first) to 8 bytes, 8 bytes for each
           field, what doesn't fit into these; numbers are little-endian
    field  a number | up to 7 bytes, with 80 | length in the last | u4 size, u4 offset of what doesn't fit

The types of the fields stand in the savepoint as objects of Java, which are passed over: what is needed is said by
the serializers of the fields, which follow them. A date is so read as its days, a time of day as its milliseconds.

Source:
    Flink, BinaryRowData, BinarySegmentUtils, RowDataSerializer (flink-table-runtime 2.3.0).
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.serializer import Serializer, counted, sliced

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_SLOT, _LITTLE_LONG, _OFFSET_NANOS = struct.Struct("<II"), struct.Struct("<q"), struct.Struct("<iI")
_KINDS = ("+I", "-U", "+U", "-D")
_MOST_DIGITS_OF_A_LONG, _MOST_DIGITS = 18, 38
_MOST_MILLIS = 3
_INLINE = 0x80

_Field = Callable[[bytes, int], Any]
"""Reads a field of a row: all of the row's bytes, and where its 8 bytes begin."""

_MOST_NANOS = 9


def _fixed(form: str) -> _Field:
    unpack = struct.Struct(form).unpack_from
    return lambda row, slot: unpack(row, slot)[0]


def _bytes(row: bytes, slot: int) -> bytes:
    last = row[slot + 7]
    if last & _INLINE:
        return sliced(row, slot, min(last & 0x7F, 7))[0]
    size, offset = _SLOT.unpack_from(row, slot)
    return sliced(row, offset, size)[0]


def _text(row: bytes, slot: int) -> str:
    return _bytes(row, slot).decode()


_FIELDS: list[tuple[Serializer, _Field]] = [
    (basic.BOOLEAN, _fixed("<?")),
    (basic.BYTE, _fixed("<b")),
    (basic.SHORT, _fixed("<h")),
    (basic.INT, _fixed("<i")),
    (basic.LONG, _fixed("<q")),
    (basic.FLOAT, _fixed("<f")),
    (basic.DOUBLE, _fixed("<d")),
    (basic.BYTES, _bytes),
]


def field_of(serializer: Serializer) -> _Field | None:
    """What reads a field that has this serializer, or None if it isn't known."""
    if isinstance(serializer, SqlSerializer):
        return serializer.field
    for known, field in _FIELDS:
        if serializer is known:
            return field
    return None


class SqlSerializer(Serializer):
    """A serializer of the Table API, which knows its values as fields, too."""

    __slots__ = ("field",)

    field: _Field

    @classmethod
    def of(
        cls, type: pa.DataType, read: Callable[[bytes, int], tuple[Any, int]], field: _Field
    ) -> "SqlSerializer":
        """Make one of what reads values that stand by themselves, and what reads fields."""
        serializer = cls(type, read)
        object.__setattr__(serializer, "field", field)
        return serializer


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    count, position = counted(data, position)
    text, position = sliced(data, position, count)
    return text.decode(), position


STRING_DATA = SqlSerializer.of(pa.string(), _read_text, _text)
RAW_DATA = SqlSerializer.of(pa.binary(), basic.BYTES.read, _bytes)
"""Values that only a function of the job knows."""


def decimal_of(precision: int, scale: int) -> SqlSerializer:
    """`DecimalDataSerializer`. Raises ValueError."""
    if not (1 <= precision <= _MOST_DIGITS and 0 <= scale <= precision):
        message = f"there is no DECIMAL({precision}, {scale})"
        raise ValueError(message)

    def value(unscaled: int) -> Decimal:
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -scale))

    def read(data: bytes, position: int) -> tuple[Decimal, int]:
        if precision <= _MOST_DIGITS_OF_A_LONG:
            return value(_LONG.unpack_from(data, position)[0]), position + 8
        count, position = counted(data, position)
        digits, position = sliced(data, position, count)
        return value(int.from_bytes(digits, "big", signed=True)), position

    def field(row: bytes, slot: int) -> Decimal:
        if precision <= _MOST_DIGITS_OF_A_LONG:
            return value(_LITTLE_LONG.unpack_from(row, slot)[0])
        return value(int.from_bytes(_bytes(row, slot), "big", signed=True))

    return SqlSerializer.of(pa.decimal128(precision, scale), read, field)


def timestamp_of(precision: int) -> SqlSerializer:
    """`TimestampDataSerializer`. Raises ValueError."""
    if not 0 <= precision <= _MOST_NANOS:
        message = f"there is no TIMESTAMP({precision})"
        raise ValueError(message)
    is_millis = precision <= _MOST_MILLIS

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

    return SqlSerializer.of(pa.timestamp("ms" if is_millis else "ns"), read, field)


def row_of(*fields: Serializer) -> Serializer:
    """`RowDataSerializer`; a field of a serializer that isn't known is read as bytes."""
    names = [f"f{number}" for number in range(len(fields))]
    reads = [field_of(field) or _bytes for field in fields]
    types = [field.type if field_of(field) else pa.binary() for field in fields]
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

    def read_row(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        count, position = counted(data, position)
        content, position = sliced(data, position, count)
        return row(content), position

    type = pa.struct([("kind", pa.string()), *zip(names, types, strict=True)])
    return SqlSerializer.of(type, read_row, lambda data, slot: row(_bytes(data, slot)))
