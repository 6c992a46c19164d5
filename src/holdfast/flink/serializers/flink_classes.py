"""What Flink's own operators keep around values, and values of Scala.

Source:
    Flink, IntervalJoinOperator, CoGroupedStreams, StreamElementSerializer (2.3.0); OptionSerializer,
    TraversableSerializer, EnumValueSerializer (flink-scala 1.20).
"""

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

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


def buffered(value: Serializer) -> Serializer:
    """`BufferEntrySerializer`, of joins by intervals of time: whether it was joined, and the value."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        was_joined = data[position] != 0
        content, position = value.read(data, position + 1)
        return {"value": content, "was_joined": was_joined}, position

    return Serializer(pa.struct([("value", value.type), ("was_joined", pa.bool_())]), read)


def of_either_stream(first: Serializer, second: Serializer) -> Serializer:
    """`UnionSerializer`, of windows that join two streams: 1 or 2, and the value of that stream."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        is_first = data[position] == 1
        content, position = (first if is_first else second).read(data, position + 1)
        return {"one" if is_first else "two": content}, position

    return Serializer(pa.struct([("one", first.type), ("two", second.type)]), read)


def stream_element(value: Serializer) -> Serializer:
    """`StreamElementSerializer`, of what asynchronous calls have not answered yet: rows, and what is between them."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        tag = data[position]
        if tag >= len(_KINDS):
            message = f"an element of a stream is of kind {tag}"
            raise ValueError(message)
        element: dict[str, Any] = {"kind": _KINDS[tag]}
        position += 1
        if tag in {0, 2}:
            (element["timestamp"],) = _LONG.unpack_from(data, position)
            position += _LONG.size
        if tag <= 1:
            element["value"], position = value.read(data, position)
        elif tag > 2:  # nothing that anybody asks for
            position += (_MARKER_BYTES, 4, 1, _NUMBERED_BYTES)[tag - 3]
        return element, position

    type = pa.struct([("kind", pa.string()), ("timestamp", pa.int64()), ("value", value.type)])
    return Serializer(type, read)


def option_of(value: Serializer) -> Serializer:
    """`OptionSerializer` of Scala: whether there is a value, and that."""

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if not data[position]:
            return None, position + 1
        return value.read(data, position + 1)

    return Serializer(value.type, read)


def numbered_enum(names: Mapping[int, str]) -> Serializer:
    """`EnumValueSerializer` of Scala: the number that a name has."""

    def read(data: bytes, position: int) -> tuple[str, int]:
        number = _INT.unpack_from(data, position)[0]
        if number not in names:
            message = f"an enum has no value {number}"
            raise ValueError(message)
        return names[number], position + _INT.size

    return Serializer(pa.string(), read, length=_INT.size)
