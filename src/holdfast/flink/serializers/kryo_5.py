"""Differences of Kryo 5, which Flink 2 uses, from the format of Kryo 2.24 in `kryo`.

    collection  varint size + 1 with its highest bit set if all values have the same class; that class, byte for
                nulls, values without their class
    map         varint size + 1, pairs of values
    number      little-endian if it has a fixed width

The comparator of a sorted collection follows its size.

Source:
    Kryo 5.6, CollectionSerializer, MapSerializer, TimeSerializers, ImmutableCollectionsSerializers, DefaultSerializers.
"""

from datetime import date
from functools import partial
from typing import Any, ClassVar

from holdfast.flink.serializers.kryo import KryoGraph, Objects, Texts
from holdfast.flink.serializers.kryo_2 import (
    ARRAY_LIST,
    SORTED_MAP,
    Kryo2Graph,
    duration_text,
    fixed,
    instant_text,
    made_of,
    map_of,
    offset_text,
    signed,
    time_text,
    uuid_text,
)

_WHOLE_OFFSET, _QUARTER_S = 127, 900


def _local_time(graph: KryoGraph) -> str:
    """Read hour, minute, second and nanoseconds; the last one that is not 0 has its bits inverted."""
    parts = [0, 0, 0, 0]
    for number in range(3):
        part = graph.read_fixed("b")
        parts[number] = part if part >= 0 else ~part
        if part < 0:
            break
    else:
        parts[3] = graph.varint()
    return time_text(*parts)


def _offset(graph: KryoGraph) -> str:
    """Read an offset from UTC, in quarters of an hour if it is a multiple of them."""
    quarters = graph.read_fixed("b")
    return offset_text(
        graph.read_fixed("i") if quarters == _WHOLE_OFFSET else _QUARTER_S * quarters
    )


_TEXT, _BYTE, _INT = KryoGraph.text, fixed("b"), signed(32)
_LOCAL_DATE = made_of(
    lambda year, month, day: date(year, month, day).isoformat(), _INT, _BYTE, _BYTE
)
_LOCAL_DATE_TIME = made_of("{}T{}".format, _LOCAL_DATE, _local_time)


class Kryo5Graph(KryoGraph):
    """A reader of a value of Kryo 5 with everything in it."""

    VERSION = 5
    ORDER = "<"
    TEXTS: ClassVar[Texts] = {
        **Kryo2Graph.TEXTS,
        "java.net.URL": _TEXT,
        "java.time.Duration": made_of(duration_text, fixed("q"), _INT),
        "java.time.Instant": made_of(instant_text, signed(64), _INT),
        "java.time.LocalDate": _LOCAL_DATE,
        "java.time.LocalDateTime": _LOCAL_DATE_TIME,
        "java.time.LocalTime": _local_time,
        "java.time.MonthDay": made_of("--{:02}-{:02}".format, _BYTE, _BYTE),
        "java.time.OffsetDateTime": made_of("{}{}".format, _LOCAL_DATE_TIME, _offset),
        "java.time.Period": made_of("P{}Y{}M{}D".format, _INT, _INT, _INT),
        "java.time.YearMonth": made_of("{:04}-{:02}".format, _INT, _BYTE),
        "java.time.ZoneOffset": _offset,
        "java.time.ZoneRegion": _TEXT,
        "java.time.ZonedDateTime": made_of("{}[{}]".format, _LOCAL_DATE_TIME, _TEXT),
        "java.util.Locale": made_of(
            lambda *parts: "_".join(filter(None, parts)), _TEXT, _TEXT, _TEXT
        ),
        "java.util.UUID": made_of(uuid_text, fixed("q"), fixed("q")),
        "java.util.regex.Pattern": made_of(
            lambda pattern, _flags: pattern, _TEXT, KryoGraph.varint
        ),
    }
    OBJECTS: ClassVar[Objects] = {
        **Kryo2Graph.OBJECTS,
        ARRAY_LIST: lambda graph, depth: graph.elements(depth),
        SORTED_MAP: partial(map_of, is_sorted=True),
        "java.time.Year": lambda graph, _depth: graph.read_signed(32),
    }

    def size_of_map(self, depth: int, *, is_sorted: bool) -> int:
        size = self.check_size(self.varint() - 1)
        if is_sorted:
            self.check_comparator(depth)
        return size

    def elements(self, depth: int, *, is_sorted: bool = False, has_nulls: bool = True) -> list[Any]:
        has_one_class, size_and_one = self.read_flagged()
        if is_sorted:
            self.check_comparator(depth)
        kind = self.varint() if has_one_class else None
        if kind == 0:  # all are null and take zero bytes
            self.repeat(size_and_one - 1)
            return [None] * (size_and_one - 1)
        size = self.check_size(size_and_one - 1)
        if kind is None:
            return [self.value(depth + 1) for _ in range(size)]
        element = self.class_of(kind)
        has_nulls = has_nulls and self.read_fixed("?")
        values = []
        for _ in range(size):
            is_null = has_nulls and self.next_is_null()
            if is_null or (has_nulls and isinstance(element, int)):
                self.position += 1
            values.append(None if is_null else self.instance(element, depth + 1))
        return values
