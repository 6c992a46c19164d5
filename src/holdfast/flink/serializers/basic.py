"""Numbers, times, arrays, and types without values, in the format of Flink's serializers.

Source:
    Flink, flink-core, org.apache.flink.api.common.typeutils.base (2.3.0).
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flink.serializers import hash_codes
from holdfast.flink.serializers.serializer import (
    HashCodes,
    Read,
    Rows,
    Serializer,
    converting_reader,
    decimal_of,
    integer_of,
    read_bytes,
    read_count,
)
from holdfast.flink.serializers.texts import read_string, read_string_value, text_column

_NO_INT, _NO_LONG, _NO_HOUR = -(1 << 31), -(1 << 63), -128
_NANOS = 1_000_000_000
_INT = struct.Struct(">i")


def number(code: str, dtype: str, type: pa.DataType, hashes: HashCodes) -> Serializer:
    """Make a serializer of fixed-width numbers.

    Args:
        code: Code of the type in `struct`.
        dtype: Big-endian NumPy type.
        type: Arrow type.
        hashes: Computes Java's hash codes.
    """
    form = struct.Struct(f">{code}")
    unpack, width = form.unpack_from, form.size

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + width

    def column(rows: Rows) -> pa.Array:
        values = np.ascontiguousarray(rows).view(dtype)[:, 0]
        return pa.array(values.astype(values.dtype.newbyteorder("=")), type)

    return Serializer(type, read, width, width, column, hash_codes=hashes)


def of_numbers(codes: str, type: pa.DataType, make: Callable[..., Any]) -> Serializer:
    """Make a serializer of values that `make` makes of fixed-width numbers, given by their codes in `struct`."""
    form = struct.Struct(f">{codes}")
    unpack, width = form.unpack_from, form.size

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return make(*unpack(data, position)), position + width

    return Serializer(type, read, width)


def list_reader(read: Read) -> Read:
    """Return a reader of a count followed by values."""

    def read_list(data: bytes, position: int) -> tuple[list[Any], int]:
        count, position = read_count(data, position)
        values: list[Any] = []
        append: Callable[[Any], None] = values.append
        for _ in range(count):
            value, position = read(data, position)
            append(value)
        return values, position

    return read_list


def array_of(element: Serializer) -> Serializer:
    """Make a serializer of arrays of numbers or strings: the count, then each element."""
    return Serializer(pa.list_(element.type), list_reader(element.read))


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    return data[position] != 0, position + 1


def _read_char(data: bytes, position: int) -> tuple[str, int]:
    unit, end = read_bytes(data, position, 2)
    return unit.decode("utf-16-be"), end


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    count, position = read_count(data, position)
    return read_bytes(data, position, count)


def _read_integer(data: bytes, position: int) -> tuple[int | None, int]:
    length: int = _INT.unpack_from(data, position)[0]
    position += 4
    if length < 0:
        message = f"a number has {length} bytes"
        raise ValueError(message)
    if length < 4:
        return (None, 0, 1, 10)[length], position
    digits, position = read_bytes(data, position, length - 4)
    return integer_of(digits), position


def _read_big_decimal(data: bytes, position: int) -> tuple[str | None, int]:
    value, position = _read_integer(data, position)
    if value is None:
        return None, position
    scale: int = _INT.unpack_from(data, position)[0]
    return str(decimal_of(value, scale)), position + 4


def _read_nothing(data: bytes, position: int) -> tuple[None, int]:
    data[position]  # only checks that the byte exists
    return None, position + 1


def _date(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date in the Gregorian calendar, in any year."""
    if year == _NO_INT:
        return None
    if not (1 <= month <= 12 and 1 <= day <= 31):
        message = "not a valid date"
        raise ValueError(message)
    year -= month <= 2  # years that start in March end with the leap day
    since_march = (month - 3) % 12
    return (
        year * 365
        + year // 4
        - year // 100
        + year // 400
        + (153 * since_march + 2) // 5
        + day
        - 719469
    )


def _time(hour: int, minute: int, second: int, nano: int) -> int | None:
    if hour == _NO_HOUR:
        return None
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= nano < _NANOS):
        message = "not a valid time of day"
        raise ValueError(message)
    return ((hour * 60 + minute) * 60 + second) * _NANOS + nano


def _date_time(year: int, month: int, day: int, *time: int) -> int | None:
    days, nanos = _date(year, month, day), _time(*time)
    return None if days is None or nanos is None else days * 86_400 * _NANOS + nanos


def _time_window_column(rows: Rows) -> pa.Array:
    bounds = np.ascontiguousarray(rows).view(">i8").astype(np.int64)
    columns = [pa.array(np.ascontiguousarray(bounds[:, number])) for number in range(2)]
    return pa.StructArray.from_arrays(columns, ["start", "end"])


BOOLEAN = Serializer(
    pa.bool_(),
    _read_boolean,
    1,
    1,
    lambda rows: pa.array(rows[:, 0] != 0, pa.bool_()),
    hash_codes=hash_codes.of_booleans,
)
BYTE = number("b", "i1", pa.int8(), hash_codes.of_ints)
SHORT = number("h", ">i2", pa.int16(), hash_codes.of_ints)
INT = number("i", ">i4", pa.int32(), hash_codes.of_ints)
LONG = number("q", ">i8", pa.int64(), hash_codes.of_longs)
FLOAT = number("f", ">f4", pa.float32(), hash_codes.of_floats)
DOUBLE = number("d", ">f8", pa.float64(), hash_codes.of_floats)
CHAR = Serializer(pa.string(), _read_char, 2, hash_codes=hash_codes.of_texts)
STRING = Serializer(
    pa.string(), read_string, packed_column=text_column, hash_codes=hash_codes.of_texts
)
STRING_VALUE = Serializer(pa.string(), read_string_value)
"""`StringValueSerializer`, which has no null and therefore no code for it in its lengths."""
BYTES = Serializer(pa.binary(), _read_bytes)
UTF8 = Serializer(pa.string(), converting_reader(_read_bytes, bytes.decode))
BIG_INTEGER = Serializer(pa.string(), converting_reader(_read_integer, str))
BIG_DECIMAL = Serializer(pa.string(), _read_big_decimal)
DATE = of_numbers(
    "q", pa.timestamp("ms", "UTC"), lambda millis: None if millis == _NO_LONG else millis
)
SQL_TIMESTAMP = of_numbers(
    "qi",
    pa.timestamp("ns", "UTC"),
    lambda millis, nanos: None if millis == _NO_LONG else millis // 1000 * _NANOS + nanos,
)
INSTANT = of_numbers(
    "qi",
    pa.timestamp("ns", "UTC"),
    lambda seconds, nanos: None if seconds == _NO_LONG else seconds * _NANOS + nanos,
)
LOCAL_DATE = of_numbers("ibb", pa.date32(), _date)
LOCAL_TIME = of_numbers("bbbi", pa.time64("ns"), _time)
LOCAL_DATE_TIME = of_numbers("ibbbbbi", pa.timestamp("ns"), _date_time)
NULL_VALUE = Serializer(pa.null(), lambda _data, position: (None, position), 0)
"""`NullValueSerializer`, whose values take no bytes."""
VOID = Serializer(pa.null(), _read_nothing, 0, 1, lambda rows: pa.nulls(len(rows)))
TIME_WINDOW = Serializer(
    pa.struct([("start", pa.int64()), ("end", pa.int64())]),
    of_numbers("qq", pa.null(), lambda start, end: {"start": start, "end": end}).read,
    0,
    16,
    _time_window_column,
)
