"""Composite values: lists, maps, tuples, rows, POJOs, and values of Flink's operators, of patterns (CEP) and of Scala.

    event id  int number, long timestamp
    node      byte 0 none | 1, event id, name of the pattern's stage
    version   int n, n * int
    matches   int n, n * { name of the stage, node, version, long start [long previous] byte 0 | 1, event id }

Source:
    Flink, org.apache.flink.api.common.typeutils.base, org.apache.flink.api.java.typeutils.runtime,
    org.apache.flink.runtime.state.ttl, IntervalJoinOperator, StreamElementSerializer; flink-cep, NFAStateSerializer
    (2.3.0); OptionSerializer, EnumValueSerializer (flink-scala 1.20).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flink.binary import modified_utf8
from holdfast.flink.serializers import hash_codes
from holdfast.flink.serializers.basic import BOOLEAN, INT, LONG, STRING, list_reader
from holdfast.flink.serializers.serializer import (
    Packed,
    Read,
    Rows,
    Serializer,
    converting_reader,
    not_readable,
    null_key,
    read_bytes,
    read_count,
    unreadable,
)

_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_SIGN = 1 << 63
_KINDS = ("+I", "-U", "+U", "-D")
_NULL_POJO, _IS_POJO, _SUBCLASS, _REGISTERED_SUBCLASS = 1, 2, 4, 8


def opaque_if_a_part_is(make: Callable[..., Serializer], *parts: Serializer) -> Serializer:
    """Make a serializer from parts; it is unreadable if one of the parts is."""
    for part in parts:
        if part.unreadable:
            return Serializer(pa.binary(), part.read, parts=parts, unreadable=part.unreadable)
    return make(*parts)


def flagged_reader(read: Read, *, null: bool, padding: int = 0) -> Read:
    """Return a reader of a flag, and of a value or, if the flag is `null`, of padding."""

    def read_flagged(data: bytes, position: int) -> tuple[Any, int]:
        if (data[position] != 0) == null:
            return None, read_bytes(data, position + 1, padding)[1]
        return read(data, position + 1)

    return read_flagged


def list_of(element: Serializer) -> Serializer:
    return Serializer(pa.list_(element.type), list_reader(element.read), parts=(element,))


def nullable_elements(element: Serializer, *, null: bool) -> Serializer:
    """Make a serializer of elements with a flag before each, whose value for null is `null`: true in sets."""
    return Serializer(pa.list_(element.type), list_reader(flagged_reader(element.read, null=null)))


def linked_list_of(element: Serializer, *, has_mask: bool) -> Serializer:
    """`LinkedListSerializer` of the Table API: a count, a null bit for each element, the other elements."""

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        (count,) = _INT.unpack_from(data, position)
        mask, position = read_bytes(data, position + 4, (count + 7) // 8)
        values = []
        for number in range(count):
            value = None
            if not mask[number >> 3] & 0x80 >> (number & 7):
                value, position = element.read(data, position)
            values.append(value)
        return values, position

    return Serializer(pa.list_(element.type), read if has_mask else list_reader(element.read))


def map_of(key: Serializer, value: Serializer) -> Serializer:
    read_key, read_value = key.read, value.read

    def read(data: bytes, position: int) -> tuple[list[tuple[Any, Any]], int]:
        count, position = read_count(data, position)
        pairs = []
        for _ in range(count):
            name, position = read_key(data, position)
            if name is None:
                raise null_key()
            content = None
            is_null = data[position]
            position += 1
            if not is_null:
                content, position = read_value(data, position)
            pairs.append((name, content))
        return pairs, position

    return Serializer(pa.map_(key.type, value.type), read, parts=(key, value))


def tuple_of(*fields: Serializer) -> Serializer:
    """`TupleSerializer`: the fields in order."""
    fields_in_order = case_class_of(*fields)
    hashes = [field.hash_codes for field in fields if field.hash_codes is not None]
    if fields_in_order.unreadable or len(hashes) < len(fields):
        return fields_in_order
    return replace(fields_in_order, hash_codes=hash_codes.of_tuples(hashes))


def case_class_of(*fields: Serializer) -> Serializer:
    """The serializer of Scala's case classes, which are tuples with another hash code."""
    return struct_of({f"f{number}": field for number, field in enumerate(fields)})


def struct_of(fields: Mapping[str, Serializer]) -> Serializer:
    if not fields:  # a list could have any number of them in zero bytes
        return unreadable("a tuple without fields")
    type = pa.struct([(name, field.type) for name, field in fields.items()])
    reads = {name: field.read for name, field in fields.items()}
    return _of_one_width(Serializer(type, _fields_reader(reads)), list(fields.values()))


def _fields_reader(reads: Mapping[str, Read]) -> Callable[[bytes, int], tuple[dict[str, Any], int]]:
    fields = tuple(reads.items())

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, read_field in fields:
            values[name], position = read_field(data, position)
        return values, position

    return read


def _of_one_width(whole: Serializer, parts: Sequence[Serializer]) -> Serializer:
    """Return the serializer of structs with their width, if all parts have a fixed width."""
    columns = [(part.width, part.column) for part in parts if part.column is not None]
    if len(columns) < len(parts):
        return whole

    def column(rows: Rows) -> pa.Array:
        arrays, start = [], 0
        for width, part in columns:
            arrays.append(part(rows[:, start : start + width]))
            start += width
        return pa.StructArray.from_arrays(arrays, fields=list(whole.type))

    return replace(whole, width=sum(width for width, _ in columns), column=column)


def row_of(*fields: Serializer, has_kind: bool) -> Serializer:
    """`RowSerializer`: bits for its change type and for null fields, then the other fields."""
    skipped = 2 if has_kind else 0
    size = (len(fields) + skipped + 7) // 8
    if not size:
        return unreadable("a row without fields")
    reads = [(f"f{number}", field.read) for number, field in enumerate(fields)]
    names = [("kind", pa.string())] if has_kind else []
    type = pa.struct(names + [(f"f{number}", field.type) for number, field in enumerate(fields)])

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        mask, position = read_bytes(data, position, size)
        bits = f"{int.from_bytes(mask, 'big'):0{8 * size}b}"
        values: dict[str, Any] = {}
        if has_kind:
            values["kind"] = _KINDS[int(bits[1::-1], 2)]
        for (name, read_field), bit in zip(reads, bits[skipped:], strict=False):
            values[name] = None
            if bit == "0":
                values[name], position = read_field(data, position)
        return values, position

    return Serializer(type, read)


def either_of(
    first: Serializer, second: Serializer, names: tuple[str, str] = ("left", "right")
) -> Serializer:
    """`EitherSerializer`, and `UnionSerializer` of window joins: 1 for the first type, and a value of the type."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        is_first = data[position] == 1
        value, position = (first if is_first else second).read(data, position + 1)
        return {names[not is_first]: value}, position

    return Serializer(pa.struct(list(zip(names, (first.type, second.type), strict=True))), read)


def nullable(inner: Serializer, *, padding: int) -> Serializer:
    """`NullableSerializer`: a null flag, then padding or the value."""
    read = flagged_reader(inner.read, null=True, padding=padding)
    return Serializer(inner.type, read, length=padding + 1 if padding else -1)


def option_of(value: Serializer) -> Serializer:
    """`OptionSerializer` of Scala: a flag, and the value."""
    return Serializer(value.type, flagged_reader(value.read, null=False))


def with_last_access(_time: Serializer, value: Serializer) -> Serializer:
    """Values with a time to live: the time of the last use in milliseconds, and the value."""
    read_value = value.read

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        last_access = _LONG.unpack_from(data, position)[0]
        content, position = read_value(data, position + 8)
        return {"value": content, "last_access": last_access}, position

    def column(rows: Rows) -> pa.Array:
        assert value.column is not None
        return with_times(value.column(rows[:, 8:]), rows[:, :8])

    def packed_column(packed: Packed) -> pa.Array | None:
        assert value.packed_column is not None
        parts = packed.split(8, 0)
        values = None if parts is None else value.packed_column(parts[1])
        return None if parts is None or values is None else with_times(values, parts[0])

    def with_times(values: pa.Array, times: Rows) -> pa.Array:
        assert LONG.column is not None
        last_access = LONG.column(times).view(pa.timestamp("ms", "UTC"))
        return pa.StructArray.from_arrays([values, last_access], fields=list(type))

    type = pa.struct([("value", value.type), ("last_access", pa.timestamp("ms", "UTC"))])
    return Serializer(
        type,
        read,
        width=8 + value.width if value.column else 0,
        column=column if value.column else None,
        packed_column=packed_column if value.packed_column else None,
        has_last_access=True,
    )


def timer_of(key: Serializer, namespace: Serializer) -> Serializer:
    """`TimerSerializer`: its time in a form that sorts bytewise, its key and its namespace."""
    timer = struct_of({"timestamp": _SORTED_TIME, "key": key, "namespace": namespace})
    return replace(timer, parts=(key, namespace))


def sorted_times(rows: Rows) -> pa.Array:
    """Decode times in a form that sorts bytewise to a column."""
    times = np.ascontiguousarray(rows).view(">u8")[:, 0].astype(np.uint64)
    return pa.array((times ^ np.uint64(_SIGN)).view(np.int64))


_SORTED_TIME = Serializer(
    pa.int64(), converting_reader(LONG.read, lambda time: time ^ -_SIGN), 8, 8, sorted_times
)


def enum_of(names: Mapping[int, str]) -> Serializer:
    """`EnumSerializer`, and `EnumValueSerializer` of Scala: the number of a name."""

    def name(number: int) -> str:
        if number not in names:
            message = f"an enum has no value {number}"
            raise ValueError(message)
        return names[number]

    return Serializer(pa.string(), converting_reader(INT.read, name), length=4)


def pojo_of(
    java_class: str,
    own: Mapping[str, Serializer],
    registered: Sequence[Serializer],
    others: Mapping[str, Serializer],
) -> Serializer:
    """`PojoSerializer`: a byte of flags, then the fields, or a subclass and the output of its serializer.

    Args:
        java_class: The declared class.
        own: Its fields in order.
        registered: Subclasses with a number.
        others: Subclasses without a number, by name.
    """
    for field in own.values():
        if field.unreadable:
            return unreadable(field.unreadable)
    read_fields = _fields_reader(
        {name: flagged_reader(field.read, null=True) for name, field in own.items()}
    )
    has_subclasses = bool(registered or others)

    def read(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
        flags = data[position]
        position += 1
        if flags & _NULL_POJO:
            return None, position
        if flags & _REGISTERED_SUBCLASS:
            return registered[data[position]].read(data, position + 1)
        if flags & _SUBCLASS:
            subclass, position = _class_name(data, position)
            if subclass not in others:
                raise not_readable(f"{subclass}, a subclass of {java_class} that isn't registered,")
            return others[subclass].read(data, position)
        if not flags & _IS_POJO:
            message = f"a POJO has the flags {flags}"
            raise ValueError(message)
        values, position = read_fields(data, position)
        return {"class": java_class, **values} if has_subclasses else values, position

    fields = {name: field.type for name, field in own.items()}
    type = _type_with_subclasses(fields, [*registered, *others.values()])
    return Serializer(type, read)


def _type_with_subclasses(
    own: Mapping[str, pa.DataType], subclasses: Sequence[Serializer]
) -> pa.DataType:
    fields: dict[str, pa.DataType] = {"class": pa.string(), **own} if subclasses else dict(own)
    for subclass in subclasses:
        if pa.types.is_struct(subclass.type):
            fields |= {each.name: each.type for each in subclass.type if each.name not in fields}
    return pa.struct(list(fields.items()))


def _class_name(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, position)
    name, position = read_bytes(data, position + 2, length)
    return modified_utf8(name), position


def named_class(name: str, pojo: Serializer) -> Serializer:
    """Return the serializer of a subclass, whose values include the name of the class."""
    if pojo.unreadable or not pa.types.is_struct(pojo.type):
        return pojo
    fields = [field for field in pojo.type if field.name != "class"]
    read = converting_reader(pojo.read, lambda values: {"class": name, **values})
    return Serializer(pa.struct([pa.field("class", pa.string()), *fields]), read)


def buffer_entry(value: Serializer) -> Serializer:
    """`BufferEntrySerializer`, of interval joins: whether it was joined, and the value."""
    entry = struct_of({"was_joined": BOOLEAN, "value": value})
    type = pa.struct([("value", value.type), ("was_joined", pa.bool_())])
    return Serializer(type, entry.read)


_ELEMENTS = (
    ("record", True, True, 0),
    ("record", False, True, 0),
    ("watermark", True, False, 0),
    ("latency marker", False, False, 28),
    ("status", False, False, 4),
    ("attributes", False, False, 1),
    ("watermark", False, False, 12),
)
"""Elements of streams by tag: whether they have a timestamp, whether a value, and the bytes of unused content."""


def stream_element(value: Serializer) -> Serializer:
    """`StreamElementSerializer`, of pending asynchronous calls: rows, watermarks and other elements."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        tag = data[position]
        if tag >= len(_ELEMENTS):
            message = f"a stream element has the unknown type {tag}"
            raise ValueError(message)
        kind, has_timestamp, has_value, unused = _ELEMENTS[tag]
        element: dict[str, Any] = {"kind": kind}
        position += 1
        if has_timestamp:
            element["timestamp"], position = LONG.read(data, position)
        if has_value:
            element["value"], position = value.read(data, position)
        return element, position + unused

    type = pa.struct([("kind", pa.string()), ("timestamp", pa.int64()), ("value", value.type)])
    return Serializer(type, read)


def lockable_of(element: Serializer) -> Serializer:
    """`LockableTypeSerializer`: the number of matches that need a value, and the value."""
    return struct_of({"references": INT, "value": element})


def matches_of(
    version: Serializer, node: Serializer, event: Serializer, *, has_previous: bool
) -> Serializer:
    """`NFAStateSerializer`: incomplete and complete matches."""
    times = {"start": LONG, "previous": LONG} if has_previous else {"start": LONG}
    node_and_version = {"stage": STRING, "previous_node": node, "version": version}
    match = struct_of({**node_and_version, **times, "start_event": option_of(event)})
    return struct_of({"partial": list_of(match), "completed": list_of(match)})
