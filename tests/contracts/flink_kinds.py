"""Values as Flink writes them: numbers and texts of `DataOutput`, snapshots of serializers, and `KINDS` of values."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

BASE = "org.apache.flink.api.common.typeutils.base."
SCALA = "org.apache.flink.api.scala.typeutils."
RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
TTL = "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
TIMER = "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot"
VOID = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"
WINDOW = "org.apache.flink.streaming.api.windowing.windows.TimeWindow$Serializer$TimeWindowSerializerSnapshot"
SEPARATOR = b","


def i2(number: int) -> bytes:
    return struct.pack(">h", number)


def i4(number: int) -> bytes:
    return struct.pack(">i", number)


def i8(number: int) -> bytes:
    return struct.pack(">q", number)


def utf(text: str) -> bytes:
    """Modified UTF-8, as far as tests need it: no NUL, nothing above U+FFFF."""
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def each(items: Sequence[bytes]) -> bytes:
    """Encode the number of items, then the items."""
    return i4(len(items)) + b"".join(items)


def snapshot(java_class: str, version: int = 3, content: bytes = b"") -> bytes:
    return utf(java_class) + i4(version) + content


def simple(name: str) -> bytes:
    """Encode the snapshot of a serializer without parameters."""
    last = name.rpartition(".")[2]
    return snapshot(f"{BASE}{name}Serializer${last}SerializerSnapshot")


def composite(java_class: str, *parts: bytes, outer: bytes = b"", outer_version: int = 1) -> bytes:
    head = i4(911108) + i4(outer_version) + outer + i4(1333245) + i4(1)
    return snapshot(java_class, 3, head + each(parts))


def framed_map(entries: Mapping[str, bytes]) -> bytes:
    """Encode a map with the length of each value; readers skip its keys."""
    items = [
        utf(name) + b"\1" + i4(3) + b"key" + b"\1" + i4(len(value)) + value
        for name, value in entries.items()
    ]
    return i8(0x4F2C69A3D70) + each(items)


@dataclass(frozen=True)
class Kind:
    """A type of values, as Flink serializes them.

    Attributes:
        snapshot: Snapshot of the serializer in a savepoint.
        type: The Arrow type of values that are read.
        encode: Returns the bytes of a value, which has the form that Arrow accepts.
        values: Generates values.
        is_fixed: Whether Flink considers all values to have the same length.
    """

    snapshot: bytes
    type: pa.DataType
    encode: Callable[[Any], bytes]
    values: st.SearchStrategy[Any]
    is_fixed: bool = False


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    units = memoryview(text.encode("utf-16-le")).cast("H")
    return varint(len(units) + 1) + b"".join(map(varint, units))


def _number(name: str, code: str, type: pa.DataType, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(simple(name), type, lambda value: struct.pack(f">{code}", value), values, True)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _big_integer(text: str) -> bytes:
    number = int(text)
    if number in {0, 1, 10}:
        return i4({0: 1, 1: 2, 10: 3}[number])
    size = number.bit_length() // 8 + 1
    return i4(size + 4) + number.to_bytes(size, "big", signed=True)


def _local_time(nanos: int) -> bytes:
    seconds, nano = divmod(nanos, 10**9)
    return struct.pack(">bbbi", seconds // 3600, seconds // 60 % 60, seconds % 60, nano)


def _big_decimal(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    unscaled = "".join(map(str, digits))
    assert isinstance(exponent, int)
    return _big_integer(f"{'-' if sign else ''}{unscaled}") + i4(-exponent)


def _local_date_time(nanos: int) -> bytes:
    days, rest = divmod(nanos, 86400 * 10**9)
    day = date(1970, 1, 1) + timedelta(days=days)
    return struct.pack(">ibb", day.year, day.month, day.day) + _local_time(rest)


def _string_value(text: str) -> bytes:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    return varint(len(units)) + b"".join(map(varint, units))


def _array(name: str, element: Kind) -> Kind:
    """Return the kind of primitive arrays of numbers."""
    return Kind(
        simple(f"array.{name}PrimitiveArray"),
        pa.list_(element.type),
        lambda values: each([element.encode(value) for value in values]),
        st.lists(element.values, max_size=3),
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_NANOS = st.integers(-(10**18), 10**18)
LONG = _number("Long", "q", pa.int64(), _integers(64))
INT = _number("Int", "i", pa.int32(), _integers(32))
STRING = Kind(simple("String"), pa.string(), string, TEXTS)
NO_NAMESPACE = Kind(snapshot(VOID), pa.null(), lambda _: b"\0", st.none(), True)
TIME_WINDOW = Kind(
    snapshot(WINDOW),
    pa.struct([("start", pa.int64()), ("end", pa.int64())]),
    lambda window: i8(window["start"]) + i8(window["end"]),
    st.fixed_dictionaries({"start": _integers(64), "end": _integers(64)}),
    True,
)

BOOLEAN = _number("Boolean", "?", pa.bool_(), st.booleans())
SHORT = _number("Short", "h", pa.int16(), _integers(16))
FLOAT = _number("Float", "f", pa.float32(), st.floats(width=32, allow_nan=False))
DOUBLE = _number("Double", "d", pa.float64(), st.floats(allow_nan=False))
CHAR = Kind(
    simple("Char"),
    pa.string(),
    lambda text: text.encode("utf-16-be"),
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]),
    True,
)

SIMPLE = [
    LONG,
    INT,
    STRING,
    BOOLEAN,
    _number("Byte", "b", pa.int8(), _integers(8)),
    SHORT,
    FLOAT,
    DOUBLE,
    CHAR,
    Kind(simple("StringValue"), pa.string(), _string_value, TEXTS),
    Kind(
        simple("BigDec"),
        pa.string(),
        _big_decimal,
        st.decimals(allow_nan=False, allow_infinity=False).map(
            lambda number: str(number or abs(number))
        ),
    ),
    Kind(simple("SqlDate"), pa.timestamp("ms", "UTC"), i8, _integers(62), True),
    Kind(simple("SqlTime"), pa.timestamp("ms", "UTC"), i8, _integers(62), True),
    Kind(simple("LocalDateTime"), pa.timestamp("ns"), _local_date_time, _NANOS, True),
    _array("Boolean", BOOLEAN),
    _array("Short", SHORT),
    _array("Int", INT),
    _array("Float", FLOAT),
    _array("Double", DOUBLE),
    _array("Char", CHAR),
    TIME_WINDOW,
    Kind(simple("BigInt"), pa.string(), _big_integer, st.integers().map(str)),
    Kind(
        simple("Instant"),
        pa.timestamp("ns", "UTC"),
        lambda nanos: i8(nanos // 10**9) + i4(nanos % 10**9),
        _NANOS,
        True,
    ),
    Kind(
        simple("SqlTimestamp"),
        pa.timestamp("ns", "UTC"),
        lambda nanos: i8(nanos // 10**6) + i4(nanos % 10**9),
        _NANOS,
        True,
    ),
    Kind(simple("Date"), pa.timestamp("ms", "UTC"), i8, _integers(62), True),
    Kind(
        simple("LocalDate"),
        pa.date32(),
        lambda day: struct.pack(">ibb", day.year, day.month, day.day),
        st.dates(),
        True,
    ),
    Kind(
        simple("LocalTime"), pa.time64("ns"), _local_time, st.integers(0, 86400 * 10**9 - 1), True
    ),
    Kind(
        simple("array.BytePrimitiveArray"),
        pa.binary(),
        lambda data: i4(len(data)) + data,
        st.binary(max_size=4),
    ),
    Kind(
        simple("array.LongPrimitiveArray"),
        pa.list_(pa.int64()),
        lambda numbers: each([i8(number) for number in numbers]),
        st.lists(_integers(64), max_size=3),
    ),
    Kind(
        simple("array.StringArray"),
        pa.list_(pa.string()),
        lambda texts: each([string(text) for text in texts]),
        st.lists(st.none() | TEXTS, max_size=3),
    ),
    Kind(
        snapshot(
            f"{BASE}EnumSerializer$EnumSerializerSnapshot",
            3,
            utf("Color") + each([utf("RED"), utf("BLUE")]),
        ),
        pa.string(),
        lambda name: i4(["RED", "BLUE"].index(name)),
        st.sampled_from(["RED", "BLUE"]),
        True,
    ),
]


def list_of(element: Kind) -> Kind:
    return Kind(
        composite(f"{BASE}ListSerializerSnapshot", element.snapshot),
        pa.list_(element.type),
        lambda values: each([element.encode(value) for value in values]),
        st.lists(element.values, max_size=3),
    )


def set_of(element: Kind) -> Kind:
    return Kind(
        composite(f"{BASE}SetSerializerSnapshot", element.snapshot),
        pa.list_(element.type),
        lambda values: each(
            [b"\1" if value is None else b"\0" + element.encode(value) for value in values]
        ),
        st.lists(st.none() | element.values, max_size=3),
    )


def object_array_of(element: Kind) -> Kind:
    return Kind(
        composite(f"{BASE}GenericArraySerializerSnapshot", element.snapshot, outer=utf("a.B")),
        pa.list_(element.type),
        lambda values: each(
            [b"\0" if value is None else b"\1" + element.encode(value) for value in values]
        ),
        st.lists(st.none() | element.values, max_size=3),
    )


def map_of(key: Kind, value: Kind) -> Kind:
    return Kind(
        composite(f"{BASE}MapSerializerSnapshot", key.snapshot, value.snapshot),
        pa.map_(key.type, value.type),
        lambda pairs: each(
            [
                key.encode(name) + (b"\1" if content is None else b"\0" + value.encode(content))
                for name, content in pairs
            ]
        ),
        st.lists(st.tuples(key.values, st.none() | value.values), max_size=3),
    )


def _struct(*fields: Kind) -> pa.DataType:
    return pa.struct([(f"f{number}", field.type) for number, field in enumerate(fields)])


def _fields(*fields: Kind, optional: bool = False) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            f"f{number}": st.none() | field.values if optional else field.values
            for number, field in enumerate(fields)
        }
    )


def tuple_of(*fields: Kind) -> Kind:
    return Kind(
        composite(
            f"{RUNTIME}TupleSerializerSnapshot",
            *(field.snapshot for field in fields),
            outer=utf("a.T"),
        ),
        _struct(*fields),
        lambda value: b"".join(
            field.encode(value[f"f{number}"]) for number, field in enumerate(fields)
        ),
        _fields(*fields),
    )


def row_of(*fields: Kind) -> Kind:
    """Return the kind of rows, which begin with the bits of their row kind."""

    def encode(value: dict[str, Any]) -> bytes:
        kind = ["+I", "-U", "+U", "-D"].index(value["kind"])
        bits = f"{kind & 1}{kind >> 1}"
        bits += "".join("1" if value[f"f{n}"] is None else "0" for n in range(len(fields)))
        bits = bits.ljust((len(bits) + 7) // 8 * 8, "0")
        there = [
            field.encode(value[f"f{n}"])
            for n, field in enumerate(fields)
            if value[f"f{n}"] is not None
        ]
        return int(bits, 2).to_bytes(len(bits) // 8, "big") + b"".join(there)

    return Kind(
        composite(
            f"{RUNTIME}RowSerializer$RowSerializerSnapshot",
            *(field.snapshot for field in fields),
            outer=b"\1",
            outer_version=4,
        ),
        pa.struct([("kind", pa.string()), *_struct(*fields)]),
        encode,
        st.builds(
            lambda kind, value: {"kind": kind, **value},
            st.sampled_from(["+I", "-U", "+U", "-D"]),
            _fields(*fields, optional=True),
        ),
    )


def pojo_snapshot(
    name: str,
    fields: Mapping[str, bytes],
    registered: Mapping[str, bytes] | None = None,
    others: Mapping[str, bytes] | None = None,
) -> bytes:
    maps = framed_map(fields) + framed_map(registered or {}) + framed_map(others or {})
    return snapshot(f"{RUNTIME}PojoSerializerSnapshot", 2, utf(name) + maps)


def pojo_of(*fields: Kind) -> Kind:
    names = {f"f{number}": field.snapshot for number, field in enumerate(fields)}

    def encode(value: dict[str, Any] | None) -> bytes:
        if value is None:
            return b"\1"
        parts = [
            b"\1" if value[f"f{n}"] is None else b"\0" + field.encode(value[f"f{n}"])
            for n, field in enumerate(fields)
        ]
        return b"\2" + b"".join(parts)

    return Kind(
        pojo_snapshot("a.Pojo", names),
        _struct(*fields),
        encode,
        st.none() | _fields(*fields, optional=True),
    )


def either_of(left: Kind, right: Kind) -> Kind:
    def encode(value: dict[str, Any]) -> bytes:
        if value["left"] is not None:
            return b"\1" + left.encode(value["left"])
        return b"\0" + right.encode(value["right"])

    return Kind(
        composite(f"{RUNTIME}JavaEitherSerializerSnapshot", left.snapshot, right.snapshot),
        pa.struct([("left", left.type), ("right", right.type)]),
        encode,
        st.builds(lambda value: {"left": value, "right": None}, left.values)
        | st.builds(lambda value: {"left": None, "right": value}, right.values),
    )


def nullable(inner: Kind) -> Kind:
    return Kind(
        composite(
            f"{RUNTIME}NullableSerializer$NullableSerializerSnapshot",
            inner.snapshot,
            outer=i4(3),
            outer_version=2,
        ),
        inner.type,
        lambda value: b"\1\0\0\0" if value is None else b"\0" + inner.encode(value),
        st.none() | inner.values,
    )


def with_last_access(inner: Kind) -> Kind:
    return Kind(
        composite(TTL, LONG.snapshot, inner.snapshot),
        pa.struct([("value", inner.type), ("last_access", pa.timestamp("ms", "UTC"))]),
        lambda value: i8(value["last_access"]) + inner.encode(value["value"]),
        st.fixed_dictionaries({"value": inner.values, "last_access": st.integers(0, 10**12)}),
    )


def option_of(value: Kind) -> Kind:
    """Return the kind of Scala's `Option`."""
    return Kind(
        composite(f"{SCALA}ScalaOptionSerializerSnapshot", value.snapshot),
        value.type,
        lambda content: b"\0" if content is None else b"\1" + value.encode(content),
        st.none() | value.values,
    )


def join_entry_of(value: Kind) -> Kind:
    """Return the kind of a row in the buffer of an interval join."""
    return Kind(
        composite(
            "org.apache.flink.streaming.api.operators.co.IntervalJoinOperator"
            "$BufferEntrySerializerSnapshot",
            value.snapshot,
        ),
        pa.struct([("value", value.type), ("was_joined", pa.bool_())]),
        lambda entry: bytes([entry["was_joined"]]) + value.encode(entry["value"]),
        st.fixed_dictionaries({"value": value.values, "was_joined": st.booleans()}),
    )


def of_either_stream(first: Kind, second: Kind) -> Kind:
    """Return the kind of a row in a window join of two streams."""

    def encode(value: dict[str, Any]) -> bytes:
        if value["one"] is not None:
            return b"\1" + first.encode(value["one"])
        return b"\2" + second.encode(value["two"])

    return Kind(
        composite(
            "org.apache.flink.streaming.api.datastream.CoGroupedStreams$UnionSerializerSnapshot",
            first.snapshot,
            second.snapshot,
        ),
        pa.struct([("one", first.type), ("two", second.type)]),
        encode,
        st.builds(lambda value: {"one": value, "two": None}, first.values)
        | st.builds(lambda value: {"one": None, "two": value}, second.values),
    )


def stream_element(value: Kind) -> Kind:
    """Rows of a stream, with or without a time, and watermarks."""

    def encode(element: dict[str, Any]) -> bytes:
        if element["kind"] == "watermark":
            return b"\2" + i8(element["timestamp"])
        if element["timestamp"] is None:
            return b"\1" + value.encode(element["value"])
        return b"\0" + i8(element["timestamp"]) + value.encode(element["value"])

    def element(kind: str, timestamp: int | None, content: Any) -> dict[str, Any]:
        return {"kind": kind, "timestamp": timestamp, "value": content}

    return Kind(
        composite(
            "org.apache.flink.streaming.runtime.streamrecord.StreamElementSerializer"
            "$StreamElementSerializerSnapshot",
            value.snapshot,
        ),
        pa.struct([("kind", pa.string()), ("timestamp", pa.int64()), ("value", value.type)]),
        encode,
        st.builds(element, st.just("record"), st.none() | _integers(64), value.values)
        | st.builds(element, st.just("watermark"), _integers(64), st.none()),
    )


def linked_list_of(element: Kind) -> Kind:
    """Lists of the Table API, with a bit for each element that is null."""

    def encode(values: list[Any]) -> bytes:
        bits = "".join("1" if value is None else "0" for value in values)
        size = (len(bits) + 7) // 8
        mask = int(bits.ljust(8 * size, "0") or "0", 2).to_bytes(size, "big")
        there = [element.encode(value) for value in values if value is not None]
        return i4(len(values)) + mask + b"".join(there)

    return Kind(
        composite(
            "org.apache.flink.table.runtime.typeutils.LinkedListSerializer"
            "$LinkedListSerializerSnapshot",
            element.snapshot,
            outer=b"\1",
            outer_version=3,
        ),
        pa.list_(element.type),
        encode,
        st.lists(st.none() | element.values, max_size=9),
    )


def _compose(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    # Either, and what may be null, of values that are never null themselves.
    whole = st.sampled_from(SIMPLE)
    return st.one_of(
        st.builds(list_of, kinds),
        st.builds(set_of, whole),
        st.builds(object_array_of, whole),
        st.builds(map_of, st.sampled_from([LONG, STRING]), kinds),
        st.builds(tuple_of, kinds, kinds),
        st.builds(row_of, whole, kinds),
        st.builds(pojo_of, whole, kinds),
        st.builds(either_of, whole, whole),
        st.builds(nullable, whole),
        st.builds(with_last_access, kinds),
        st.builds(option_of, whole),
        st.builds(join_entry_of, kinds),
        st.builds(of_either_stream, whole, whole),
        st.builds(stream_element, whole),
        st.builds(linked_list_of, whole),
    )


KINDS = st.recursive(st.sampled_from(SIMPLE), _compose, max_leaves=4)
"""Kinds of values, nested in each other."""


BYTES = next(kind for kind in SIMPLE if kind.type == pa.binary())


def kafka_split(topic: str, partition: int, offset: int) -> bytes:
    """Encode a split of a `KafkaSource`, as its readers store it."""
    content = utf(topic) + i4(partition) + i8(offset) + i8(-(1 << 63))
    return i4(0) + i4(len(content)) + content
