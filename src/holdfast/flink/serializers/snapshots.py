"""Snapshots of Flink's serializers in savepoints, and the serializers here that read their values.

    snapshot  utf class of the TypeSerializerSnapshot, int version, content defined by that class

Only the class defines the length of its content. After an unknown class nothing can be read, unless the length is
stored elsewhere, as for fields of POJOs. No class is loaded: names are compared with the tables below.

Source:
    Flink, TypeSerializerSnapshot, CompositeTypeSerializerSnapshot, PojoSerializerSnapshotData, LinkedOptionalMapSerializer
    (2.3.0).
"""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import CheckpointCorruptedError
from holdfast.flink.binary import DataInput, corrupted_error, read_java_object
from holdfast.flink.serializers import basic, composite, flink_classes, sql
from holdfast.flink.serializers.avro import avro_of
from holdfast.flink.serializers.kryo import kryo_of
from holdfast.flink.serializers.kryo_2 import Kryo2Graph
from holdfast.flink.serializers.kryo_5 import Kryo5Graph
from holdfast.flink.serializers.logical_types import element_type, logical_type
from holdfast.flink.serializers.serializer import Serializer, reading, unreadable
from holdfast.flink.serializers.texts import read_string

MAX_NESTING = 32

_BY_KRYO_ITSELF = bytes(4)
"""The end of a registration without a custom serializer."""
_COMPOSITE_MAGIC, _NESTED_MAGIC, _MAP_MAGIC = 911108, 1333245, 0x4F2C69A3D70

_BASE = "org.apache.flink.api.common.typeutils.base."
_SQL = "org.apache.flink.table.runtime.typeutils."
_RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
_SCALA = "org.apache.flink.api.scala.typeutils."
_STREAMING = "org.apache.flink.streaming."
_CEP = "org.apache.flink.cep.nfa."


class UnknownSnapshotError(Exception):
    """A snapshot of an unknown class, whose end is therefore unknown.

    Attributes:
        java_class: The class.
    """

    def __init__(self, java_class: str) -> None:
        super().__init__(java_class)
        self.java_class = java_class


def _simple() -> dict[str, Serializer]:
    """Return the serializers that are identified by the class of their snapshot."""
    primitives = {
        "Boolean": basic.BOOLEAN,
        "Byte": basic.BYTE,
        "Short": basic.SHORT,
        "Int": basic.INT,
        "Long": basic.LONG,
        "Float": basic.FLOAT,
        "Double": basic.DOUBLE,
        "Char": basic.CHAR,
    }
    base = {
        **primitives,
        **{f"{name}Value": kind for name, kind in primitives.items()},
        "String": basic.STRING,
        "StringValue": basic.STRING_VALUE,
        "NullValue": basic.NULL_VALUE,
        "BigInt": basic.BIG_INTEGER,
        "BigDec": basic.BIG_DECIMAL,
        "Date": basic.DATE,
        "SqlDate": basic.DATE,
        "SqlTime": basic.DATE,
        "SqlTimestamp": basic.SQL_TIMESTAMP,
        "Instant": basic.INSTANT,
        "LocalDate": basic.LOCAL_DATE,
        "LocalTime": basic.LOCAL_TIME,
        "LocalDateTime": basic.LOCAL_DATE_TIME,
        "Void": basic.VOID,
    }
    arrays = {
        **{f"{name}Primitive": basic.array_of(kind) for name, kind in primitives.items()},
        "BytePrimitive": basic.BYTES,
        "String": basic.array_of(basic.STRING),
    }
    windows = f"{_STREAMING}api.windowing.windows."
    table_windows = "org.apache.flink.table.runtime.operators.window."
    void = "org.apache.flink.runtime.state.VoidNamespaceSerializer"
    wrapper = "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer"
    return {
        **{
            f"{_BASE}{name}Serializer${name}SerializerSnapshot": kind for name, kind in base.items()
        },
        **{
            f"{_BASE}array.{name}ArraySerializer${name}ArraySerializerSnapshot": kind
            for name, kind in arrays.items()
        },
        f"{void}$VoidNamespaceSerializerSnapshot": basic.VOID,
        f"{wrapper}$ByteArrayWrapperSerializerSnapshot": basic.BYTES,
        "org.apache.flink.runtime.state.JavaSerializer$JavaSerializerSnapshot": unreadable(
            "java.io.Serializable (by Java)"
        ),
        f"{_SQL}StringDataSerializer$StringDataSerializerSnapshot": sql.STRING_DATA,
        "org.apache.flink.table.dataview.NullSerializer$NullSerializerSnapshot": basic.VOID,
        f"{table_windows}TimeWindow$Serializer$TimeWindowSerializerSnapshot": basic.TIME_WINDOW,
        f"{table_windows}CountWindow$Serializer$CountWindowSerializerSnapshot": basic.LONG,
        f"{table_windows}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot": basic.VOID,
        f"{_RUNTIME}Tuple0SerializerSnapshot": basic.VOID,
        f"{_SCALA}UnitSerializer$UnitSerializerSnapshot": basic.VOID,
        f"{windows}TimeWindow$Serializer$TimeWindowSerializerSnapshot": basic.TIME_WINDOW,
        f"{windows}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot": basic.VOID,
        f"{_CEP}DeweyNumber$DeweyNumberSerializer$DeweyNumberSerializerSnapshot": flink_classes.VERSION,
        f"{_CEP}sharedbuffer.EventId$EventIdSerializer$EventIdSerializerSnapshot": flink_classes.EVENT_ID,
    }


_SIMPLE = _simple()


def read_snapshot(source: DataInput, depth: int = 0) -> Serializer:
    """Read a snapshot. Raises `UnknownSnapshotError` and `CheckpointCorruptedError`."""
    if depth > MAX_NESTING:
        raise corrupted_error("serializers are nested too deeply")
    java_class, version = source.utf(), source.read_int()
    if (simple := _SIMPLE.get(java_class)) is not None:
        if version == 2:
            source.utf()  # the serializer's name, in Flink 1.7
        elif version != 3:
            raise UnknownSnapshotError(java_class)
        return simple
    if (read_other := _OTHERS.get(java_class)) is None:
        raise UnknownSnapshotError(java_class)
    return read_other(source, java_class, version, depth)


def _check_version(java_class: str, version: int, *known: int) -> None:
    if version not in known:
        raise UnknownSnapshotError(java_class)


_ReadSnapshot = Callable[[DataInput, str, int, int], Serializer]


def _composite(
    make: Callable[..., Serializer],
    count: int = -1,
    outer: Callable[[DataInput, int], dict[str, object]] = lambda _source, _version: {},
) -> _ReadSnapshot:
    """Return a reader of a composite snapshot.

    Args:
        make: Makes the serializer from the parts and the result of `outer`.
        count: Number of parts, or -1 for any number.
        outer: Reads the data before the parts, by version.
    """

    def read(source: DataInput, java_class: str, version: int, depth: int) -> Serializer:
        _check_version(java_class, version, 1, 2, 3)
        if version == 3:
            source.expect(_COMPOSITE_MAGIC, "a composite serializer")
            version = source.read_int()
        arguments = outer(source, version)
        source.expect(_NESTED_MAGIC, "the parts of a serializer")
        source.expect(1, "the parts of a serializer")
        parts = [read_snapshot(source, depth + 1) for _ in range(source.count(6))]
        if count not in {-1, len(parts)}:
            message = f"{java_class} has {len(parts)} parts instead of {count}"
            raise corrupted_error(message)
        return composite.opaque_if_a_part_is(lambda *parts: make(*parts, **arguments), *parts)

    return read


def _java_class(source: DataInput, _version: int) -> dict[str, object]:
    source.utf()
    return {}


def _row_has_kind(source: DataInput, version: int) -> dict[str, object]:
    if version >= 4:
        return {"has_kind": source.byte() != 0}
    return {"has_kind": version == 3}


def _list_has_mask(source: DataInput, version: int) -> dict[str, object]:
    return {"has_mask": source.byte() != 0 if version >= 3 else version == 2}


def _has_previous(source: DataInput, version: int) -> dict[str, object]:
    return {"has_previous": version >= 2 and source.byte() != 0}


def _padding(source: DataInput, _version: int) -> dict[str, object]:
    padding = source.read_int()
    if not 0 <= padding <= 1 << 16:
        message = f"a null has {padding} bytes"
        raise corrupted_error(message)
    return {"padding": padding}


def _pojo(source: DataInput, java_class: str, version: int, depth: int) -> Serializer:
    _check_version(java_class, version, 2)
    name = source.utf()
    fields = _read_framed(source, depth)
    registered = [
        composite.named_class(key, pojo) for key, pojo in _read_framed(source, depth).items()
    ]
    others = {
        key: composite.named_class(key, pojo) for key, pojo in _read_framed(source, depth).items()
    }
    return composite.pojo_of(composite.PojoClass(name, fields), registered, others)


def _read_framed(source: DataInput, depth: int) -> dict[str, Serializer]:
    """Read a map of names to snapshots with stored lengths, which allow skipping unknown ones."""
    serializers: dict[str, Serializer] = {}
    for name in _map_keys(source):
        serializers[name] = unreadable(f"the class of {name}")
        if source.byte():
            length = source.count()
            start = source.position
            serializers[name] = snapshot_in(source.part(start, start + length), depth + 1)
            source.position = start + length
    return serializers


def _map_keys(source: DataInput) -> Iterator[str]:
    """Read a map with optional lengths of its keys; the source is at the value of each key."""
    if source.read_long() != _MAP_MAGIC:
        raise corrupted_error("a map of serializers has an unexpected start")
    for _ in range(source.count(4)):
        key = source.utf()
        if source.byte():
            source.take(source.count())
        yield key


def snapshot_in(source: DataInput, depth: int = 0) -> Serializer:
    """Read a snapshot whose end is known, so that it may be unreadable. Raises `CheckpointCorruptedError`."""
    try:
        return read_snapshot(source, depth)
    except UnknownSnapshotError as unknown:
        return unreadable(unknown.java_class)


def _kryo(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    _check_version(java_class, version, 2)
    name = source.utf()
    registered: list[str] = []
    foreign: set[str] = set()
    for part in range(3):  # classes registered with Kryo, and serializers of others
        for known in _map_keys(source):
            has_own = part > 0
            if source.byte():
                registration = source.take(source.count())
                has_own = has_own or not registration.endswith(_BY_KRYO_ITSELF)
            if part == 0:
                registered.append(known)
            if has_own:
                foreign.add(known)
    graph = Kryo2Graph if source.is_of_flink_1 else Kryo5Graph
    return kryo_of(name, graph, registered, frozenset(foreign))


def _enum(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    _check_version(java_class, version, 2, 3)
    source.utf()
    return composite.enum_of([source.utf() for _ in range(source.count(2))])


def _scala_enum(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    _check_version(java_class, version, 3)
    source.utf()
    pairs = [(source.utf(), source.read_int()) for _ in range(source.count(6))]
    return flink_classes.numbered_enum({number: name for name, number in pairs})


def _perhaps_with_time_to_live(
    source: DataInput, java_class: str, version: int, depth: int
) -> Serializer:
    _check_version(java_class, version, 1)
    source.byte()
    return read_snapshot(source, depth + 1)


def _avro(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    if version == 1:
        schema = source.utf()
        return avro_of("a record", schema)
    if version == 2:
        return avro_of(source.utf(), source.utf())
    _check_version(java_class, version, 3)
    texts = []
    for _ in range(2):
        with reading("an Avro schema"):
            text, source.position = read_string(source.data, source.position)
        texts.append(text or "")
    return avro_of(*texts)


def _sql_row(source: DataInput, java_class: str, version: int, depth: int) -> Serializer:
    _check_version(java_class, version, 3)
    count = source.count()
    start = source.position
    try:
        types = [logical_type(read_java_object(source)) for _ in range(count)]
    except CheckpointCorruptedError:  # a class of the job may use a format that only it can read
        types = [None] * count
        source.position = start
    _pass_objects(source, java_class, count)
    parts = [read_snapshot(source, depth + 1) for _ in range(count)]
    return sql.row_of(
        *(type or sql.as_field(part) for type, part in zip(types, parts, strict=True))
    )


def _sql_array(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    element, _ = _objects(source, java_class, version, 2)
    return sql.array_of(element_type(element))


def _sql_map(source: DataInput, java_class: str, version: int, _depth: int) -> Serializer:
    key, value, _, _ = _objects(source, java_class, version, 4)
    return sql.map_of(element_type(key), element_type(value))


def _objects(source: DataInput, java_class: str, version: int, count: int) -> list[Any]:
    """Read the types of parts and their serializers as Java objects."""
    _check_version(java_class, version, 3)
    try:
        return [read_java_object(source) for _ in range(count)]
    except (
        CheckpointCorruptedError
    ) as error:  # a class of the job may use a format that only it can read
        raise UnknownSnapshotError(java_class) from error


def _sql_external(source: DataInput, java_class: str, version: int, depth: int) -> Serializer:
    """Read the snapshot of external values stored in the table's internal format, such as those of COUNT(DISTINCT)."""
    _check_version(java_class, version, 3)
    source.expect(_COMPOSITE_MAGIC, "a composite serializer")
    source.read_int()
    _pass_objects(source, java_class, 1)  # their type
    return read_snapshot(source, depth + 1)


def _pass_objects(source: DataInput, java_class: str, count: int) -> None:
    """Skip Java objects, up to the snapshots of `count` parts."""
    parts = _NESTED_MAGIC.to_bytes(4, "big") + (1).to_bytes(4, "big") + count.to_bytes(4, "big")
    start = source.data.find(parts, source.position, source.end)
    if start < 0:
        raise UnknownSnapshotError(java_class)
    source.position = start + len(parts)


def _sql_decimal(source: DataInput, _class: str, _version: int, _depth: int) -> Serializer:
    return _of_numbers(sql.decimal_of, source.read_int(), source.read_int())


def _sql_timestamp(source: DataInput, _class: str, _version: int, _depth: int) -> Serializer:
    return _of_numbers(sql.timestamp_of, source.read_int())


def _of_numbers(make: Callable[..., Serializer], *numbers: int) -> Serializer:
    try:
        return make(*numbers)
    except ValueError as error:
        raise corrupted_error(str(error)) from error


_OTHERS: dict[str, _ReadSnapshot] = {
    f"{_BASE}ListSerializerSnapshot": _composite(composite.list_of, 1),
    "org.apache.flink.runtime.state.ArrayListSerializerSnapshot": _composite(composite.list_of, 1),
    f"{_BASE}MapSerializerSnapshot": _composite(composite.map_of, 2),
    f"{_BASE}SetSerializerSnapshot": _composite(
        lambda element: composite.nullable_elements(element, null=1), 1
    ),
    f"{_BASE}GenericArraySerializerSnapshot": _composite(
        lambda element: composite.nullable_elements(element, null=0), 1, _java_class
    ),
    f"{_BASE}EnumSerializer$EnumSerializerSnapshot": _enum,
    f"{_RUNTIME}TupleSerializerSnapshot": _composite(composite.tuple_of, -1, _java_class),
    f"{_RUNTIME}RowSerializer$RowSerializerSnapshot": _composite(
        composite.row_of, -1, _row_has_kind
    ),
    f"{_RUNTIME}JavaEitherSerializerSnapshot": _composite(composite.either_of, 2),
    f"{_RUNTIME}NullableSerializer$NullableSerializerSnapshot": _composite(
        composite.nullable, 1, _padding
    ),
    f"{_RUNTIME}PojoSerializerSnapshot": _pojo,
    f"{_RUNTIME}kryo.KryoSerializerSnapshot": _kryo,
    **dict.fromkeys(
        (
            f"{_SCALA}ScalaCaseClassSerializerSnapshot",
            f"{_SCALA}Tuple2CaseClassSerializerSnapshot",
        ),
        _composite(composite.case_class_of, -1, _java_class),
    ),
    f"{_SCALA}ScalaEitherSerializerSnapshot": _composite(composite.either_of, 2),
    f"{_SCALA}ScalaEnumSerializerSnapshot": _scala_enum,
    f"{_SCALA}ScalaOptionSerializerSnapshot": _composite(flink_classes.option_of, 1),
    f"{_SCALA}TraversableSerializerSnapshot": _composite(
        lambda element: composite.nullable_elements(element, null=0), 1, _java_class
    ),
    f"{_STREAMING}api.datastream.CoGroupedStreams$UnionSerializerSnapshot": _composite(
        flink_classes.of_either_stream, 2
    ),
    f"{_STREAMING}api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot": _composite(
        flink_classes.buffer_entry, 1
    ),
    f"{_STREAMING}runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot": (
        _composite(flink_classes.stream_element, 1)
    ),
    **dict.fromkeys(
        (
            "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
            "org.apache.flink.runtime.state.v2.ttl.TtlStateFactory$TtlSerializerSnapshot",
        ),
        _composite(composite.with_last_access, 2),
    ),
    "org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot": _perhaps_with_time_to_live,
    "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot": _avro,
    f"{_SQL}RowDataSerializer$RowDataSerializerSnapshot": _sql_row,
    f"{_SQL}LinkedListSerializer$LinkedListSerializerSnapshot": _composite(
        composite.linked_list_of, 1, _list_has_mask
    ),
    f"{_SQL}ArrayDataSerializer$ArrayDataSerializerSnapshot": _sql_array,
    f"{_SQL}MapDataSerializer$MapDataSerializerSnapshot": _sql_map,
    f"{_SQL}ExternalSerializer$ExternalSerializerSnapshot": _sql_external,
    f"{_SQL}RawValueDataSerializer$RawValueDataSerializerSnapshot": _composite(sql.raw_of, 1),
    f"{_SQL}DecimalDataSerializer$DecimalSerializerSnapshot": _sql_decimal,
    f"{_SQL}TimestampDataSerializer$TimestampDataSerializerSnapshot": _sql_timestamp,
    f"{_CEP}NFAStateSerializerSnapshot": _composite(flink_classes.matches_of, 3, _has_previous),
    f"{_CEP}sharedbuffer.NodeId$NodeIdSerializer$NodeIdSerializerSnapshot": _composite(
        flink_classes.node_of, 1
    ),
    f"{_CEP}sharedbuffer.SharedBufferEdge$SharedBufferEdgeSerializer$SharedBufferEdgeSerializerSnapshot": (
        _composite(flink_classes.edge_of, 2)
    ),
    f"{_CEP}sharedbuffer.SharedBufferNodeSerializerSnapshotV2": _composite(
        flink_classes.edges_of, 1
    ),
    f"{_CEP}sharedbuffer.LockableTypeSerializerSnapshot": _composite(flink_classes.lockable_of, 1),
    "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot": _composite(
        composite.timer_of, 2
    ),
}
