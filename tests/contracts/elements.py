"""Element types and values of operator states, and storage for them in memory."""

import datetime as dt
import enum
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pytest

from holdfast.backends import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    Pickled,
)
from holdfast.backends.snapshot import Compression
from holdfast.locations import MemoryCheckpointStorage
from holdfast.locations.adapters import CheckpointStreamFactory
from holdfast.locations.handles import OperatorStateHandle

UTC = dt.UTC

VALUES: dict[str, tuple[Any, list[Any]]] = {
    "longs": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "doubles": (pa.float64(), [0.0, -1.5, float("inf")]),
    "booleans": (pa.bool_(), [True, False, True]),
    "strings": (pa.string(), ["", "a", "", "größe", "x" * 1000]),
    "only empty strings": (pa.string(), ["", "", ""]),
    "large strings": (pa.large_string(), ["", "a"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "decimals": (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-9999999.99")]),
    "dates": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "timestamps": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, 1, 2, 3, 4, UTC)],
    ),
    "naive timestamps": (
        pa.timestamp("ms"),
        [dt.datetime.fromisoformat("2024-01-01T01:02:03.004")],
    ),
    "categories": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    "lists": (pa.list_(pa.int64()), [[], [1, 2], [None, 3]]),
    "maps": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], []]),
    "structs": (
        pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]),
        [{"id": 1, "tags": ["a", None, ""]}, {"id": None, "tags": None}],
    ),
    "structs in lists": (
        pa.list_(pa.struct([("a", pa.string())])),
        [[{"a": "x"}, None], [], [{"a": None}]],
    ),
    "structs with categories": (
        pa.struct([("kind", pa.dictionary(pa.int32(), pa.string()))]),
        [{"kind": "a"}, {"kind": "b"}],
    ),
}


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.5


class Event(msgspec.Struct, rename="camel"):
    event_id: int
    at: dt.datetime
    place: Point
    color: Color = Color.RED
    seen_by: dict[str, Point] = {}
    tags: list[str] = []
    note: str | None = None


class Pair(msgspec.Struct, array_like=True, frozen=True):
    left: int
    right: str = "none"


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: int
    color: Color = Color.BLUE


class Walks(msgspec.Struct, tag="w", omit_defaults=True, forbid_unknown_fields=True):
    steps: int = 1
    name: str = ""


class Runs(msgspec.Struct, tag="r", omit_defaults=True, forbid_unknown_fields=True):
    limit: int | None = 5
    name: str = "run"


class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None
    children: list["Node"] = []


@dataclass
class Order:
    number: int
    lines: list[str] = field(default_factory=list)


class Range(NamedTuple):
    start: int
    stop: int = 0


Content = TypeVar("Content")


class Box(msgspec.Struct, Generic[Content]):
    content: Content


class Plain:
    """Values that only pickle can store."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.content == self.content

    def __hash__(self) -> int:
        return hash(self.content)


NOON = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)

PYTHON_VALUES: dict[str, tuple[Any, list[Any]]] = {
    "str": (str, ["", "größe", "\0", "x" * 1000]),
    "bytes": (bytes, [b"", b"\xff\0"]),
    "int": (int, [0, 2**63 - 1, -(2**63)]),
    "float": (float, [0.0, -1.5, float("inf")]),
    "bool": (bool, [True, False]),
    "struct": (Point, [Point(1), Point(-(2**63), 1e300), Point(2**63 - 1)]),
    "nested struct": (
        Event,
        [
            Event(1, NOON, Point(1)),
            Event(
                2, NOON.replace(tzinfo=None), Point(2), Color.BLUE, {"a": Point(3)}, ["", "b"], "n"
            ),
        ],
    ),
    "struct that is an array": (Pair, [Pair(1), Pair(2, "two")]),
    "tagged union": (Circle | Square, [Circle(1.5), Square(2, Color.RED), Circle(0.0)]),
    "union that leaves out defaults": (
        Walks | Runs,
        [Walks(), Walks(2, "a"), Runs(), Runs(None, "b")],
    ),
    "dict by tuples": (dict[tuple[int, str], int | None], [{}, {(1, "a"): 2, (2, ""): None}]),
    "struct that refers to itself": (Node, [Node(1, Node(2, Node(3)), [Node(4), Node(5)])]),
    "dataclass": (Order, [Order(1), Order(2, ["a", ""])]),
    "generic struct": (Box[int], [Box(1), Box(-1)]),
    "named tuple": (Range, [Range(1), Range(2, 3)]),
    "dict": (dict[str, int], [{}, {"a": 1, "": -1}]),
    "dict by number": (dict[int, str], [{}, {1: "a", -1: ""}]),
    "list": (list[float], [[], [1.5, 2.0]]),
    "set": (set[str], [set(), {"a", "b"}]),
    "tuple": (tuple[int, str], [(1, "a")]),
    "optional": (dict[str, int | None], [{"a": None}, {"a": 1}]),
    "enum": (Color, [Color.RED, Color.BLUE]),
    "enum of ints": (Level, [Level.LOW, Level.HIGH]),
    "datetime": (
        dt.datetime,
        [NOON, NOON.replace(microsecond=1), dt.datetime(1, 1, 1, tzinfo=UTC)],
    ),
    "date": (dt.date, [dt.date(1969, 12, 31)]),
    "timedelta": (dt.timedelta, [dt.timedelta(days=-1, microseconds=1)]),
    "UUID": (uuid.UUID, [uuid.UUID(int=1)]),
    "decimal": (Decimal, [Decimal("1.10"), Decimal("1e-30")]),
    "anything": (Any, [1, "a", [1, {"b": None}]]),
    "pickled": (Pickled(), [Plain(1), {1, 2}, (1, "a"), 2**100, Plain([Plain(None)])]),
    "pickled of a class": (Pickled(Plain), [Plain("a"), Plain((1, 2))]),
}
"""Python types, with elements."""


def backend_with(**states: tuple[Any, Any]) -> OperatorStateBackend:
    """Return a backend with list states of these types and elements."""
    backend = OperatorStateBackend()
    for name, (element_type, values) in states.items():
        list_state(backend, name, element_type).add_all(values)
    return backend


def list_state(
    backend: OperatorStateBackend, name: str = "s", element_type: Any = None
) -> ListState:
    """Return a list state of a backend, of longs by default."""
    element_type = pa.int64() if element_type is None else element_type
    return backend.get_list_state(ListStateDescriptor(name, element_type))


def union_state(
    backend: OperatorStateBackend, name: str = "u", element_type: Any = None
) -> ListState:
    """Return a union state of a backend, of longs by default."""
    element_type = pa.int64() if element_type is None else element_type
    return backend.get_union_list_state(ListStateDescriptor(name, element_type))


def broadcast_state(
    backend: OperatorStateBackend,
    name: str = "b",
    types: tuple[Any, Any] = (int, int),
    entries: Mapping[Any, Any] | None = None,
) -> BroadcastState:
    """Return a broadcast state of a backend, with these entries added."""
    state = backend.get_broadcast_state(MapStateDescriptor(name, *types))
    state.put_all(entries or {})
    return state


def memory_factory() -> CheckpointStreamFactory:
    """Return a factory of streams whose handles contain the data."""
    storage = MemoryCheckpointStorage(100 << 20).create_checkpoint_storage("job")
    return storage.initialize_location_for_checkpoint(1)


def snapshot_of(
    backend: OperatorStateBackend,
    factory: Callable[[], CheckpointStreamFactory] = memory_factory,
    compression: Compression | None = None,
) -> OperatorStateHandle:
    """Write a snapshot of a backend with states."""
    (handle,) = backend.snapshot(factory(), compression=compression).run().state.managed_operator
    return handle


def restore_from(*backends: OperatorStateBackend) -> OperatorStateBackend:
    """Return a backend restored from snapshots of these."""
    return OperatorStateBackend.restore(map(snapshot_of, backends))


BOTH = {**VALUES, **PYTHON_VALUES}
SAMPLE = pytest.mark.parametrize(("element_type", "values"), BOTH.values(), ids=BOTH)


def state_of(element_type: Any, *values: Any) -> ListState:
    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", element_type))
    for value in values:
        state.add(value)
    return state
