"""What Kryo 5 of Flink 2 writes otherwise than Kryo 2.24, of which `kryo` is.

    collection  varint size + 1 with its highest bit set if all values are of one class; that class, byte whether
                there are nulls, values without their class
    map         varint size + 1, pairs of values
    number      little-endian if it is of a fixed width

A sorted collection has its comparator behind its size.

Source:
    Kryo 5.6, CollectionSerializer, MapSerializer, TimeSerializers, ImmutableCollectionsSerializers, DefaultSerializers.
"""

from datetime import date
from typing import Any

from holdfast.flink.serializers.kryo import WITHOUT_NULLS, KryoGraph, uuid_of

_NANOS = 1_000_000_000


class Kryo5Graph(KryoGraph):
    """A value and all that is in it, with what Kryo remembers meanwhile."""

    ORDER = "<"
    OTHERS = frozenset({"java.util.Optional"})

    def size_of_map(self, java_class: str, depth: int) -> int:
        """Read what stands before the entries of a map."""
        size = self.checked(self.varint() - 1)
        self.check_comparator(java_class, depth)
        return size

    def elements(self, java_class: str, depth: int) -> list[Any]:
        """Read a collection."""
        are_of_one_class, size_and_one = self.flagged()
        self.check_comparator(java_class, depth)
        kind = self.varint() if are_of_one_class else None
        if kind == 0:  # all are null, and take no bytes
            self.repeat(size_and_one - 1)
            return [None] * (size_and_one - 1)
        size = self.checked(size_and_one - 1)
        if kind is None:
            return [self.value(depth + 1) for _ in range(size)]
        element = self.class_of(kind)
        has_nulls = java_class not in WITHOUT_NULLS and self.fixed("?")
        values = []
        for _ in range(size):
            is_null = has_nulls and self.next_is_null()
            if is_null or (has_nulls and isinstance(element, int)):
                self.position += 1
            values.append(None if is_null else self.instance(element, depth + 1))
        return values


def _local_date(graph: Kryo5Graph) -> str:
    return date(graph.varint(), graph.fixed("b"), graph.fixed("b")).isoformat()


def _local_time(graph: Kryo5Graph) -> str:
    """Read hour, minute, second and nanoseconds, of which the last that is not 0 has its bits inverted."""
    parts = [0, 0, 0, 0]
    for number in range(3):
        part = graph.fixed("b")
        parts[number] = part if part >= 0 else ~part
        if part < 0:
            break
    else:
        parts[3] = graph.varint()
    hour, minute, second, nanos = parts
    fraction = f".{nanos:09}" if nanos else ""
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


def _local_date_time(graph: Kryo5Graph) -> str:
    day = _local_date(graph)
    return f"{day}T{_local_time(graph)}"


def _duration(graph: Kryo5Graph) -> str:
    """Read a length of time, as its seconds."""
    seconds, nanos = graph.fixed("q"), graph.varint()
    whole = seconds + (
        1 if seconds < 0 and nanos else 0
    )  # nanoseconds count upwards from the second below
    nanos = _NANOS - nanos if seconds < 0 and nanos else nanos
    sign = "-" if seconds < 0 else ""
    fraction = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"PT{sign}{abs(whole)}{fraction}S"


def _zoned(graph: Kryo5Graph) -> str:
    return f"{_local_date_time(graph)}[{graph.text()}]"


Kryo5Graph.TEXTS = {
    **KryoGraph.TEXTS,
    "java.time.Duration": _duration,
    "java.time.LocalDate": _local_date,
    "java.time.LocalDateTime": _local_date_time,
    "java.time.LocalTime": _local_time,
    "java.time.ZonedDateTime": _zoned,
    "java.util.UUID": lambda graph: uuid_of(graph.fixed("q"), graph.fixed("q")),
}
