"""JDK classes in the format of Kryo 2.24: collections, times, and classes with a serializer of Kryo, of Chill, or none.

An object of a class without a serializer consists of its fields in the order of their names. A field whose class has no
subclasses does not have its class before it, but the mark that distinguishes new objects from earlier ones.

Source:
    Kryo 2.24, DefaultSerializers, DefaultArraySerializers, FieldSerializer; Chill 0.7, com.twitter.chill.java.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from holdfast.flink.serializers.kryo import KryoGraph, Objects, Texts

NANOS = 1_000_000_000
_IMMUTABLE = "java.util.ImmutableCollections$"
WITHOUT_NULLS = {f"{_IMMUTABLE}{name}" for name in ("List12", "ListN", "SubList", "Set12", "SetN")}
"""Collections that refuse nulls."""
ARRAY_LIST = "java.util.Arrays$ArrayList"
_CONCURRENT = "java.util.concurrent."
_COLLECTIONS = {
    *WITHOUT_NULLS,
    "java.util.ArrayDeque",
    "java.util.ArrayList",
    "java.util.ArrayList$SubList",
    "java.util.Collections$CopiesList",
    "java.util.HashSet",
    "java.util.LinkedHashSet",
    "java.util.LinkedList",
    "java.util.Stack",
    "java.util.Vector",
    f"{_CONCURRENT}ConcurrentHashMap$KeySetView",
    f"{_CONCURRENT}ConcurrentLinkedDeque",
    f"{_CONCURRENT}ConcurrentLinkedQueue",
    f"{_CONCURRENT}CopyOnWriteArrayList",
    f"{_CONCURRENT}CopyOnWriteArraySet",
    *(
        f"java.util.Collections${wrapper}{kind}"
        for wrapper in ("Synchronized", "Unmodifiable")
        for kind in ("Collection", "List", "RandomAccessList", "Set")
    ),
}
SORTED_MAP = f"{_CONCURRENT}ConcurrentSkipListMap"
"""A class of maps that Kryo 2.24 does not treat as sorted."""
_MAPS = {
    f"{_IMMUTABLE}Map1",
    f"{_IMMUTABLE}MapN",
    "java.util.Collections$SynchronizedMap",
    "java.util.Collections$UnmodifiableMap",
    "java.util.HashMap",
    "java.util.Hashtable",
    "java.util.IdentityHashMap",
    "java.util.LinkedHashMap",
    "java.util.Properties",
    f"{_CONCURRENT}ConcurrentHashMap",
    SORTED_MAP,
}
_EMPTY: dict[str, Any] = {
    "java.util.Collections$EmptyList": [],
    "java.util.Collections$EmptyMap": {},
    "java.util.Collections$EmptySet": [],
}
_FLAGS = {"Z": "?", "B": "b", "S": "h", "F": "f", "D": "d"}
"""Arrays of fixed-width numbers, by the codes of Java and `struct`."""


def map_of(graph: KryoGraph, depth: int, *, is_sorted: bool = False) -> Any:
    """Read a map."""
    return graph.pairs(graph.size_of_map(depth, is_sorted=is_sorted), depth)


def _list_of_array(graph: KryoGraph, depth: int) -> list[Any]:
    size = graph.check_size(graph.varint())
    graph.class_of(graph.varint())  # of the array in the list
    return [graph.value(depth + 1) for _ in range(size)]


def _array(read: Callable[[KryoGraph], Any], graph: KryoGraph, _depth: int) -> list[Any]:
    """Read an array: its size plus one, and elements without their class."""
    return [read(graph) for _ in range(graph.check_size(graph.varint() - 1))]


def _fixed_width(code: str, graph: KryoGraph) -> Any:
    return graph.read_fixed(code)


def _void(empty: Any, _graph: KryoGraph, _depth: int) -> Any:
    """Return an empty collection, which has no content."""
    return empty


def _objects(graph: KryoGraph, depth: int) -> list[Any]:
    return _array(lambda graph: graph.value(depth + 1), graph, depth)


def _read_boxed(code: Callable[[KryoGraph], Any], graph: KryoGraph) -> Any:
    """Read a nullable number, with a mark before it."""
    return code(graph) if graph.varint() else None


def _fields(count: int, graph: KryoGraph, depth: int) -> list[Any]:
    """Read values of any class in the order of their names: f0, f1, f10, f2."""
    values: list[Any] = [None] * count
    for number in sorted(range(count), key=str):
        values[number] = graph.value(depth + 1)
    return values


def _bits(graph: KryoGraph, _depth: int) -> list[int]:
    words = [graph.read_fixed("Q") for _ in range(graph.check_size(graph.varint()))]
    return [
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    ]


def big_decimal(graph: KryoGraph) -> str:
    """Read a decimal number."""
    value = graph.big_integer()
    digits = tuple(map(int, str(abs(value))))
    return str(Decimal((int(value < 0), digits, -graph.integer())))


def millis(graph: KryoGraph) -> str:
    """Read a time in milliseconds."""
    return (
        datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=graph.read_signed(64))
    ).isoformat()


def sql_timestamp(graph: KryoGraph) -> str:
    """Read a time of milliseconds, followed by the nanoseconds of the second."""
    return instant_text(graph.read_signed(64) // 1000, graph.varint())


def instant_text(seconds: int, nanos: int) -> str:
    """Format a time in UTC."""
    time = datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction(nanos)}+00:00"


def fraction(nanos: int) -> str:
    """Format nanoseconds as decimal digits with a point, or as an empty string."""
    return f".{nanos:09}" if nanos else ""


def duration_text(seconds: int, nanos: int) -> str:
    """Format a duration; nanoseconds are added to the second below."""
    whole = seconds + (1 if seconds < 0 and nanos else 0)
    nanos = NANOS - nanos if seconds < 0 and nanos else nanos
    sign = "-" if seconds < 0 else ""
    return f"PT{sign}{abs(whole)}{fraction(nanos).rstrip('0')}S"


def offset_text(seconds: int) -> str:
    """Format an offset from UTC."""
    hours, rest = divmod(abs(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    seconds_text = f":{rest:02}" if rest else ""
    return f"{'-' if seconds < 0 else '+'}{hours:02}:{minutes:02}{seconds_text}" if seconds else "Z"


def time_text(hour: int, minute: int, second: int, nanos: int) -> str:
    """Format a time of day."""
    return f"{hour:02}:{minute:02}:{second:02}{fraction(nanos)}"


def uuid_of(high: int, low: int) -> str:
    """Format the UUID of two 64-bit numbers."""
    mask = (1 << 64) - 1
    return str(uuid.UUID(int=(high & mask) << 64 | low & mask))


def _field(java_class: str, graph: KryoGraph) -> Any:
    """Read a field of a class without subclasses."""
    return graph.instance(java_class, 1)


def _instant(graph: KryoGraph) -> str:
    nanos, seconds = graph.integer(), graph.integer()
    return instant_text(seconds, nanos)


def _duration(graph: KryoGraph) -> str:
    nanos, seconds = graph.integer(), graph.integer()
    return duration_text(seconds, nanos)


def _local_date(graph: KryoGraph) -> str:
    day, month, year = graph.read_fixed("h"), graph.read_fixed("h"), graph.integer()
    return date(year, month, day).isoformat()


def _local_time(graph: KryoGraph) -> str:
    hour, minute, nanos, second = (
        graph.read_fixed("b"),
        graph.read_fixed("b"),
        graph.integer(),
        graph.read_fixed("b"),
    )
    return time_text(hour, minute, second, nanos)


def _local_date_time(graph: KryoGraph) -> str:
    return f"{_field('java.time.LocalDate', graph)}T{_field('java.time.LocalTime', graph)}"


def _offset_date_time(graph: KryoGraph) -> str:
    return f"{_field('java.time.LocalDateTime', graph)}{_field('java.time.ZoneOffset', graph)}"


def _zoned_date_time(graph: KryoGraph) -> str:
    time, _, zone = (
        _field("java.time.LocalDateTime", graph),
        _field("java.time.ZoneOffset", graph),
        graph.value(1),
    )
    return f"{time}[{zone}]"


def _period(graph: KryoGraph) -> str:
    days, months, years = graph.integer(), graph.integer(), graph.integer()
    return f"P{years}Y{months}M{days}D"


def _month_day(graph: KryoGraph) -> str:
    day, month = graph.integer(), graph.integer()
    return f"--{month:02}-{day:02}"


def _year_month(graph: KryoGraph) -> str:
    month, year = graph.integer(), graph.integer()
    return f"{year:04}-{month:02}"


class Kryo2Graph(KryoGraph):
    """A reader of a value of Kryo 2.24 with everything in it."""

    TEXTS: ClassVar[Texts] = {
        "java.lang.StringBuffer": KryoGraph.text,
        "java.lang.StringBuilder": KryoGraph.text,
        "java.math.BigDecimal": big_decimal,
        "java.math.BigInteger": lambda graph: str(graph.big_integer()),
        "java.net.URI": KryoGraph.text,
        "java.sql.Date": millis,
        "java.sql.Time": millis,
        "java.sql.Timestamp": sql_timestamp,
        "java.time.Duration": _duration,
        "java.time.Instant": _instant,
        "java.time.LocalDate": _local_date,
        "java.time.LocalDateTime": _local_date_time,
        "java.time.LocalTime": _local_time,
        "java.time.MonthDay": _month_day,
        "java.time.OffsetDateTime": _offset_date_time,
        "java.time.Period": _period,
        "java.time.YearMonth": _year_month,
        "java.time.ZoneOffset": lambda graph: offset_text(graph.integer()),
        "java.time.ZoneRegion": lambda graph: graph.text_or_null(1),
        "java.time.ZonedDateTime": _zoned_date_time,
        "java.util.Currency": KryoGraph.text,
        "java.util.Date": millis,
        "java.util.UUID": lambda graph: uuid_of(graph.integer(), graph.integer()),
        "java.util.regex.Pattern": KryoGraph.text,
        "sun.util.calendar.ZoneInfo": KryoGraph.text,
    }
    OBJECTS: ClassVar[Objects] = {
        **dict.fromkeys(_COLLECTIONS, lambda graph, depth: graph.elements(depth)),
        **dict.fromkeys(WITHOUT_NULLS, lambda graph, depth: graph.elements(depth, has_nulls=False)),
        **dict.fromkeys(
            ("java.util.PriorityQueue", "java.util.TreeSet"),
            lambda graph, depth: graph.elements(depth, is_sorted=True),
        ),
        ARRAY_LIST: _list_of_array,
        **dict.fromkeys(_MAPS, map_of),
        "java.util.TreeMap": partial(map_of, is_sorted=True),
        **{name: partial(_void, empty) for name, empty in _EMPTY.items()},
        **dict.fromkeys(
            ("java.util.Collections$SingletonList", "java.util.Collections$SingletonSet"),
            lambda graph, depth: [graph.value(depth + 1)],
        ),
        "java.util.Collections$SingletonMap": lambda graph, depth: graph.pairs(1, depth),
        "java.util.Optional": lambda graph, depth: graph.value(depth + 1),
        "java.util.AbstractMap$SimpleEntry": partial(_fields, 2),
        "java.util.AbstractMap$SimpleImmutableEntry": partial(_fields, 2),
        **{
            f"org.apache.flink.api.java.tuple.Tuple{count}": partial(_fields, count)
            for count in range(1, 26)
        },
        "java.util.BitSet": _bits,
        "java.util.concurrent.atomic.AtomicBoolean": lambda graph, _depth: bool(graph.integer()),
        "java.util.concurrent.atomic.AtomicInteger": lambda graph, _depth: graph.integer(),
        "java.util.concurrent.atomic.AtomicLong": lambda graph, _depth: graph.integer(),
        "java.time.Year": lambda graph, _depth: graph.integer(),
        "[Ljava.lang.Object;": _objects,
        "[Ljava.lang.String;": lambda graph, depth: _array(
            lambda graph: graph.text_or_null(depth + 1), graph, depth
        ),
        **dict.fromkeys(
            ("[Ljava.lang.Integer;", "[Ljava.lang.Long;"),
            partial(_array, partial(_read_boxed, KryoGraph.integer)),
        ),
        "[Ljava.lang.Double;": partial(
            _array, partial(_read_boxed, lambda graph: graph.read_fixed("d"))
        ),
        **dict.fromkeys(("[I", "[J"), partial(_array, KryoGraph.integer)),
        "[C": partial(_array, KryoGraph.character),
        **{
            f"[{name}": partial(_array, partial(_fixed_width, code))
            for name, code in _FLAGS.items()
        },
    }
