"""Encoders of values in the format of Flink's serializers, by Arrow type, and snapshots of these serializers.

    bool, int8 … int64, float, double, string, binary   Boolean, Byte … Long, Float, Double, String, byte[]
    date, time, timestamp                               LocalDate, LocalTime, LocalDateTime
    timestamp with a zone, decimal                      Instant, BigDecimal
    list, map                                           List, Map
    struct                                              Tuple1 … Tuple25, field by field

Java has no other classes that every job has. Null values are only supported in maps.

Source:
    Flink, org.apache.flink.api.common.typeutils.base, TupleSerializer, CompositeTypeSerializerSnapshot (2.3.0).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidRequestError
from holdfast.flink.serializers import hash_codes
from holdfast.flink.serializers.serializer import (
    BASE,
    COMPOSITE_MAGIC,
    NESTED_MAGIC,
    VARIABLE,
    HashCodes,
    snapshot_class,
)

Encode = Callable[[Any], bytes]

_TUPLES = "org.apache.flink.api.java.typeutils.runtime.TupleSerializerSnapshot"
_TTL = "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
_TIMER = "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot"
_WINDOW = "org.apache.flink.streaming.api.windowing.windows.TimeWindow$Serializer$TimeWindowSerializerSnapshot"
_VOID = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"

_SIMPLE_VERSION = 3
_NESTED_VERSION = 1
_MAX_FIELDS = 25
_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_DATE, _TIME, _SECONDS_NANOS = struct.Struct(">ibb"), struct.Struct(">bbbi"), struct.Struct(">qi")
_TOP = 1 << 63
_SECONDS_OF_A_DAY = 86_400
_TICKS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second by Arrow's unit."""


@dataclass(frozen=True, slots=True)
class WrittenType:
    """The encoding of a type's values for Flink.

    Attributes:
        snapshot: Snapshot of their serializer.
        encode: Encodes a value from `to_pylist` of a column of `plain_type`.
        hash_codes: Computes Java's hash codes of a column of keys; None for types that can't be keys.
        length: Length of every value according to Flink, or -1 if they differ.
    """

    snapshot: bytes
    encode: Encode
    hash_codes: HashCodes | None = None
    length: int = VARIABLE


def utf(text: str) -> bytes:
    """Encode a string in Java's modified UTF-8 with a length prefix. Raises `InvalidRequestError` if it is too long."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    characters = "".join(map(chr, units))
    data = characters.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(data) > 0xFFFF:
        raise InvalidRequestError("a name is too long for Java's format")
    return _SHORT.pack(len(data)) + data


def encode_items(items: Sequence[bytes]) -> bytes:
    return _INT.pack(len(items)) + b"".join(items)


def written_type(type: pa.DataType) -> WrittenType:
    """Return the encoding of a type's values.

    Raises:
        InvalidRequestError: Flink has no class for it that every job has.
    """
    simple = _SIMPLE.get(type)
    if simple is not None:
        return simple
    if pa.types.is_temporal(type) and (made := _of_time(type)) is not None:
        return made
    if pa.types.is_decimal(type):
        return _decimal_of(type.scale)
    if pa.types.is_list(type):
        return _list_of(written_type(type.value_type))
    if pa.types.is_map(type):
        return _map_of(written_type(type.key_type), written_type(type.item_type))
    if pa.types.is_struct(type) and 0 < type.num_fields <= _MAX_FIELDS:
        return _tuple_of(
            [field.name for field in type], [written_type(field.type) for field in type]
        )
    message = (
        f"values of type {type} can't be exported to Flink; supported are {', '.join(map(str, _SIMPLE))}, dates, "
        f"times, timestamps, decimals, lists, maps and structs of at most {_MAX_FIELDS} fields of these"
    )
    raise InvalidRequestError(message)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Replace dates and times in a type by integers, because Python does not support their full range."""
    if pa.types.is_temporal(type):
        return pa.int32() if type.bit_width == 32 else pa.int64()
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(plain_type(type.value_type)))
    if pa.types.is_map(type):
        return pa.map_(plain_type(type.key_type), plain_type(type.item_type))
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type])
    return type


def tuple_of_columns(types: Sequence[WrittenType]) -> WrittenType:
    """Return the encoding of a key of several columns as a tuple; values are lists."""
    return _tuple_of(list(range(len(types))), types)


def with_last_access(value: WrittenType) -> WrittenType:
    """Return the encoding of pairs of the time of last use in milliseconds, and a value with a time to live."""
    encode = value.encode
    snapshot = _composite(_TTL, 2, b"", LONG, value)
    return WrittenType(snapshot, lambda pair: _LONG.pack(pair[0]) + encode(pair[1]))


def timer_snapshot(key: WrittenType, namespace: WrittenType) -> bytes:
    return _composite(_TIMER, 2, b"", key, namespace)


def timer_time(timestamp: int) -> bytes:
    """Encode a timer's time in a form that sorts bytewise."""
    return (timestamp + _TOP).to_bytes(8, "big")


def list_without_count(element: WrittenType) -> Encode:
    """Return an encoder of lists in the canonical format: elements separated by commas."""
    encode = element.encode
    return lambda values: b",".join([encode(value) for value in values])


def _snapshot(java_class: str, content: bytes = b"") -> bytes:
    return utf(java_class) + _INT.pack(_SIMPLE_VERSION) + content


def _composite(java_class: str, version: int, outer: bytes, *parts: WrittenType) -> bytes:
    """Return a composite snapshot; the version is that of the class."""
    nested = _INT.pack(NESTED_MAGIC) + _INT.pack(_NESTED_VERSION)
    snapshots = encode_items([part.snapshot for part in parts])
    head = _INT.pack(COMPOSITE_MAGIC) + _INT.pack(version)
    return _snapshot(java_class, head + outer + nested + snapshots)


def _simple(
    name: str, encode: Encode, hashes: HashCodes | None = None, length: int = VARIABLE
) -> WrittenType:
    snapshot = _snapshot(snapshot_class(f"{BASE}{name}Serializer"))
    return WrittenType(snapshot, encode, hashes, length)


def _number(name: str, code: str, hashes: HashCodes) -> WrittenType:
    form = struct.Struct(f">{code}")
    return _simple(name, form.pack, hashes, form.size)


def _of_time(type: pa.DataType) -> WrittenType | None:
    """Return the encoding of dates and times in Arrow's units, or None for a type without a class in Flink."""
    if type == pa.date32():
        return _simple("LocalDate", _date, length=6)
    if pa.types.is_time(type):
        ticks = _TICKS[type.unit]
        return _simple("LocalTime", lambda value: _time(value, ticks), length=7)
    if not pa.types.is_timestamp(type):
        return None
    ticks = _TICKS[type.unit]
    nanos = _TICKS["ns"] // ticks
    if type.tz is not None:

        def instant(value: int) -> bytes:
            seconds, rest = divmod(value, ticks)
            return _SECONDS_NANOS.pack(seconds, rest * nanos)

        return _simple("Instant", instant, length=12)

    def local(value: int) -> bytes:
        days, rest = divmod(value, _SECONDS_OF_A_DAY * ticks)
        return _date(days) + _time(rest, ticks)

    return _simple("LocalDateTime", local, length=13)


def _date(days: int) -> bytes:
    """Encode year, month and day of days since 1970, in the Gregorian calendar, in any year."""
    era, of_era = divmod(days + 719_468, 146_097)  # eras of 400 years, which start in March
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    since_march = (5 * of_year + 2) // 153
    month = since_march + 3 if since_march < 10 else since_march - 9
    day = of_year - (153 * since_march + 2) // 5 + 1
    return _DATE.pack(400 * era + year + (month <= 2), month, day)


def _time(value: int, ticks: int) -> bytes:
    seconds, rest = divmod(value, ticks)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return _TIME.pack(hour, minute, second, rest * (_TICKS["ns"] // ticks))


def _decimal_of(scale: int) -> WrittenType:
    def encode(value: Decimal) -> bytes:
        sign, digits, _ = value.as_tuple()  # Arrow guarantees the scale
        unscaled = int("".join(map(str, digits)))
        return _big_integer(-unscaled if sign else unscaled) + _INT.pack(scale)

    return _simple("BigDec", encode)


def _big_integer(value: int) -> bytes:
    known = _KNOWN_INTEGERS.get(value)
    if known is not None:
        return known
    bits = value.bit_length() if value >= 0 else (-value - 1).bit_length()
    data = value.to_bytes(bits // 8 + 1, "big", signed=True)
    return _INT.pack(len(data) + 4) + data


def list_snapshot(element: WrittenType) -> bytes:
    return _composite(f"{BASE}ListSerializerSnapshot", 1, b"", element)


def map_snapshot(key: WrittenType, value: WrittenType) -> bytes:
    return _composite(f"{BASE}MapSerializerSnapshot", 1, b"", key, value)


def _list_of(element: WrittenType) -> WrittenType:
    encode = element.encode
    return WrittenType(
        list_snapshot(element), lambda values: encode_items([encode(value) for value in values])
    )


def _map_of(key: WrittenType, value: WrittenType) -> WrittenType:
    encode_key, encode_value = key.encode, nullable_value(value)
    return WrittenType(
        map_snapshot(key, value),
        lambda pairs: encode_items([encode_key(name) + encode_value(item) for name, item in pairs]),
    )


def nullable_value(value: WrittenType) -> Encode:
    """Return an encoder of a map's values, which may be null."""
    encode = value.encode
    return lambda item: b"\1" if item is None else b"\0" + encode(item)


def _tuple_of(names: Sequence[Any], fields: Sequence[WrittenType]) -> WrittenType:
    encodes = [(name, field.encode) for name, field in zip(names, fields, strict=True)]
    hashes = [field.hash_codes for field in fields if field.hash_codes is not None]
    java_class = f"org.apache.flink.api.java.tuple.Tuple{len(fields)}"
    return WrittenType(
        _composite(_TUPLES, 2, utf(java_class), *fields),
        lambda value: b"".join([encode(value[name]) for name, encode in encodes]),
        hash_codes.of_tuples(hashes) if len(hashes) == len(fields) else None,
    )


def _boolean(value: bool) -> bytes:  # noqa: FBT001  # encoders take a value
    return _INT.pack(value)[-1:]  # raises an error for None


def _string(text: str) -> bytes:
    if text.isascii():
        return _varint(len(text) + 1) + text.encode()
    units = memoryview(text.encode("utf-16-le")).cast("H")
    return _varint(len(units) + 1) + b"".join(map(_varint, units))


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


LONG = _number("Long", "q", hash_codes.of_longs)
NO_NAMESPACE = WrittenType(_snapshot(_VOID), lambda _: b"\0", length=0)
WINDOW_OF_TIME = WrittenType(_snapshot(_WINDOW), lambda pair: struct.pack(">qq", *pair), length=0)
"""The encoding of time windows: pairs of start and end in milliseconds."""
_KNOWN_INTEGERS = {0: _INT.pack(1), 1: _INT.pack(2), 10: _INT.pack(3)}

_SIMPLE = {
    pa.bool_(): _simple("Boolean", _boolean, hash_codes.of_booleans, 1),
    pa.int8(): _number("Byte", "b", hash_codes.of_ints),
    pa.int16(): _number("Short", "h", hash_codes.of_ints),
    pa.int32(): _number("Int", "i", hash_codes.of_ints),
    pa.int64(): LONG,
    pa.float32(): _number("Float", "f", hash_codes.of_floats),
    pa.float64(): _number("Double", "d", hash_codes.of_floats),
    pa.string(): _simple("String", _string, hash_codes.of_texts),
    pa.binary(): _simple("array.BytePrimitiveArray", lambda data: _INT.pack(len(data)) + data),
}
