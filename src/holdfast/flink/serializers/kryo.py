"""Collections of the JDK as Kryo 2.24 writes them, in Flink 1: a POJO's field of type `List` is one of them there.

    value    varint 0 null | 1, varint number, [name of the class if the number is new] | n + 2 a registered class;
             [varint 1 a new object | n + 2 one that was there before]; its content
    content  of a collection: varint size, values; of a map: varint size, pairs of values

What is in them the savepoint doesn't say before, so that they are read as JSON. No class is loaded: names are compared
with those below, and any other can't be read.

Source:
    Kryo 2.24, DefaultClassResolver, MapReferenceResolver, Output.writeString, CollectionSerializer, MapSerializer.
"""

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.backends.keys import java_hash
from holdfast.flink.serializers.serializer import Serializer, not_readable, sliced, unreadable

MOST_NESTED = 32
_MOST_REPEATED = 1 << 24
"""Bytes of what is referred to: a few bytes could stand for any number of others."""

_COLLECTIONS = {
    "java.util.ArrayDeque",
    "java.util.ArrayList",
    "java.util.HashSet",
    "java.util.LinkedHashSet",
    "java.util.LinkedList",
    "java.util.Stack",
    "java.util.Vector",
}
_SORTED_COLLECTIONS = {"java.util.TreeSet"}
_MAPS = {"java.util.HashMap", "java.util.Hashtable", "java.util.LinkedHashMap"}
_SORTED_MAPS = {"java.util.TreeMap"}
_EMPTY: dict[str, Any] = {
    "java.util.Collections$EmptyList": [],
    "java.util.Collections$EmptyMap": {},
    "java.util.Collections$EmptySet": [],
}
_DECLARED = {
    *_COLLECTIONS,
    *_SORTED_COLLECTIONS,
    *_MAPS,
    *_SORTED_MAPS,
    "java.util.AbstractCollection",
    "java.util.AbstractList",
    "java.util.AbstractMap",
    "java.util.AbstractSet",
    "java.util.Collection",
    "java.util.Deque",
    "java.util.List",
    "java.util.Map",
    "java.util.Queue",
    "java.util.Set",
    "java.util.SortedMap",
    "java.util.SortedSet",
}
"""What types can be declared as whose values may be read."""


TOPIC_PARTITION = pa.struct([("topic", pa.string()), ("partition", pa.int32())])
"""As what a partition of Kafka is read, of which the consumer before `KafkaSource` keeps the offset."""

_KAFKA_PARTITION = "org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition"


def kryo_of(java_class: str, *, is_of_flink_1: bool) -> Serializer:
    """The serializer of a type that Flink leaves to Kryo."""
    if is_of_flink_1 and java_class == _KAFKA_PARTITION:
        return Serializer(TOPIC_PARTITION, _read_topic_partition)
    if not is_of_flink_1 or java_class not in _DECLARED:
        return unreadable(f"{java_class} (by Kryo)")

    def read(data: bytes, position: int) -> tuple[str | None, int]:
        graph = _Graph(data, position)
        value = graph.value(0)
        if value is None:
            return None, graph.position
        return json.dumps(value, ensure_ascii=False), graph.position

    return Serializer(pa.string(), read)


def _read_topic_partition(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
    """Read a partition of Kafka: its hash code, its number and its topic, in the order of the fields' names."""
    graph = _Graph(data, position)
    kind = graph.varint()
    if kind == 0:
        return None, graph.position
    if kind == _BY_NAME:
        graph.class_name()
    is_new = graph.varint() == 1
    code, number = graph.integer(), graph.integer()
    is_new = is_new and graph.varint() == 1
    topic = graph.text()
    # The hash code says whether it is what it seems to be, whatever number Kryo has for its class.
    if not is_new or topic is None or code != _hash_code(topic, number):
        message = "a partition of Kafka has another hash code than its topic and number"
        raise ValueError(message)
    return {"topic": topic, "partition": number}, graph.position


def _hash_code(topic: str, partition: int) -> int:
    code = (31 * java_hash(topic) + partition) & 0xFFFF_FFFF
    return code - (code >> 31 << 32)


class _Graph:
    """A value and all that is in it, with what Kryo remembers meanwhile."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position
        self._names: list[str] = []
        self._objects: list[tuple[Any, int]] = []
        self._repeated = 0

    def value(self, depth: int) -> Any:
        """Read a value as something that JSON has."""
        if depth > MOST_NESTED:
            message = "collections stand in each other without end"
            raise ValueError(message)
        kind = self.varint()
        if kind == 0:
            return None
        if kind in _NUMBERS:  # they are never referred to
            return _NUMBERS[kind](self)
        if kind not in {_BY_NAME, _STRING}:
            raise not_readable(f"the class that Kryo knows as number {kind - 2}")
        java_class = self.class_name() if kind == _BY_NAME else ""
        reference = self.varint()
        if reference != 1:
            return self._before(reference - 2)
        number = len(self._objects)
        self._objects.append((_UNFINISHED, 0))
        start = self.position - self._repeated
        value = self._content(java_class, depth) if java_class else self.text()
        self._objects[number] = value, self.position - start + self._repeated
        return value

    def integer(self) -> int:
        """Read a number of which few bytes are written if it is near to 0."""
        zigzag = self.varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def fixed(self, form: struct.Struct) -> Any:
        """Read a number of a fixed width."""
        (value,) = form.unpack_from(self._data, self.position)
        self.position += form.size
        # JSON has no other.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def character(self) -> str:
        """Read a character."""
        unit, self.position = sliced(self._data, self.position, 2)
        return unit.decode("utf-16-be")

    def class_name(self) -> str:
        """Read the name of a class, or the number of one that was named before."""
        number = self.varint()
        if number == len(self._names):
            self._names.append(self.text() or "")
        return self._names[number]

    def _before(self, number: int) -> Any:
        value, size = (
            self._objects[number] if 0 <= number < len(self._objects) else (_UNFINISHED, 0)
        )
        self._repeated += size
        if value is _UNFINISHED or self._repeated > _MOST_REPEATED:
            message = "a value refers to another that is not there, or to too many"
            raise ValueError(message)
        return value

    def _content(self, java_class: str, depth: int) -> Any:
        if java_class in _EMPTY:
            return _EMPTY[java_class]
        is_map = java_class in _MAPS or java_class in _SORTED_MAPS
        if not is_map and java_class not in _COLLECTIONS and java_class not in _SORTED_COLLECTIONS:
            raise not_readable(f"{java_class} (by Kryo)")
        is_sorted = java_class in _SORTED_MAPS or java_class in _SORTED_COLLECTIONS
        if is_sorted and self.value(depth + 1) is not None:
            raise not_readable(f"a comparator of {java_class} (by Kryo)")
        size = self.varint()
        if size > len(self._data) - self.position:
            message = (
                f"{size} values are to follow, and {len(self._data) - self.position} bytes are left"
            )
            raise ValueError(message)
        if not is_map:
            return [self.value(depth + 1) for _ in range(size)]
        pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(size)]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return [list(pair) for pair in pairs]

    def text(self) -> str | None:
        """Read a text."""
        data, position = self._data, self.position
        first = data[position]
        if first < 0x80:  # the last character has the highest bit
            end = position
            while data[end] < 0x80:
                end += 1
            self.position = end + 1
            return (data[position:end] + bytes([data[end] & 0x7F])).decode("ascii")
        length, shift = first & 0x3F, 6
        position += 1
        more = first & 0x40
        while more:
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            more = byte & 0x80 if shift < 32 else 0
        if length < 2:
            self.position = position
            return "" if length else None
        start = position
        if length - 1 > len(data) - position:
            message = f"a text of {length - 1} characters follows, and {len(data) - position} bytes are left"
            raise ValueError(message)
        for _ in range(length - 1):  # one to three bytes for each unit of UTF-16
            unit = data[position]
            position += 1 if unit < 0x80 else 2 if unit < 0xE0 else 3
        if position > len(data):
            message = "a text ends early"
            raise ValueError(message)
        self.position = position
        units = data[start:position].decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

    def varint(self) -> int:
        """Read a number that is not negative."""
        value = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                message = "a number has no end"
                raise ValueError(message)


_UNFINISHED = object()
_BY_NAME, _STRING = 1, 3
_NUMBERS: dict[int, Callable[[_Graph], Any]] = {
    2: _Graph.integer,
    4: lambda graph: graph.fixed(struct.Struct(">f")),
    5: lambda graph: graph.fixed(struct.Struct(">?")),
    6: lambda graph: graph.fixed(struct.Struct(">b")),
    7: _Graph.character,
    8: lambda graph: graph.fixed(struct.Struct(">h")),
    9: _Graph.integer,
    10: lambda graph: graph.fixed(struct.Struct(">d")),
}
"""What reads the classes that Kryo knows from the beginning, by what stands for them."""
