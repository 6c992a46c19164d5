"""Values that come back as others, line by line as docs/kinds-of-state.md has them."""

import array
import datetime as dt
import enum
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from contracts.elements import list_state, restore_from

from holdfast.backends import OperatorStateBackend
from holdfast.errors import InvalidRequestError

BERLIN = ZoneInfo("Europe/Berlin")
EAST = dt.timezone(dt.timedelta(hours=2))
ID = uuid.UUID(int=5)


class Pair(NamedTuple):
    first: int
    second: int


class Mapping(dict[str, int]):
    pass


class Sequence(list[int]):
    pass


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@dataclass
class Point:
    x: int = 1


class Place(msgspec.Struct):
    x: int = 1


class Row(msgspec.Struct, array_like=True):
    x: int = 1


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1


class Ratio(enum.Enum):
    HALF = 0.5


Line = tuple[Any, Any, tuple[Any, ...]]

# The value, its value after a restart in an untyped part, and types with the same result.
LINES: dict[str, list[Line]] = {
    "tuple, set": [
        ((1, 2), [1, 2], (list[int],)),
        (Pair(1, 2), [1, 2], (list[int],)),
        ({1}, [1], (list[int],)),
        (frozenset({1}), [1], (list[int],)),
    ],
    "subclass of dict": [
        (OrderedDict(a=1), {"a": 1}, (dict[str, int],)),
        (defaultdict(int, a=1), {"a": 1}, (dict[str, int],)),
        (Counter("a"), {"a": 1}, (dict[str, int],)),
        (Mapping(a=1), {"a": 1}, (dict[str, int],)),
    ],
    "subclass of list": [(Sequence([1]), [1], (list[int],))],
    "object": [
        (Point(), {"x": 1}, (dict[str, int],)),
        (Place(), {"x": 1}, (dict[str, int],)),
        (Row(), [1], ()),
    ],
    "bytes": [(bytearray(b"a"), b"a", (bytes,)), (memoryview(b"a"), b"a", (bytes,))],
    "text": [
        (Decimal("1.50"), "1.50", (str,)),
        (ID, str(ID), (str,)),
        (dt.date(2020, 1, 2), "2020-01-02", (str,)),
        (dt.datetime(2020, 1, 2, 3), "2020-01-02T03:00:00", (str,)),  # noqa: DTZ001
    ],
    "timedelta": [
        (dt.timedelta(seconds=1.5), "PT1.5S", (str,)),
        (dt.timedelta(days=-3), "-P3D", (str,)),
    ],
    "time": [
        (dt.time(1, 2), "01:02:00", (str,)),
        (dt.time(1, 2, tzinfo=EAST), "01:02:00+02:00", (str,)),
        (dt.time(1, 2, tzinfo=dt.UTC), "01:02:00Z", (str,)),
    ],
    "enum": [
        (Color.RED, "red", (str,)),
        (Level.LOW, 1, (int,)),
        (Right.READ, 1, (int,)),
        (Ratio.HALF, 0.5, (float,)),
    ],
    "datetime with a zone": [
        (
            dt.datetime(2020, 1, 2, 3, tzinfo=zone),
            dt.datetime(2020, 1, 2, hour, tzinfo=dt.UTC),
            (dt.datetime,),
        )
        for zone, hour in ((EAST, 1), (BERLIN, 2))
    ],
    "time with a named zone": [(dt.time(1, 2, tzinfo=BERLIN), "01:02:00", (str,))],
    "fold": [
        (dt.datetime(2020, 10, 25, 2, fold=1), "2020-10-25T02:00:00", (str,)),  # noqa: DTZ001
        (dt.time(1, fold=1), "01:00:00", (str,)),
    ],
}

# The value, the type, and the value after a restart.
TYPED: list[tuple[Any, Any, Any]] = [
    *(
        (given, kind[int], kind([1, 2]))
        for given in ((1, 2), [1, 2], {1, 2}, frozenset({1, 2}), Pair(1, 2))
        for kind in (list, set, frozenset)
        if kind is not type(given)
    ),
    ([1, 2], tuple[int, ...], (1, 2)),
    ({1}, tuple[int, ...], (1,)),
    (1, float, 1.0),
    (1, Decimal, Decimal(1)),
    (1.5, Decimal, Decimal("1.5")),
    (dt.time(1, 2, tzinfo=BERLIN), dt.time, dt.time(1, 2)),
    (dt.time(1, fold=1), dt.time, dt.time(1)),
    (
        dt.datetime(2020, 10, 25, 2, fold=1),  # noqa: DTZ001
        dt.datetime,
        dt.datetime(2020, 10, 25, 2),  # noqa: DTZ001
    ),
]

KEPT: list[Any] = [
    None,
    True,
    -(2**63),
    2**64 - 1,
    1.5,
    "a",
    b"a",
    [1],
    {"a": 1},
    {1: 2, b"a": 3, None: 4, (1, 2): 5},
    dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
]

REFUSED: list[Any] = [
    2**64,
    -(2**63) - 1,
    1j,
    Fraction(1, 2),
    range(2),
    deque([1]),
    array.array("i", [1]),
    PurePosixPath("/a"),
    ip_address("1.2.3.4"),
    Text("a"),
    Number(1),
]


def round_trip(element_type: Any, value: Any) -> Any:
    """Return the value after a restart."""
    backend = OperatorStateBackend()
    list_state(backend, "s", element_type).add(value)
    (back,) = list_state(restore_from(backend), "s", element_type).get()
    return back


def is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and repr(value) == repr(other)  # repr includes the fold


@pytest.mark.parametrize("line", LINES)
def test_values_in_untyped_parts_match_the_documentation(line: str) -> None:
    for given, expected, types in LINES[line]:
        assert not is_same(given, expected)
        assert is_same(round_trip(Any, given), expected)
        assert is_same(round_trip(dict, {"k": given})["k"], expected)
        assert is_same(round_trip(list, [given])[0], expected)
        assert is_same(round_trip(tuple, (given,))[0], expected)
        for typed in types:
            assert is_same(
                round_trip(dict.__class_getitem__((str, typed)), {"k": given})["k"], expected
            )


@pytest.mark.parametrize(("given", "element_type", "expected"), TYPED)
def test_values_of_another_type_become_the_declared_type(
    given: Any, element_type: Any, expected: Any
) -> None:
    back = round_trip(dict[str, element_type], {"k": given})["k"]
    assert is_same(back, expected)


def test_list_in_a_hashable_place_returns_as_a_tuple() -> None:
    for given, expected in (((1, 2), (1, 2)), (Pair(1, 2), (1, 2)), (frozenset({5}), (5,))):
        assert is_same(round_trip(set, {given}), {expected})
    assert round_trip(dict, {Pair(1, 2): 3}) == {(1, 2): 3}


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_all_else_is_kept_in_untyped_parts(value: Any) -> None:
    assert is_same(round_trip(dict[str, Any], {"k": value})["k"], value)


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_values_without_a_form_are_refused_in_untyped_parts(value: Any) -> None:
    for element_type, element in ((Any, value), (dict, {"k": value}), (list, [value])):
        with pytest.raises(InvalidRequestError, match="not every value"):
            list_state(OperatorStateBackend(), "s", element_type).add(element)
