"""JDK classes in the formats of Kryo 2.24 and Kryo 5: collections, times, and classes with a serializer of Kryo, of Chill, or none.

An object of a class without a serializer consists of its fields in the order of their names. A field whose class has no
subclasses does not have its class before it, but the mark that distinguishes new objects from earlier ones.

The format of Kryo 5, which Flink 2 uses, differs from that of Kryo 2.24 in `kryo`:

    collection  varint size + 1 with its highest bit set if all values have the same class; that class, byte for
                nulls, values without their class
    map         varint size + 1, pairs of values
    number      little-endian if it has a _fixed width

The comparator of a sorted collection follows its size.

Source:
    Kryo 2.24, DefaultSerializers, DefaultArraySerializers, FieldSerializer; Chill 0.7, com.twitter.chill.java; Kryo 5.6,
    CollectionSerializer, MapSerializer, TimeSerializers, ImmutableCollectionsSerializers, DefaultSerializers.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from holdfast.flink.serializers.kryo import KryoGraph, Objects, Texts
from holdfast.flink.serializers.serializer import decimal_of

_NANOS = 1_000_000_000
_IMMUTABLE = "java.util.ImmutableCollections$"
_CONCURRENT = "java.util.concurrent."
_ARRAY_LIST = "java.util.Arrays$ArrayList"
_SORTED_MAP = f"{_CONCURRENT}ConcurrentSkipListMap"
"""A class of maps that Kryo 2.24 does not treat as sorted."""
_WITHOUT_NULLS = [f"{_IMMUTABLE}{name}" for name in ("List12", "ListN", "SubList", "Set12", "SetN")]
"""Collections that refuse nulls."""
_COLLECTIONS = [
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
]
_MAPS = [
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
    _SORTED_MAP,
]

_Reader = Callable[[KryoGraph], Any]


def _made_of(make: Callable[..., Any], *parts: _Reader) -> _Reader:
    """Return a reader of an object that `make` makes of its parts, in the order of the bytes."""
    return lambda graph: make(*[read(graph) for read in parts])


def _fixed_width(code: str) -> _Reader:
    """Return a reader of a fixed-width number by its code in `struct`."""
    return lambda graph: graph.read_fixed(code)


def _variable_width(bits: int) -> _Reader:
    """Return a reader of a signed number of variable length."""
    return lambda graph: graph.read_signed(bits)


def _field(java_class: str) -> _Reader:
    """Return a reader of a field of a class without subclasses."""
    return lambda graph: graph.instance(java_class, 1)


def _map_of(graph: KryoGraph, depth: int, *, is_sorted: bool = False) -> Any:
    return graph.pairs(graph.size_of_map(depth, is_sorted=is_sorted), depth)


def _list_of_array(graph: KryoGraph, depth: int) -> list[Any]:
    size = graph.check_size(graph.varint())
    graph.class_of(graph.varint())  # of the array in the list
    return [graph.value(depth + 1) for _ in range(size)]


def _array(read: _Reader, graph: KryoGraph, _depth: int = 0) -> list[Any]:
    """Read an array: its size plus one, and elements without their class."""
    return [read(graph) for _ in range(graph.check_size(graph.varint() - 1))]


def _nullable_number(read: _Reader) -> _Reader:
    """Return a reader of a nullable number, with a mark before it."""
    return lambda graph: read(graph) if graph.varint() else None


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


def _millis_text(millis: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=millis)).isoformat()


def _instant_text(seconds: int, nanos: int) -> str:
    time = datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)
    return f"{time:%Y-%m-%dT%H:%M:%S}{_fraction(nanos)}+00:00"


def _fraction(nanos: int) -> str:
    """Format nanoseconds as decimal digits with a point, or as an empty string."""
    return f".{nanos:09}" if nanos else ""


def _duration_text(seconds: int, nanos: int) -> str:
    """Format a duration; nanoseconds are added to the second below."""
    whole = seconds + (1 if seconds < 0 and nanos else 0)
    nanos = _NANOS - nanos if seconds < 0 and nanos else nanos
    sign = "-" if seconds < 0 else ""
    return f"PT{sign}{abs(whole)}{_fraction(nanos).rstrip('0')}S"


def _offset_text(seconds: int) -> str:
    hours, rest = divmod(abs(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    seconds_text = f":{rest:02}" if rest else ""
    return f"{'-' if seconds < 0 else '+'}{hours:02}:{minutes:02}{seconds_text}" if seconds else "Z"


def _time_text(hour: int, minute: int, second: int, nanos: int) -> str:
    return f"{hour:02}:{minute:02}:{second:02}{_fraction(nanos)}"


def _uuid_text(high: int, low: int) -> str:
    """Format the UUID of two 64-bit numbers."""
    mask = (1 << 64) - 1
    return str(uuid.UUID(int=(high & mask) << 64 | low & mask))


_MILLIS = _made_of(_millis_text, _variable_width(64))
_INTEGER, _BYTE, _SHORT = KryoGraph.integer, _fixed_width("b"), _fixed_width("h")


class Kryo2Graph(KryoGraph):
    """A reader of a value of Kryo 2.24 with everything in it."""

    TEXTS: ClassVar[Texts] = {
        **dict.fromkeys(
            (
                "java.lang.StringBuffer",
                "java.lang.StringBuilder",
                "java.net.URI",
                "java.util.Currency",
                "java.util.regex.Pattern",
                "sun.util.calendar.ZoneInfo",
            ),
            KryoGraph.text,
        ),
        **dict.fromkeys(("java.sql.Date", "java.sql.Time", "java.util.Date"), _MILLIS),
        "java.math.BigDecimal": _made_of(
            lambda unscaled, scale: str(decimal_of(unscaled, scale)),
            KryoGraph.big_integer,
            _INTEGER,
        ),
        "java.math.BigInteger": _made_of(str, KryoGraph.big_integer),
        "java.sql.Timestamp": _made_of(
            lambda millis, nanos: _instant_text(millis // 1000, nanos),
            _variable_width(64),
            KryoGraph.varint,
        ),
        "java.time.Duration": _made_of(
            lambda nanos, seconds: _duration_text(seconds, nanos), _INTEGER, _INTEGER
        ),
        "java.time.Instant": _made_of(
            lambda nanos, seconds: _instant_text(seconds, nanos), _INTEGER, _INTEGER
        ),
        "java.time.LocalDate": _made_of(
            lambda day, month, year: date(year, month, day).isoformat(), _SHORT, _SHORT, _INTEGER
        ),
        "java.time.LocalDateTime": _made_of(
            "{}T{}".format, _field("java.time.LocalDate"), _field("java.time.LocalTime")
        ),
        "java.time.LocalTime": _made_of(
            lambda hour, minute, nanos, second: _time_text(hour, minute, second, nanos),
            _BYTE,
            _BYTE,
            _INTEGER,
            _BYTE,
        ),
        "java.time.MonthDay": _made_of("--{1:02}-{0:02}".format, _INTEGER, _INTEGER),
        "java.time.OffsetDateTime": _made_of(
            "{}{}".format, _field("java.time.LocalDateTime"), _field("java.time.ZoneOffset")
        ),
        "java.time.Period": _made_of("P{2}Y{1}M{0}D".format, _INTEGER, _INTEGER, _INTEGER),
        "java.time.YearMonth": _made_of("{1:04}-{0:02}".format, _INTEGER, _INTEGER),
        "java.time.ZoneOffset": _made_of(_offset_text, _INTEGER),
        "java.time.ZoneRegion": lambda graph: graph.text_or_null(1),
        "java.time.ZonedDateTime": _made_of(
            "{0}[{2}]".format,
            _field("java.time.LocalDateTime"),
            _field("java.time.ZoneOffset"),
            lambda graph: graph.value(1),
        ),
        "java.util.UUID": _made_of(_uuid_text, _INTEGER, _INTEGER),
    }
    OBJECTS: ClassVar[Objects] = {
        **dict.fromkeys(_COLLECTIONS, lambda graph, depth: graph.elements(depth)),
        **dict.fromkeys(
            _WITHOUT_NULLS, lambda graph, depth: graph.elements(depth, has_nulls=False)
        ),
        **dict.fromkeys(
            ("java.util.PriorityQueue", "java.util.TreeSet"),
            lambda graph, depth: graph.elements(depth, is_sorted=True),
        ),
        _ARRAY_LIST: _list_of_array,
        **dict.fromkeys(_MAPS, _map_of),
        "java.util.TreeMap": partial(_map_of, is_sorted=True),
        **dict.fromkeys(
            ("java.util.Collections$EmptyList", "java.util.Collections$EmptySet"),
            lambda _graph, _depth: [],
        ),
        "java.util.Collections$EmptyMap": lambda _graph, _depth: {},
        **dict.fromkeys(
            ("java.util.Collections$SingletonList", "java.util.Collections$SingletonSet"),
            lambda graph, depth: [graph.value(depth + 1)],
        ),
        "java.util.Collections$SingletonMap": lambda graph, depth: graph.pairs(1, depth),
        "java.util.Optional": lambda graph, depth: graph.value(depth + 1),
        **dict.fromkeys(
            ("java.util.AbstractMap$SimpleEntry", "java.util.AbstractMap$SimpleImmutableEntry"),
            partial(_fields, 2),
        ),
        **{
            f"org.apache.flink.api.java.tuple.Tuple{count}": partial(_fields, count)
            for count in range(1, 26)
        },
        "java.util.BitSet": _bits,
        f"{_CONCURRENT}atomic.AtomicBoolean": lambda graph, _depth: bool(graph.integer()),
        **dict.fromkeys(
            (
                f"{_CONCURRENT}atomic.AtomicInteger",
                f"{_CONCURRENT}atomic.AtomicLong",
                "java.time.Year",
            ),
            lambda graph, _depth: graph.integer(),
        ),
        "[Ljava.lang.Object;": lambda graph, depth: _array(
            lambda graph: graph.value(depth + 1), graph
        ),
        "[Ljava.lang.String;": lambda graph, depth: _array(
            lambda graph: graph.text_or_null(depth + 1), graph
        ),
        **dict.fromkeys(
            ("[Ljava.lang.Integer;", "[Ljava.lang.Long;"),
            partial(_array, _nullable_number(_INTEGER)),
        ),
        "[Ljava.lang.Double;": partial(_array, _nullable_number(_fixed_width("d"))),
        **dict.fromkeys(("[I", "[J"), partial(_array, _INTEGER)),
        "[C": partial(_array, KryoGraph.character),
        **{
            f"[{java}": partial(_array, _fixed_width(code))
            for java, code in {"Z": "?", "B": "b", "S": "h", "F": "f", "D": "d"}.items()
        },
    }


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
    return _time_text(*parts)


def _offset(graph: KryoGraph) -> str:
    """Read an offset from UTC, in quarters of an hour if it is a multiple of them."""
    quarters = graph.read_fixed("b")
    return _offset_text(
        graph.read_fixed("i") if quarters == _WHOLE_OFFSET else _QUARTER_S * quarters
    )


_TEXT, _INT = KryoGraph.text, _variable_width(32)
_LOCAL_DATE = _made_of(
    lambda year, month, day: date(year, month, day).isoformat(), _INT, _BYTE, _BYTE
)
_LOCAL_DATE_TIME = _made_of("{}T{}".format, _LOCAL_DATE, _local_time)


class Kryo5Graph(KryoGraph):
    """A reader of a value of Kryo 5 with everything in it."""

    VERSION = 5
    ORDER = "<"
    TEXTS: ClassVar[Texts] = {
        **Kryo2Graph.TEXTS,
        "java.net.URL": _TEXT,
        "java.time.Duration": _made_of(_duration_text, _fixed_width("q"), _INT),
        "java.time.Instant": _made_of(_instant_text, _variable_width(64), _INT),
        "java.time.LocalDate": _LOCAL_DATE,
        "java.time.LocalDateTime": _LOCAL_DATE_TIME,
        "java.time.LocalTime": _local_time,
        "java.time.MonthDay": _made_of("--{:02}-{:02}".format, _BYTE, _BYTE),
        "java.time.OffsetDateTime": _made_of("{}{}".format, _LOCAL_DATE_TIME, _offset),
        "java.time.Period": _made_of("P{}Y{}M{}D".format, _INT, _INT, _INT),
        "java.time.YearMonth": _made_of("{:04}-{:02}".format, _INT, _BYTE),
        "java.time.ZoneOffset": _offset,
        "java.time.ZoneRegion": _TEXT,
        "java.time.ZonedDateTime": _made_of("{}[{}]".format, _LOCAL_DATE_TIME, _TEXT),
        "java.util.Locale": _made_of(
            lambda *parts: "_".join(filter(None, parts)), _TEXT, _TEXT, _TEXT
        ),
        "java.util.UUID": _made_of(_uuid_text, _fixed_width("q"), _fixed_width("q")),
        "java.util.regex.Pattern": _made_of(
            lambda pattern, _flags: pattern, _TEXT, KryoGraph.varint
        ),
    }
    OBJECTS: ClassVar[Objects] = {
        **Kryo2Graph.OBJECTS,
        _ARRAY_LIST: lambda graph, depth: graph.elements(depth),
        _SORTED_MAP: partial(_map_of, is_sorted=True),
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
