"""Collections of the JDK as Kryo 2.24 writes them, in Flink 1: a POJO's field of type `List` is one of them there. `kryo_5` is of Flink 2.

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
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.backends.keys import java_hash
from holdfast.flink.serializers.serializer import Serializer, not_readable, sliced, unreadable

MOST_NESTED = 32
ARRAY_LIST = "java.util.Arrays$ArrayList"
_MOST_REPEATED = 1 << 24
"""Bytes of what is referred to: a few bytes could stand for any number of others."""

_IMMUTABLE = "java.util.ImmutableCollections$"
WITHOUT_NULLS = {f"{_IMMUTABLE}{name}" for name in ("List12", "ListN", "SubList", "Set12", "SetN")}
"""Collections that refuse nulls."""
_COLLECTIONS = {
    *WITHOUT_NULLS,
    "java.util.ArrayDeque",
    "java.util.ArrayList",
    ARRAY_LIST,
    "java.util.HashSet",
    "java.util.LinkedHashSet",
    "java.util.LinkedList",
    "java.util.Stack",
    "java.util.Vector",
    "java.util.concurrent.CopyOnWriteArrayList",
}
_SORTED_COLLECTIONS = {"java.util.TreeSet"}
_MAPS = {
    f"{_IMMUTABLE}Map1",
    f"{_IMMUTABLE}MapN",
    "java.util.HashMap",
    "java.util.Hashtable",
    "java.util.LinkedHashMap",
    "java.util.concurrent.ConcurrentHashMap",
}
_SORTED_MAPS = {"java.util.TreeMap"}
_SINGLE = {"java.util.Collections$SingletonList", "java.util.Collections$SingletonSet"}
_SINGLE_MAP = "java.util.Collections$SingletonMap"
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
    *_EMPTY,
    *_SINGLE,
    _SINGLE_MAP,
    "java.io.Serializable",
    "java.lang.Comparable",
    "java.lang.Iterable",
    "java.lang.Object",
    "java.util.AbstractCollection",
    "java.util.AbstractList",
    "java.util.AbstractMap",
    "java.util.AbstractSet",
    "java.util.Collection",
    "java.util.Deque",
    "java.util.List",
    "java.util.Map",
    "java.util.NavigableMap",
    "java.util.NavigableSet",
    "java.util.Queue",
    "java.util.Set",
    "java.util.SortedMap",
    "java.util.SortedSet",
}
"""What types can be declared as whose values may be any of these classes."""
_REGISTERED = {73: ARRAY_LIST, 80: "java.net.URI", 82: "java.util.UUID"}
"""Classes that Flink has told Kryo of, by their numbers."""
_DECLARED_NUMBER = 85
"""The number of the class that a job has declared: Flink tells Kryo of it first."""


TOPIC_PARTITION = pa.struct([("topic", pa.string()), ("partition", pa.int32())])
"""As what a partition of Kafka is read, of which the consumer before `KafkaSource` keeps the offset."""

_KAFKA_PARTITION = "org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition"


def kryo_of(java_class: str, graph_of: "type[KryoGraph] | None" = None) -> Serializer:
    """The serializer of a type that Flink leaves to Kryo.

    Args:
        java_class: The type as it was declared.
        graph_of: What reads the values; None for those of Kryo 2.24.
    """
    if graph_of is None and java_class == _KAFKA_PARTITION:
        return Serializer(TOPIC_PARTITION, _read_topic_partition)
    graph_of = graph_of or KryoGraph
    is_text = java_class in graph_of.TEXTS
    if not is_text and java_class not in _DECLARED | graph_of.OTHERS:
        return unreadable(f"{java_class} (by Kryo)")

    def read(data: bytes, position: int) -> tuple[str | None, int]:
        graph = graph_of(data, position, java_class)
        value = graph.value(0)
        if value is None or is_text:
            return value, graph.position
        return json.dumps(value, ensure_ascii=False), graph.position

    return Serializer(pa.string(), read)


def _read_topic_partition(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
    """Read a partition of Kafka: its hash code, its number and its topic, in the order of the fields' names."""
    graph = KryoGraph(data, position, _KAFKA_PARTITION)
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


class KryoGraph:
    """A value and all that is in it, with what Kryo remembers meanwhile."""

    ORDER = ">"
    TEXTS: "ClassVar[Mapping[str, Callable[[Any], str | None]]]"
    """What reads objects of a class that are read as texts."""
    OTHERS: ClassVar[frozenset[str]] = frozenset()
    """Classes that only this Kryo has a serializer for."""

    def __init__(self, data: bytes, position: int, declared: str) -> None:
        self._data = data
        self.position = position
        self._declared = declared
        self._names: list[str] = []
        self._objects: list[tuple[Any, int]] = []
        self._repeated = 0

    def value(self, depth: int) -> Any:
        """Read a value as something that JSON has."""
        kind = self.varint()
        return None if kind == 0 else self.instance(self.class_of(kind), depth)

    def class_of(self, kind: int) -> int | str:
        """The class that a number stands for: a number of `NUMBERS`, a name, or an empty text for texts."""
        if kind in NUMBERS:
            return kind
        if kind not in {_BY_NAME, _STRING}:
            return self._registered(kind - 2)
        return self.class_name() if kind == _BY_NAME else ""

    def _registered(self, number: int) -> str:
        """The class that Kryo was told of as its number so and so."""
        java_class = self._declared if number == _DECLARED_NUMBER else _REGISTERED.get(number)
        if java_class is None:
            raise not_readable(f"the class that Kryo knows as number {number}")
        return java_class

    def instance(self, java_class: int | str, depth: int) -> Any:
        """Read a value of a class, or one that was there before."""
        if isinstance(java_class, int):  # numbers are never referred to
            return NUMBERS[java_class](self)
        if depth > MOST_NESTED:
            message = "collections stand in each other without end"
            raise ValueError(message)
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

    def fixed(self, code: str) -> Any:
        """Read a number of a fixed width, of a code of `struct`."""
        form = f"{self.ORDER}{code}"
        (value,) = struct.unpack_from(form, self._data, self.position)
        self.position += struct.calcsize(form)
        # JSON has no other.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def character(self) -> str:
        """Read a character."""
        return chr(self.fixed("H"))

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
        if value is _UNFINISHED:
            message = "a value refers to another that is not there"
            raise ValueError(message)
        self.repeat(size)
        return value

    def repeat(self, size: int) -> None:
        """Count bytes that stand for more than is stored. Raises ValueError if they are too many."""
        self._repeated += size
        if self._repeated > _MOST_REPEATED:
            message = "a value refers to too many others"
            raise ValueError(message)

    def _content(self, java_class: str, depth: int) -> Any:
        """Read what stands in an object of a class."""
        if java_class in self.TEXTS:
            return self.TEXTS[java_class](self)
        if java_class in _EMPTY:
            return _EMPTY[java_class]
        if java_class in _SINGLE:
            return [self.value(depth + 1)]
        if java_class in self.OTHERS:
            return self.value(depth + 1)
        if java_class == _SINGLE_MAP:
            return self._pairs(1, depth)
        if java_class in _MAPS or java_class in _SORTED_MAPS:
            return self._pairs(self.size_of_map(java_class, depth), depth)
        if java_class in _COLLECTIONS or java_class in _SORTED_COLLECTIONS:
            return self.elements(java_class, depth)
        raise not_readable(f"{java_class} (by Kryo)")

    def size_of_map(self, java_class: str, depth: int) -> int:
        """Read what stands before the entries of a map."""
        self.check_comparator(java_class, depth)
        return self.checked(self.varint())

    def elements(self, java_class: str, depth: int) -> list[Any]:
        """Read a collection."""
        self.check_comparator(java_class, depth)
        size = self.checked(self.varint())
        if java_class == ARRAY_LIST:
            self.class_of(self.varint())  # of the array behind the list
        return [self.value(depth + 1) for _ in range(size)]

    def check_comparator(self, java_class: str, depth: int) -> None:
        """Read by what a sorted collection is sorted, which must be nothing of the job."""
        is_sorted = java_class in _SORTED_MAPS or java_class in _SORTED_COLLECTIONS
        if is_sorted and self.value(depth + 1) is not None:
            raise not_readable(f"a comparator of {java_class} (by Kryo)")

    def checked(self, size: int) -> int:
        """The size, if there are as many bytes. Raises ValueError."""
        left = len(self._data) - self.position
        if not 0 <= size <= left:
            message = f"{size} values are to follow, and {left} bytes are left"
            raise ValueError(message)
        return size

    def _pairs(self, size: int, depth: int) -> Any:
        """Read the entries of a map: a dictionary, or pairs if not all keys are texts."""
        pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(size)]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return [list(pair) for pair in pairs]

    def next_is_null(self) -> bool:
        """Whether the next byte is 0."""
        return self._data[self.position] == 0

    def big_integer(self) -> int:
        """Read a number of any size."""
        length = self.varint() - 1
        data, self.position = sliced(self._data, self.position, length)
        return int.from_bytes(data, "big", signed=True)

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
        _, length = self.flagged()
        position = self.position
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

    def flagged(self) -> tuple[bool, int]:
        """Read a number that is not negative, with a flag in the highest bit of its first byte."""
        first = self._data[self.position]
        self.position += 1
        number = first & 0x3F
        if first & 0x40:
            number |= self.varint() << 6
        return first >= 0x80, number

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
NUMBERS: dict[int, Callable[[KryoGraph], Any]] = {
    2: KryoGraph.integer,
    4: lambda graph: graph.fixed("f"),
    5: lambda graph: graph.fixed("?"),
    6: lambda graph: graph.fixed("b"),
    7: KryoGraph.character,
    8: lambda graph: graph.fixed("h"),
    9: KryoGraph.integer,
    10: lambda graph: graph.fixed("d"),
}
"""What reads the classes that Kryo knows from the beginning, by what stands for them."""


def _big_decimal(graph: KryoGraph) -> str:
    value = graph.big_integer()
    digits = tuple(map(int, str(abs(value))))
    return str(Decimal((int(value < 0), digits, -graph.integer())))


def _local_date(graph: KryoGraph) -> str:
    day, month, year = graph.fixed("h"), graph.fixed("h"), graph.integer()
    return date(year, month, day).isoformat()


def _millis(graph: KryoGraph) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=graph.varint())).isoformat()


def uuid_of(high: int, low: int) -> str:
    """The UUID of two numbers of 64 bits."""
    most = (1 << 64) - 1
    return str(uuid.UUID(int=(high & most) << 64 | low & most))


KryoGraph.TEXTS = {
    "java.math.BigDecimal": _big_decimal,
    "java.math.BigInteger": lambda graph: str(graph.big_integer()),
    "java.net.URI": KryoGraph.text,
    "java.time.LocalDate": _local_date,
    "java.util.Date": _millis,
    "java.util.UUID": lambda graph: uuid_of(graph.integer(), graph.integer()),
}
