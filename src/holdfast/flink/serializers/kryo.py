"""Objects of the JDK in Kryo's format, such as a POJO's field of type `List` in Flink 1.

This module is for Kryo 2.24; `kryo_classes` has the differences of Flink 2, whose Kryo is 5.6.

    value    varint 0 null | 1, varint number, [name of the class if the number is new] | n + 2 a registered class;
             [varint 1 a new object | n + 2 an earlier one]; its content
    content  of a collection: varint size, values; of a map: varint size, pairs of values; others are in `kryo_classes`

The savepoint does not describe their content, so they are read as JSON. No class is loaded: names are compared
with tables, and other classes can't be read.

Source:
    Kryo 2.24, DefaultClassResolver, MapReferenceResolver, Output.writeString, CollectionSerializer, MapSerializer.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from holdfast.backends.keys import java_hash
from holdfast.flink.serializers.serializer import (
    Serializer,
    integer_of,
    not_readable,
    read_bytes,
    unreadable,
)

MAX_NESTING = 32
_MAX_REPEATED = 1 << 24
"""Maximum bytes of referenced values, because a few bytes could refer to any number of others."""

_LANG = (
    *("Boolean", "Byte", "CharSequence", "Character", "Comparable", "Double", "Float", "Integer"),
    *("Iterable", "Long", "Number", "Object", "Short", "String"),
)
_UTIL = (
    *("AbstractCollection", "AbstractList", "AbstractMap", "AbstractSet", "Collection", "Deque"),
    *("List", "Map", "Map$Entry", "NavigableMap", "NavigableSet", "Queue", "Set", "SortedMap"),
    *("SortedSet", "TimeZone", "concurrent.ConcurrentMap"),
)
_DECLARED = {
    "java.io.Serializable",
    *(f"java.lang.{name}" for name in _LANG),
    "java.time.ZoneId",
    *(f"java.util.{name}" for name in _UTIL),
}
"""Declared types whose values have readable classes."""
_REGISTERED = {
    73: "java.util.Arrays$ArrayList",
    74: "java.util.BitSet",
    75: "java.util.PriorityQueue",
    76: "java.util.regex.Pattern",
    77: "java.sql.Date",
    78: "java.sql.Time",
    79: "java.sql.Timestamp",
    80: "java.net.URI",
    82: "java.util.UUID",
    83: "java.util.Locale",
}
"""Classes that Flink registers with Kryo, by their numbers."""
_FIRST_OF_JOB = 85
"""Number of the declared class: Flink registers it first, followed by the classes that the job registers."""


TOPIC_PARTITION = pa.struct([("topic", pa.string()), ("partition", pa.int32())])
"""Arrow type of a Kafka partition in the state of `FlinkKafkaConsumer`."""

_STRING_CLASS = "java.lang.String"
_KAFKA_PARTITION = "org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition"


def kryo_of(
    java_class: str,
    graph_of: "type[KryoGraph]",
    registered: Sequence[str] = (),
    foreign: frozenset[str] = frozenset(),
) -> Serializer:
    """Make the serializer of a type that Flink serializes with Kryo.

    Args:
        java_class: The declared type.
        graph_of: Makes the reader of a value.
        registered: Classes registered with Kryo, the declared one first.
        foreign: Classes with a custom serializer of the job.
    """
    if graph_of.VERSION == 2 and java_class == _KAFKA_PARTITION:
        return Serializer(TOPIC_PARTITION, _read_topic_partition)
    is_text = java_class in graph_of.TEXTS or java_class == _STRING_CLASS
    if java_class in foreign or not (
        is_text or java_class in _DECLARED or java_class in graph_of.OBJECTS
    ):
        return unreadable(f"{java_class} (by Kryo)")
    numbered = tuple(registered) or (java_class,)

    def read(data: bytes, position: int) -> tuple[str | None, int]:
        graph = graph_of(data, position, numbered, foreign)
        value = graph.value(0)
        if value is None or is_text:
            return value, graph.position
        return json.dumps(value, ensure_ascii=False), graph.position

    return Serializer(pa.string(), read)


def _read_topic_partition(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
    """Read a Kafka partition: its hash code, number and topic, in the order of the fields' names."""
    graph = KryoGraph(data, position, (_KAFKA_PARTITION,))
    kind = graph.varint()
    if kind == 0:
        return None, graph.position
    if kind == _BY_NAME:
        graph.class_name()
    is_new = graph.varint() == 1
    code, number = graph.integer(), graph.integer()
    is_new = is_new and graph.varint() == 1
    topic = graph.text()
    # The hash code confirms the class, whose number differs between jobs.
    if not is_new or topic is None or code != _hash_code(topic, number):
        message = "the hash code of a Kafka partition differs from that of its topic and number"
        raise ValueError(message)
    return {"topic": topic, "partition": number}, graph.position


def _hash_code(topic: str, partition: int) -> int:
    code = (31 * java_hash(topic) + partition) & 0xFFFF_FFFF
    return code - (code >> 31 << 32)


Texts: TypeAlias = Mapping[str, Callable[[Any], str | None]]
Objects: TypeAlias = Mapping[str, Callable[[Any, int], Any]]


class KryoGraph:
    """A reader of a value with everything in it, and Kryo's state. Subclasses have the classes of a version of Kryo.

    Args:
        data: The bytes.
        position: Start of the value.
        registered: Classes that the job has registered with Kryo, in the order of their numbers.
        foreign: Classes with a custom serializer of the job.
    """

    VERSION = 2
    ORDER = ">"
    TEXTS: ClassVar[Texts]
    """Readers of classes whose objects become strings."""
    OBJECTS: ClassVar[Objects]
    """Readers of other classes, which take the depth."""

    def __init__(
        self,
        data: bytes,
        position: int,
        registered: tuple[str, ...],
        foreign: frozenset[str] = frozenset(),
    ) -> None:
        self._data = data
        self.position = position
        self._registered = registered
        self._foreign = foreign
        self._names: list[str] = []
        self._objects: list[tuple[Any, int]] = []
        self._repeated = 0

    def value(self, depth: int) -> Any:
        """Read a value as a JSON value."""
        kind = self.varint()
        return None if kind == 0 else self.instance(self.class_of(kind), depth)

    def class_of(self, kind: int) -> int | str:
        """Return the class of a number: a number of `NUMBERS`, a name, or an empty string for strings."""
        if kind in NUMBERS:
            return kind
        if kind == _STRING:
            return ""
        return self.class_name() if kind == _BY_NAME else self._registered_class(kind - 2)

    def _registered_class(self, number: int) -> str:
        if 0 <= number - _FIRST_OF_JOB < len(self._registered):
            return self._registered[number - _FIRST_OF_JOB]
        if number not in _REGISTERED:
            raise not_readable(f"the class with Kryo's number {number}")
        return _REGISTERED[number]

    def instance(self, java_class: int | str, depth: int) -> Any:
        """Read a value of a class, or a reference to an earlier one."""
        if isinstance(java_class, int):  # numbers are never referenced
            return NUMBERS[java_class](self)
        if depth > MAX_NESTING:
            message = "collections are nested too deeply"
            raise ValueError(message)
        is_known = not java_class or java_class in self.TEXTS or java_class in self.OBJECTS
        if not is_known or java_class in self._foreign:
            raise not_readable(f"{java_class} (by Kryo)")
        return self.new_or_referenced(java_class, depth, self.varint())

    def new_or_referenced(self, java_class: str, depth: int, reference: int) -> Any:
        """Read a new object, or return the referenced earlier one."""
        if reference != 1:
            return self._before(reference - 2)
        number = len(self._objects)
        self._objects.append((_UNFINISHED, 0))
        start = self.position - self._repeated
        value = self._content(java_class, depth) if java_class else self.text()
        self._objects[number] = value, self.position - start + self._repeated
        return value

    def integer(self) -> int:
        """Read a zigzag-encoded variable-length integer."""
        zigzag = self.varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def read_fixed(self, code: str) -> Any:
        """Read a fixed-width number by its code in `struct`."""
        form = f"{self.ORDER}{code}"
        (value,) = struct.unpack_from(form, self._data, self.position)
        self.position += struct.calcsize(form)
        # JSON has no other numbers.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def character(self) -> str:
        return chr(self.read_fixed("H"))

    def class_name(self) -> str:
        """Read the name of a class, or the number of an earlier one."""
        number = self.varint()
        if number == len(self._names):
            self._names.append(self.text() or "")
        return self._names[number]

    def _before(self, number: int) -> Any:
        if not 0 <= number < len(self._objects) or self._objects[number][0] is _UNFINISHED:
            message = "a value refers to a missing one"
            raise ValueError(message)
        value, size = self._objects[number]
        self.repeat(size)
        return value

    def repeat(self, size: int) -> None:
        """Count the bytes of a repeated value. Raises ValueError if they are too many."""
        self._repeated += size
        if self._repeated > _MAX_REPEATED:
            message = "a value has too many references"
            raise ValueError(message)

    def _content(self, java_class: str, depth: int) -> Any:
        if java_class in self.TEXTS:
            return self.TEXTS[java_class](self)
        return self.OBJECTS[java_class](self, depth)

    def text_or_null(self, depth: int) -> Any:
        """Read a string without its class, or null."""
        reference = self.varint()
        return None if reference == 0 else self.new_or_referenced("", depth, reference)

    def size_of_map(self, depth: int, *, is_sorted: bool) -> int:
        if is_sorted:
            self.check_comparator(depth)
        return self.check_size(self.varint())

    def elements(self, depth: int, *, is_sorted: bool = False, has_nulls: bool = True) -> list[Any]:  # noqa: ARG002  # Kryo 5 has marks for nulls
        if is_sorted:
            self.check_comparator(depth)
        size = self.check_size(self.varint())
        return [self.value(depth + 1) for _ in range(size)]

    def check_comparator(self, depth: int) -> None:
        """Read the comparator of a sorted collection, which must not be a class of the job."""
        if self.value(depth + 1) is not None:
            raise not_readable("a comparator (by Kryo)")

    def check_size(self, size: int) -> int:
        """Return a size after comparing it with the remaining bytes. Raises ValueError."""
        left = len(self._data) - self.position
        if not 0 <= size <= left:
            message = f"{size} values can't fit into {left} bytes"
            raise ValueError(message)
        return size

    def pairs(self, size: int, depth: int) -> Any:
        """Read the entries of a map: a dictionary, or pairs if not all keys are strings."""
        pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(size)]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return [list(pair) for pair in pairs]

    def next_is_null(self) -> bool:
        return self._data[self.position] == 0

    def big_integer(self) -> int:
        length = self.varint() - 1
        data, self.position = read_bytes(self._data, self.position, length)
        return integer_of(data)

    def text(self) -> str | None:
        data, position = self._data, self.position
        first = data[position]
        if first < 0x80:  # ASCII, whose last character has the highest bit set
            end = position
            while data[end] < 0x80:
                end += 1
            self.position = end + 1
            return (data[position:end] + bytes([data[end] & 0x7F])).decode("ascii")
        _, length = self.read_flagged()
        position = self.position
        if length < 2:
            self.position = position
            return "" if length else None
        start = position
        if length - 1 > len(data) - position:
            message = (
                f"a string of {length - 1} characters can't fit into {len(data) - position} bytes"
            )
            raise ValueError(message)
        for _ in range(length - 1):  # one to three bytes for each UTF-16 code unit
            unit = data[position]
            position += 1 if unit < 0x80 else 2 if unit < 0xE0 else 3
        if position > len(data):
            message = "a string ends early"
            raise ValueError(message)
        self.position = position
        units = data[start:position].decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

    def read_flagged(self) -> tuple[bool, int]:
        """Read a flag in the highest bit of the first byte, and a non-negative number."""
        first = self._data[self.position]
        self.position += 1
        number = first & 0x3F
        if first & 0x40:
            number |= self.varint() << 6
        return first >= 0x80, number

    def varint(self) -> int:
        """Read an unsigned number of at most 64 bits, whose ninth byte has eight bits."""
        value = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            if shift == _LAST_SHIFT:
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def read_signed(self, bits: int) -> int:
        """Read a signed number of `bits` bits in variable length."""
        value = self.varint()
        return value - (1 << bits) if value >> (bits - 1) else value


_LAST_SHIFT = 56
_UNFINISHED = object()
_BY_NAME, _STRING = 1, 3
NUMBERS: dict[int, Callable[[KryoGraph], Any]] = {
    2: KryoGraph.integer,
    4: lambda graph: graph.read_fixed("f"),
    5: lambda graph: graph.read_fixed("?"),
    6: lambda graph: graph.read_fixed("b"),
    7: KryoGraph.character,
    8: lambda graph: graph.read_fixed("h"),
    9: KryoGraph.integer,
    10: lambda graph: graph.read_fixed("d"),
}
"""Readers of Kryo's built-in classes, by their number."""
