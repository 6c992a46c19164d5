"""Snapshots of Flink's serializers in savepoints, and the serializers here that read their values.

    snapshot  utf class of the TypeSerializerSnapshot, int version, content defined by that class

Only the class defines the length of its content. After an unknown class nothing can be read, unless the length is
stored elsewhere, as for fields of POJOs. No class is loaded: names are compared with the tables below.

Source:
    Flink, TypeSerializerSnapshot, CompositeTypeSerializerSnapshot, PojoSerializerSnapshotData, LinkedOptionalMapSerializer
    (2.3.0); flink-cep, SharedBufferNodeSerializer, Lockable, NodeId, EventId, DeweyNumber (2.3.0).
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import CheckpointCorruptedError
from holdfast.flink.binary import DataInput, corrupted_error
from holdfast.flink.serializers import basic, composite, sql
from holdfast.flink.serializers.avro import avro_of
from holdfast.flink.serializers.java_objects import read_java_object
from holdfast.flink.serializers.kryo import kryo_of
from holdfast.flink.serializers.kryo_classes import Kryo2Graph, Kryo5Graph
from holdfast.flink.serializers.serializer import (
    BASE,
    COMPOSITE_MAGIC,
    NESTED_MAGIC,
    Serializer,
    reading,
    snapshot_class,
    unreadable,
)
from holdfast.flink.serializers.texts import read_string

MAX_NESTING = 32

_BY_KRYO_ITSELF = bytes(4)
"""The end of a registration without a custom serializer."""
_MAP_MAGIC = 0x4F2C69A3D70
_COMPOSITE_VERSIONS = range(1, 4)
_ANY_VERSION = range(1 << 31)

_FLINK = "org.apache.flink."
_SQL = f"{_FLINK}table.runtime.typeutils."
_RUNTIME = f"{_FLINK}api.java.typeutils.runtime."
_STATE = f"{_FLINK}runtime.state."
_SCALA = f"{_FLINK}api.scala.typeutils."
_STREAMING = f"{_FLINK}streaming."
_WINDOWS = f"{_STREAMING}api.windowing.windows."
_SQL_WINDOWS = f"{_FLINK}table.runtime.operators.window."
_CEP = f"{_FLINK}cep.nfa."


class UnknownSnapshotError(Exception):
    """A snapshot of an unknown class, whose end is therefore unknown."""

    def __init__(self, java_class: str) -> None:
        super().__init__(java_class)
        self.java_class = java_class


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot whose class and version have been read from the source, at a depth of nesting."""

    source: DataInput
    java_class: str
    version: int
    depth: int

    def part(self) -> Serializer:
        return read_snapshot(self.source, self.depth + 1)


_Reader = Callable[[_Snapshot], Serializer]
_Arguments = Callable[[DataInput, int], dict[str, object]]
"""Reads the data of a composite snapshot before its parts, by version, as arguments of its serializer."""

_PRIMITIVES = {
    "Boolean": basic.BOOLEAN,
    "Byte": basic.BYTE,
    "Short": basic.SHORT,
    "Int": basic.INT,
    "Long": basic.LONG,
    "Float": basic.FLOAT,
    "Double": basic.DOUBLE,
    "Char": basic.CHAR,
}
_SIMPLE = {
    snapshot_class(java_class): serializer
    for java_class, serializer in {
        **{f"{BASE}{name}Serializer": number for name, number in _PRIMITIVES.items()},
        **{f"{BASE}{name}ValueSerializer": number for name, number in _PRIMITIVES.items()},
        **{
            f"{BASE}array.{name}PrimitiveArraySerializer": basic.array_of(number)
            for name, number in _PRIMITIVES.items()
        },
        f"{BASE}array.BytePrimitiveArraySerializer": basic.BYTES,
        f"{BASE}array.StringArraySerializer": basic.array_of(basic.STRING),
        f"{BASE}StringSerializer": basic.STRING,
        f"{BASE}StringValueSerializer": basic.STRING_VALUE,
        f"{BASE}NullValueSerializer": basic.NULL_VALUE,
        f"{BASE}BigIntSerializer": basic.BIG_INTEGER,
        f"{BASE}BigDecSerializer": basic.BIG_DECIMAL,
        f"{BASE}DateSerializer": basic.DATE,
        f"{BASE}SqlDateSerializer": basic.DATE,
        f"{BASE}SqlTimeSerializer": basic.DATE,
        f"{BASE}SqlTimestampSerializer": basic.SQL_TIMESTAMP,
        f"{BASE}InstantSerializer": basic.INSTANT,
        f"{BASE}LocalDateSerializer": basic.LOCAL_DATE,
        f"{BASE}LocalTimeSerializer": basic.LOCAL_TIME,
        f"{BASE}LocalDateTimeSerializer": basic.LOCAL_DATE_TIME,
        f"{BASE}VoidSerializer": basic.VOID,
        f"{_STATE}VoidNamespaceSerializer": basic.VOID,
        f"{_STATE}JavaSerializer": unreadable("java.io.Serializable (by Java)"),
        f"{_STREAMING}api.utils.ByteArrayWrapperSerializer": basic.BYTES,
        f"{_SQL}StringDataSerializer": sql.STRING_DATA,
        f"{_FLINK}table.dataview.NullSerializer": basic.VOID,
        f"{_SCALA}UnitSerializer": basic.VOID,
        f"{_CEP}DeweyNumber$DeweyNumberSerializer": composite.list_of(basic.INT),
        f"{_CEP}sharedbuffer.EventId$EventIdSerializer": composite.struct_of(
            {"id": basic.INT, "timestamp": basic.LONG}
        ),
    }.items()
} | {
    f"{_SQL_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot": basic.TIME_WINDOW,
    f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot": basic.LONG,
    f"{_SQL_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot": basic.VOID,
    f"{_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot": basic.TIME_WINDOW,
    f"{_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot": basic.VOID,
    f"{_RUNTIME}Tuple0SerializerSnapshot": basic.VOID,
}
"""Serializers that are identified by the class of their snapshot."""


def read_snapshot(source: DataInput, depth: int = 0) -> Serializer:
    """Read a snapshot.

    Raises:
        CheckpointCorruptedError: It is corrupted.
        UnknownSnapshotError: Its class, or the version of its class, is unknown.
    """
    if depth > MAX_NESTING:
        raise corrupted_error("serializers are nested too deeply")
    java_class, version = source.utf(), source.read_int()
    if java_class in _SIMPLE:
        if version == 2:
            source.utf()  # the serializer's name, in Flink 1.7
        elif version != 3:
            raise UnknownSnapshotError(java_class)
        return _SIMPLE[java_class]
    versions, read = _OTHERS.get(java_class, ((), None))
    if read is None or version not in versions:
        raise UnknownSnapshotError(java_class)
    return read(_Snapshot(source, java_class, version, depth))


def _composite(
    make: Callable[..., Serializer],
    count: int = -1,
    read_arguments: _Arguments = lambda _source, _version: {},
) -> tuple[Container[int], _Reader]:
    """Return the versions and the reader of a composite snapshot.

    Args:
        make: Makes the serializer from the parts and the arguments.
        count: Number of parts, or -1 for any number.
        read_arguments: Reads the data before the parts.
    """

    def read(snapshot: _Snapshot) -> Serializer:
        source, version = snapshot.source, snapshot.version
        if version == 3:
            source.expect(COMPOSITE_MAGIC, "a composite serializer")
            version = source.read_int()
        arguments = read_arguments(source, version)
        source.expect(NESTED_MAGIC, "the parts of a serializer")
        source.expect(1, "the parts of a serializer")
        parts = [snapshot.part() for _ in range(source.count(6))]
        if count not in {-1, len(parts)}:
            message = f"{snapshot.java_class} has {len(parts)} parts instead of {count}"
            raise corrupted_error(message)
        return composite.opaque_if_a_part_is(partial(make, **arguments), *parts)

    return _COMPOSITE_VERSIONS, read


def _java_class(source: DataInput, _version: int) -> dict[str, object]:
    source.utf()
    return {}


def _row_has_kind(source: DataInput, version: int) -> dict[str, object]:
    return {"has_kind": source.byte() != 0 if version >= 4 else version == 3}


def _list_has_mask(source: DataInput, version: int) -> dict[str, object]:
    return {"has_mask": source.byte() != 0 if version >= 3 else version == 2}


def _has_previous(source: DataInput, version: int) -> dict[str, object]:
    return {"has_previous": version >= 2 and source.byte() != 0}


def _padding(source: DataInput, _version: int) -> dict[str, object]:
    padding = source.read_int()
    if not 0 <= padding <= 1 << 16:
        raise corrupted_error(f"a null has {padding} bytes")
    return {"padding": padding}


def _pojo(snapshot: _Snapshot) -> Serializer:
    java_class = snapshot.source.utf()
    fields, registered, others = (_read_framed(snapshot) for _ in range(3))
    return composite.pojo_of(
        java_class,
        fields,
        [composite.named_class(name, pojo) for name, pojo in registered.items()],
        {name: composite.named_class(name, pojo) for name, pojo in others.items()},
    )


def _framed_entries(source: DataInput) -> Iterator[tuple[str, int, int]]:
    """Read a map of names to data with a stored length, which may be skipped; yields its start and end, or zeros."""
    if source.read_long() != _MAP_MAGIC:
        raise corrupted_error("a map of serializers has an unexpected start")
    for _ in range(source.count(4)):
        name = source.utf()
        if source.byte():
            source.take(source.count())
        start = end = 0
        if source.byte():
            length = source.count()
            start, end = source.position, source.position + length
            source.position = end
        yield name, start, end


def _read_framed(snapshot: _Snapshot) -> dict[str, Serializer]:
    serializers = {}
    for name, start, end in _framed_entries(snapshot.source):
        serializers[name] = unreadable(f"the class of {name}")
        if end:
            try:
                part = snapshot.source.part(start, end)
                serializers[name] = read_snapshot(part, snapshot.depth + 1)
            except UnknownSnapshotError as unknown:
                serializers[name] = unreadable(unknown.java_class)
    return serializers


def _kryo(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    java_class = source.utf()
    registered = []
    foreign = set()
    for name, start, end in _framed_entries(source):
        registered.append(name)
        if end and not source.data[start:end].endswith(_BY_KRYO_ITSELF):
            foreign.add(name)
    for _ in range(2):  # custom serializers of other classes
        foreign |= {name for name, _, _ in _framed_entries(source)}
    graph = Kryo2Graph if source.is_of_flink_1 else Kryo5Graph
    return kryo_of(java_class, graph, registered, frozenset(foreign))


def _enum(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    source.utf()
    return composite.enum_of({number: source.utf() for number in range(source.count(2))})


def _scala_enum(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    source.utf()
    pairs = [(source.utf(), source.read_int()) for _ in range(source.count(6))]
    return composite.enum_of({number: name for name, number in pairs})


def _perhaps_with_time_to_live(snapshot: _Snapshot) -> Serializer:
    snapshot.source.byte()
    return snapshot.part()


def _avro(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    match snapshot.version:
        case 1:
            return avro_of("a record", source.utf())
        case 2:
            return avro_of(source.utf(), source.utf())
    texts = []
    for _ in range(2):
        with reading("an Avro schema"):
            text, source.position = read_string(source.data, source.position)
        texts.append(text or "")
    return avro_of(*texts)


def _sql_row(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    count = source.count()
    start = source.position
    try:
        types = [sql.logical_type(read_java_object(source)) for _ in range(count)]
    except CheckpointCorruptedError:  # a class of the job may use a format that only it can read
        types = [None] * count
        source.position = start
    _skip_objects(snapshot, count)
    parts = [snapshot.part() for _ in range(count)]
    return sql.row_of(
        *(type or sql.as_field(part) for type, part in zip(types, parts, strict=True))
    )


def _sql_array(snapshot: _Snapshot) -> Serializer:
    element, _ = _objects(snapshot, 2)
    return sql.array_of(sql.element_type(element))


def _sql_map(snapshot: _Snapshot) -> Serializer:
    key, value, _, _ = _objects(snapshot, 4)
    return sql.map_of(sql.element_type(key), sql.element_type(value))


def _objects(snapshot: _Snapshot, count: int) -> list[Any]:
    """Read the types of parts and their serializers as Java objects."""
    try:
        return [read_java_object(snapshot.source) for _ in range(count)]
    except CheckpointCorruptedError as error:  # see `_sql_row`
        raise UnknownSnapshotError(snapshot.java_class) from error


def _sql_external(snapshot: _Snapshot) -> Serializer:
    """Read the snapshot of external values stored in the table's internal format, such as those of COUNT(DISTINCT)."""
    snapshot.source.expect(COMPOSITE_MAGIC, "a composite serializer")
    snapshot.source.read_int()
    _skip_objects(snapshot, 1)  # their type
    return snapshot.part()


def _skip_objects(snapshot: _Snapshot, count: int) -> None:
    """Skip Java objects, up to the snapshots of `count` parts."""
    source = snapshot.source
    parts = b"".join(number.to_bytes(4, "big") for number in (NESTED_MAGIC, 1, count))
    start = source.data.find(parts, source.position, source.end)
    if start < 0:
        raise UnknownSnapshotError(snapshot.java_class)
    source.position = start + len(parts)


def _sql_decimal(snapshot: _Snapshot) -> Serializer:
    source = snapshot.source
    return _of_numbers(sql.decimal_of, source.read_int(), source.read_int())


def _sql_timestamp(snapshot: _Snapshot) -> Serializer:
    return _of_numbers(sql.timestamp_of, snapshot.source.read_int())


def _of_numbers(make: Callable[..., Serializer], *numbers: int) -> Serializer:
    try:
        return make(*numbers)
    except ValueError as error:
        raise corrupted_error(str(error)) from error


_OTHERS: dict[str, tuple[Container[int], _Reader]] = {
    f"{BASE}ListSerializerSnapshot": _composite(composite.list_of, 1),
    f"{_STATE}ArrayListSerializerSnapshot": _composite(composite.list_of, 1),
    f"{BASE}MapSerializerSnapshot": _composite(composite.map_of, 2),
    f"{BASE}SetSerializerSnapshot": _composite(partial(composite.nullable_elements, null=True), 1),
    f"{BASE}GenericArraySerializerSnapshot": _composite(
        partial(composite.nullable_elements, null=False), 1, _java_class
    ),
    snapshot_class(f"{BASE}EnumSerializer"): ((2, 3), _enum),
    f"{_RUNTIME}TupleSerializerSnapshot": _composite(composite.tuple_of, -1, _java_class),
    snapshot_class(f"{_RUNTIME}RowSerializer"): _composite(composite.row_of, -1, _row_has_kind),
    f"{_RUNTIME}JavaEitherSerializerSnapshot": _composite(composite.either_of, 2),
    snapshot_class(f"{_RUNTIME}NullableSerializer"): _composite(composite.nullable, 1, _padding),
    f"{_RUNTIME}PojoSerializerSnapshot": ((2,), _pojo),
    f"{_RUNTIME}kryo.KryoSerializerSnapshot": ((2,), _kryo),
    **dict.fromkeys(
        (
            f"{_SCALA}ScalaCaseClassSerializerSnapshot",
            f"{_SCALA}Tuple2CaseClassSerializerSnapshot",
        ),
        _composite(composite.case_class_of, -1, _java_class),
    ),
    f"{_SCALA}ScalaEitherSerializerSnapshot": _composite(composite.either_of, 2),
    f"{_SCALA}ScalaEnumSerializerSnapshot": ((3,), _scala_enum),
    f"{_SCALA}ScalaOptionSerializerSnapshot": _composite(composite.option_of, 1),
    f"{_SCALA}TraversableSerializerSnapshot": _composite(
        partial(composite.nullable_elements, null=False), 1, _java_class
    ),
    f"{_STREAMING}api.datastream.CoGroupedStreams$UnionSerializerSnapshot": _composite(
        partial(composite.either_of, names=("one", "two")), 2
    ),
    f"{_STREAMING}api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot": _composite(
        composite.buffer_entry, 1
    ),
    snapshot_class(f"{_STREAMING}runtime.streamrecord.StreamElementSerializer"): _composite(
        composite.stream_element, 1
    ),
    f"{_STREAMING}api.operators.TimerSerializerSnapshot": _composite(composite.timer_of, 2),
    **dict.fromkeys(
        (
            f"{_STATE}ttl.TtlStateFactory$TtlSerializerSnapshot",
            f"{_STATE}v2.ttl.TtlStateFactory$TtlSerializerSnapshot",
        ),
        _composite(composite.with_last_access, 2),
    ),
    f"{_STATE}ttl.TtlAwareSerializerSnapshot": ((1,), _perhaps_with_time_to_live),
    f"{_FLINK}formats.avro.typeutils.AvroSerializerSnapshot": ((1, 2, 3), _avro),
    snapshot_class(f"{_SQL}RowDataSerializer"): ((3,), _sql_row),
    snapshot_class(f"{_SQL}LinkedListSerializer"): _composite(
        composite.linked_list_of, 1, _list_has_mask
    ),
    snapshot_class(f"{_SQL}ArrayDataSerializer"): ((3,), _sql_array),
    snapshot_class(f"{_SQL}MapDataSerializer"): ((3,), _sql_map),
    snapshot_class(f"{_SQL}ExternalSerializer"): ((3,), _sql_external),
    snapshot_class(f"{_SQL}RawValueDataSerializer"): _composite(sql.raw_of, 1),
    f"{_SQL}DecimalDataSerializer$DecimalSerializerSnapshot": (_ANY_VERSION, _sql_decimal),
    snapshot_class(f"{_SQL}TimestampDataSerializer"): (_ANY_VERSION, _sql_timestamp),
    f"{_CEP}NFAStateSerializerSnapshot": _composite(composite.matches_of, 3, _has_previous),
    snapshot_class(f"{_CEP}sharedbuffer.NodeId$NodeIdSerializer"): _composite(
        lambda event: composite.option_of(
            composite.struct_of({"event": event, "stage": basic.STRING})
        ),
        1,
    ),
    snapshot_class(f"{_CEP}sharedbuffer.SharedBufferEdge$SharedBufferEdgeSerializer"): _composite(
        lambda target, version: composite.struct_of({"target": target, "version": version}), 2
    ),
    f"{_CEP}sharedbuffer.SharedBufferNodeSerializerSnapshotV2": _composite(
        lambda edge: composite.list_of(composite.lockable_of(edge)), 1
    ),
    f"{_CEP}sharedbuffer.LockableTypeSerializerSnapshot": _composite(composite.lockable_of, 1),
}
