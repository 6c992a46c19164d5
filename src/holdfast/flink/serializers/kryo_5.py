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
    instant_text,
    map_of,
    offset_text,
    time_text,
    uuid_of,
)

_WHOLE_OFFSET, _QUARTER_S = 127, 900


def _local_date(graph: KryoGraph) -> str:
    return date(graph.read_signed(32), graph.read_fixed("b"), graph.read_fixed("b")).isoformat()


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


def _local_date_time(graph: KryoGraph) -> str:
    day = _local_date(graph)
    return f"{day}T{_local_time(graph)}"


def _offset(graph: KryoGraph) -> str:
    """Read an offset from UTC, in quarters of an hour if it is a multiple of them."""
    quarters = graph.read_fixed("b")
    return offset_text(
        graph.read_fixed("i") if quarters == _WHOLE_OFFSET else _QUARTER_S * quarters
    )


def _offset_date_time(graph: KryoGraph) -> str:
    time = _local_date_time(graph)
    return f"{time}{_offset(graph)}"


def _zoned_date_time(graph: KryoGraph) -> str:
    return f"{_local_date_time(graph)}[{graph.text()}]"


def _period(graph: KryoGraph) -> str:
    years, months, days = graph.read_signed(32), graph.read_signed(32), graph.read_signed(32)
    return f"P{years}Y{months}M{days}D"


def _month_day(graph: KryoGraph) -> str:
    month, day = graph.read_fixed("b"), graph.read_fixed("b")
    return f"--{month:02}-{day:02}"


def _year_month(graph: KryoGraph) -> str:
    year, month = graph.read_signed(32), graph.read_fixed("b")
    return f"{year:04}-{month:02}"


def _pattern(graph: KryoGraph) -> str | None:
    pattern = graph.text()
    graph.varint()  # its flags
    return pattern


def _locale(graph: KryoGraph) -> str:
    """Read language, country and variant."""
    return "_".join(part for part in [graph.text() for _ in range(3)] if part)


class Kryo5Graph(KryoGraph):
    """A reader of a value of Kryo 5 with everything in it."""

    VERSION = 5
    ORDER = "<"
    TEXTS: ClassVar[Texts] = {
        **Kryo2Graph.TEXTS,
        "java.net.URL": KryoGraph.text,
        "java.time.Duration": lambda graph: duration_text(
            graph.read_fixed("q"), graph.read_signed(32)
        ),
        "java.time.Instant": lambda graph: instant_text(
            graph.read_signed(64), graph.read_signed(32)
        ),
        "java.time.LocalDate": _local_date,
        "java.time.LocalDateTime": _local_date_time,
        "java.time.LocalTime": _local_time,
        "java.time.MonthDay": _month_day,
        "java.time.OffsetDateTime": _offset_date_time,
        "java.time.Period": _period,
        "java.time.YearMonth": _year_month,
        "java.time.ZoneOffset": _offset,
        "java.time.ZoneRegion": KryoGraph.text,
        "java.time.ZonedDateTime": _zoned_date_time,
        "java.util.Locale": _locale,
        "java.util.UUID": lambda graph: uuid_of(graph.read_fixed("q"), graph.read_fixed("q")),
        "java.util.regex.Pattern": _pattern,
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
