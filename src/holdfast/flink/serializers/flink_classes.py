"""Values in state of Flink's operators and of patterns (CEP), and values of Scala.

    event id   int number, long timestamp
    node       byte 0 none | 1, event id, name of the pattern's stage
    version    int n, n * int
    edge       node, version
    lockable   int number of matches that need it, the value
    matches    int n, n * { name of the stage, node, version, long start [long previous] byte 0 | 1, event id }

Source:
    Flink, IntervalJoinOperator, CoGroupedStreams, StreamElementSerializer; flink-cep, NFAStateSerializer,
    SharedBufferNodeSerializer, Lockable, NodeId, EventId, DeweyNumber (2.3.0); OptionSerializer, TraversableSerializer,
    EnumValueSerializer (flink-scala 1.20).
"""

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.flink.serializers import basic
from holdfast.flink.serializers.composite import list_of, struct_of
from holdfast.flink.serializers.serializer import Serializer

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_MARKER_BYTES, _NUMBERED_BYTES = 28, 12
_KINDS = (
    "record",
    "record",
    "watermark",
    "latency marker",
    "status",
    "attributes",
    "watermark",
)


def buffer_entry(value: Serializer) -> Serializer:
    """`BufferEntrySerializer`, of interval joins: whether it was joined, and the value."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        was_joined = data[position] != 0
        content, position = value.read(data, position + 1)
        return {"value": content, "was_joined": was_joined}, position

    return Serializer(pa.struct([("value", value.type), ("was_joined", pa.bool_())]), read)


def of_either_stream(first: Serializer, second: Serializer) -> Serializer:
    """`UnionSerializer`, of window joins: 1 or 2 for the stream, and its value."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        is_first = data[position] == 1
        content, position = (first if is_first else second).read(data, position + 1)
        return {"one" if is_first else "two": content}, position

    return Serializer(pa.struct([("one", first.type), ("two", second.type)]), read)


def stream_element(value: Serializer) -> Serializer:
    """`StreamElementSerializer`, of pending asynchronous calls: rows, watermarks and other elements."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        tag = data[position]
        if tag >= len(_KINDS):
            message = f"a stream element has the unknown type {tag}"
            raise ValueError(message)
        element: dict[str, Any] = {"kind": _KINDS[tag]}
        position += 1
        if tag in {0, 2}:
            (element["timestamp"],) = _LONG.unpack_from(data, position)
            position += _LONG.size
        if tag <= 1:
            element["value"], position = value.read(data, position)
        elif tag > 2:  # its content is not used
            position += (_MARKER_BYTES, 4, 1, _NUMBERED_BYTES)[tag - 3]
        return element, position

    type = pa.struct([("kind", pa.string()), ("timestamp", pa.int64()), ("value", value.type)])
    return Serializer(type, read)


def option_of(value: Serializer) -> Serializer:
    """`OptionSerializer` of Scala: a flag, and the value."""

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if not data[position]:
            return None, position + 1
        return value.read(data, position + 1)

    return Serializer(value.type, read)


def numbered_enum(names: Mapping[int, str]) -> Serializer:
    """`EnumValueSerializer` of Scala: the number of a name."""

    def read(data: bytes, position: int) -> tuple[str, int]:
        number = _INT.unpack_from(data, position)[0]
        if number not in names:
            message = f"an enum has no value {number}"
            raise ValueError(message)
        return names[number], position + _INT.size

    return Serializer(pa.string(), read, length=_INT.size)


EVENT_ID = struct_of({"id": basic.INT, "timestamp": basic.LONG})
VERSION = list_of(basic.INT)


def node_of(event: Serializer) -> Serializer:
    """`NodeIdSerializer`."""
    return option_of(struct_of({"event": event, "stage": basic.STRING}))


def edge_of(target: Serializer, version: Serializer) -> Serializer:
    """`SharedBufferEdgeSerializer`."""
    return struct_of({"target": target, "version": version})


def lockable_of(element: Serializer) -> Serializer:
    """`LockableTypeSerializer`."""
    return struct_of({"references": basic.INT, "value": element})


def edges_of(edge: Serializer) -> Serializer:
    """`SharedBufferNodeSerializer`."""
    return list_of(lockable_of(edge))


def matches_of(
    version: Serializer, node: Serializer, event: Serializer, *, has_previous: bool
) -> Serializer:
    """`NFAStateSerializer`: incomplete and complete matches."""
    times = {"start": basic.LONG}
    if has_previous:
        times["previous"] = basic.LONG
    match = struct_of(
        {
            "stage": basic.STRING,
            "previous_node": node,
            "version": version,
            **times,
            "start_event": option_of(event),
        }
    )
    return struct_of({"partial": list_of(match), "completed": list_of(match)})
