"""Values as Flink's own serializers write them, by their Arrow type; and what a savepoint says of these serializers.

    bool, int8 … int64, float, double, string, binary   Boolean, Byte … Long, Float, Double, String, byte[]
    list, map                                           List, Map
    struct                                              Tuple1 … Tuple25, field by field

Java has no other classes that every job knows. A value that is null is none of theirs, but in maps.

Source:
    Flink, org.apache.flink.api.common.typeutils.base, TupleSerializer, CompositeTypeSerializerSnapshot (2.3.0).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidRequestError
from holdfast.flink.serializers import hash_codes
from holdfast.flink.serializers.serializer import HashCodes

Encode = Callable[[Any], bytes]

_BASE = "org.apache.flink.api.common.typeutils.base."
_TUPLES = "org.apache.flink.api.java.typeutils.runtime.TupleSerializerSnapshot"
_TTL = "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
_TIMER = "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot"
_VOID = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"

_SIMPLE_VERSION = 3
_COMPOSITE_MAGIC, _NESTED_MAGIC, _NESTED_VERSION = 911108, 1333245, 1
_MOST_FIELDS = 25
_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_TOP = 1 << 63


@dataclass(frozen=True, slots=True)
class WrittenType:
    """How values of a type are written for Flink.

    Attributes:
        snapshot: What a savepoint says of their serializer.
        encode: Makes bytes of a value, which is as `to_pylist` gives it.
        hash_codes: Java's hash codes of a column of such keys; None of what can't be a key.
    """

    snapshot: bytes
    encode: Encode
    hash_codes: HashCodes | None = None


def utf(text: str) -> bytes:
    """A text in Java's modified UTF-8, with its length before it. Raises `InvalidRequestError` if it is too long."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    data = b"".join(_modified(unit) for unit in units)
    if len(data) > 0xFFFF:
        raise InvalidRequestError("a name is longer than Java can write it")
    return _SHORT.pack(len(data)) + data


def counted(items: Sequence[bytes]) -> bytes:
    """A count of 32 bits, and the items."""
    return _INT.pack(len(items)) + b"".join(items)


def written_type(type: pa.DataType) -> WrittenType:
    """How values of a type are written.

    Raises:
        InvalidRequestError: Flink has no class for it that every job knows.
    """
    simple = _SIMPLE.get(type)
    if simple is not None:
        return simple
    if pa.types.is_list(type):
        return _list_of(written_type(type.value_type))
    if pa.types.is_map(type):
        return _map_of(written_type(type.key_type), written_type(type.item_type))
    if pa.types.is_struct(type) and 0 < type.num_fields <= _MOST_FIELDS:
        return _tuple_of(
            [field.name for field in type], [written_type(field.type) for field in type]
        )
    message = (
        f"values of type {type} can't be written for Flink; there are {', '.join(map(str, _SIMPLE))}, lists, maps and "
        f"structs of at most {_MOST_FIELDS} fields of these"
    )
    raise InvalidRequestError(message)


def tuple_of_columns(types: Sequence[WrittenType]) -> WrittenType:
    """A key of several columns, given as a list of values: a tuple."""
    return _tuple_of(list(range(len(types))), types)


def with_last_access(value: WrittenType) -> WrittenType:
    """Pairs of the time of the last use, in milliseconds, and a value with a time to live."""
    encode = value.encode
    snapshot = _composite(_TTL, 2, b"", LONG, value)
    return WrittenType(snapshot, lambda pair: _LONG.pack(pair[0]) + encode(pair[1]))


def timer_snapshot(key: WrittenType) -> bytes:
    """What a savepoint says of timers without namespaces."""
    return _composite(_TIMER, 2, b"", key, NO_NAMESPACE)


def timer_time(timestamp: int) -> bytes:
    """A timer's time in a form that sorts as bytes."""
    return ((timestamp + _TOP) % (_TOP << 1)).to_bytes(8, "big")


def list_without_count(element: WrittenType) -> Encode:
    """Makes bytes of a list as the canonical form has it: its elements, with a comma between."""
    encode = element.encode
    return lambda values: b",".join([encode(value) for value in values])


def _snapshot(java_class: str, content: bytes = b"") -> bytes:
    return utf(java_class) + _INT.pack(_SIMPLE_VERSION) + content


def _composite(java_class: str, version: int, outer: bytes, *parts: WrittenType) -> bytes:
    """A snapshot with others in it; the version is that of the class."""
    nested = _INT.pack(_NESTED_MAGIC) + _INT.pack(_NESTED_VERSION)
    snapshots = counted([part.snapshot for part in parts])
    head = _INT.pack(_COMPOSITE_MAGIC) + _INT.pack(version)
    return _snapshot(java_class, head + outer + nested + snapshots)


def _simple(name: str, encode: Encode, hashes: HashCodes | None = None) -> WrittenType:
    snapshot = _snapshot(f"{_BASE}{name}Serializer${name.rpartition('.')[2]}SerializerSnapshot")
    return WrittenType(snapshot, encode, hashes)


def list_snapshot(element: WrittenType) -> bytes:
    """What a savepoint says of lists."""
    return _composite(f"{_BASE}ListSerializerSnapshot", 1, b"", element)


def map_snapshot(key: WrittenType, value: WrittenType) -> bytes:
    """What a savepoint says of maps."""
    return _composite(f"{_BASE}MapSerializerSnapshot", 1, b"", key, value)


def _list_of(element: WrittenType) -> WrittenType:
    encode = element.encode
    return WrittenType(
        list_snapshot(element), lambda values: counted([encode(value) for value in values])
    )


def _map_of(key: WrittenType, value: WrittenType) -> WrittenType:
    encode_key, encode_value = key.encode, nullable_value(value)
    return WrittenType(
        map_snapshot(key, value),
        lambda pairs: counted([encode_key(name) + encode_value(item) for name, item in pairs]),
    )


def nullable_value(value: WrittenType) -> Encode:
    """Makes bytes of a map's value, which may be null."""
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
    return _INT.pack(value)[-1:]  # which refuses None


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


def _modified(unit: int) -> bytes:
    if 0 < unit < 0x80:
        return bytes([unit])
    if unit < 0x800:
        return bytes([0xC0 | unit >> 6, 0x80 | unit & 0x3F])
    return bytes([0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F])


LONG = _simple("Long", _LONG.pack, hash_codes.of_longs)
NO_NAMESPACE = WrittenType(_snapshot(_VOID), lambda _: b"\0")

_SIMPLE = {
    pa.bool_(): _simple("Boolean", _boolean, hash_codes.of_booleans),
    pa.int8(): _simple("Byte", struct.Struct(">b").pack, hash_codes.of_ints),
    pa.int16(): _simple("Short", struct.Struct(">h").pack, hash_codes.of_ints),
    pa.int32(): _simple("Int", _INT.pack, hash_codes.of_ints),
    pa.int64(): LONG,
    pa.float32(): _simple("Float", struct.Struct(">f").pack, hash_codes.of_floats),
    pa.float64(): _simple("Double", struct.Struct(">d").pack, hash_codes.of_floats),
    pa.string(): _simple("String", _string, hash_codes.of_texts),
    pa.binary(): _simple("array.BytePrimitiveArray", lambda data: _INT.pack(len(data)) + data),
}
