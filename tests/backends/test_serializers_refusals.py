"""Elements that are refused: of another type, or of a class that would lose something of them."""

import datetime as dt
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    NOON,
    PYTHON_VALUES,
    SAMPLE,
    Circle,
    Color,
    Event,
    Node,
    Order,
    Pair,
    Plain,
    Point,
    Square,
    broadcast_state,
    list_state,
    restore_from,
    union_state,
)

from holdfast.backends import OperatorStateBackend, Pickled
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError


class SubOrder(Order):
    pass


class SubNode(Node):
    more: int = 0


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


WRONG: dict[str, tuple[Any, Any]] = {
    "int as str": (str, 1),
    "bytes as str": (str, b"a"),
    "lone surrogate": (str, "a\ud800"),
    "str as bytes": (bytes, "a"),
    "str as int": (int, "1"),
    "fraction as int": (int, 1.5),
    "bool as int": (int, True),
    "2**63 as int": (int, 2**63),
    "-2**63-1 as int": (int, -(2**63) - 1),
    "str as float": (float, "nan"),
    "int as bool": (bool, 1),
    "another class": (Point, Pair(1)),
    "dict as struct": (Point, {"x": 1}),
    "a subclass of a struct": (Node, SubNode(1)),
    "a subclass of a dataclass": (Order, SubOrder(1)),
    "another type in a field": (Point, Point("1")),  # type: ignore[arg-type]
    "another type in a nested field": (Event, Event(1, NOON, Pair(1))),  # type: ignore[arg-type]
    "None in a field": (Point, Point(None)),  # type: ignore[arg-type]
    "more than 64 bits in a field": (Point, Point(2**64)),
    "more than 63 bits and a sign in a field": (Point, Point(2**63)),
    "more than 63 bits and a sign inside": (list[dict[str, int]], [{"a": 2**64 - 1}]),
    "centuries that 64 bits have no room for": (dt.timedelta, dt.timedelta.max),
    "less than 64 bits in a field": (Point, Point(-(2**63) - 1)),
    "a lone surrogate in a field": (Pair, Pair(1, "\ud800")),
    "a lone surrogate in a key": (dict[str, int], {"\ud800": 1}),
    "another type in a dataclass": (Order, Order("1")),  # type: ignore[arg-type]
    "none of a union": (Circle | Square, Point(1)),
    "another type in a list": (list[float], ["1.5"]),
    "another type in a dict": (dict[str, int], {"a": "1"}),
    "too few in a tuple": (tuple[int, str], (1,)),
    "no enum": (Color, "red"),
    "datetime as date": (dt.date, NOON),
    "what msgspec does not know": (Any, object()),
    "what contains itself": (list[Any], RECURSIVE),
    "another class than that which is pickled": (Pickled(Plain), {"a": 1}),
    "what can't be pickled": (Pickled(), lambda: None),
}


GOOD: dict[str, Any] = {
    str(element_type): values[0] for element_type, values in PYTHON_VALUES.values()
}


class TestWrongElements:
    @pytest.mark.parametrize(("element_type", "value"), WRONG.values(), ids=WRONG)
    @pytest.mark.parametrize("get", [list_state, union_state])
    def test_they_are_refused_and_change_nothing_in_a_list(
        self, element_type: Any, value: Any, get: Any
    ) -> None:
        state = get(OperatorStateBackend(), "s", element_type)
        good = GOOD.get(str(element_type), [])
        state.add(good)
        with pytest.raises(InvalidRequestError, match="'s'"):
            state.add(value)
        for method in (state.add_all, state.update):
            with pytest.raises(InvalidRequestError, match="'s'"):
                method([good, value])
        assert state.get() == [good]
        assert len(state) == 1

    @pytest.mark.parametrize(("element_type", "value"), WRONG.values(), ids=WRONG)
    def test_they_are_refused_and_change_nothing_in_a_map(
        self, element_type: Any, value: Any
    ) -> None:
        backend = OperatorStateBackend()
        good = GOOD.get(str(element_type), [])
        state = broadcast_state(backend, "b", (int, element_type), {1: good})
        with pytest.raises(InvalidRequestError, match="'b'"):
            state.put(1, value)
        with pytest.raises(InvalidRequestError, match="'b'"):
            state.put_all({1: good, 2: value})
        assert dict(state.entries()) == {1: good}
        assert dict(broadcast_state(restore_from(backend), "b", (int, element_type)).entries()) == {
            1: good
        }

    @SAMPLE
    def test_none_as_element_is_refused(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        state.add_all(values)
        with pytest.raises(InvalidRequestError):
            state.add(None)
        invalid: Any
        for invalid in ([*values, None], [None], (None,), None, 5):
            with pytest.raises(InvalidRequestError):
                state.add_all(invalid)
            with pytest.raises(InvalidRequestError):
                state.update(invalid)
        assert state.get() == values
        entries = broadcast_state(backend, "b", (int, element_type), dict(enumerate(values)))
        with pytest.raises(InvalidRequestError):
            entries.put(0, None)
        with pytest.raises(InvalidRequestError):
            entries.put_all({0: values[-1], 1: None})
        assert dict(entries.entries()) == dict(enumerate(values))

    @pytest.mark.parametrize("element_type", [Point, Pickled(), dict[str, int]], ids=str)
    @pytest.mark.parametrize(
        "values",
        [
            pa.array([b"a"]),
            pa.chunked_array([[b"a"]], pa.large_binary()),
            pa.table({"x": [1]}),
            pa.record_batch({"x": [1]}),
        ],
        ids=["array", "chunks", "table", "batch"],
    )
    def test_arrow_data_as_object_elements_is_refused(self, element_type: Any, values: Any) -> None:
        state = list_state(OperatorStateBackend(), "s", element_type)
        with pytest.raises(InvalidRequestError, match="Arrow data"):
            state.add_all(values)
        assert len(state) == 0

    def test_messages_have_types_but_no_values(self) -> None:
        for element_type, value in (
            (str, "secret\ud800"),
            (int, "secret"),
            (Pair, Pair("secret")),  # type: ignore[arg-type]
            (Pickled(Point), "secret"),
        ):
            state = list_state(OperatorStateBackend(), "s", element_type)
            with pytest.raises(InvalidRequestError) as caught:
                state.add(value)
            assert "secret" not in str(caught.value)


@dataclass
class Base:
    a: int


@dataclass
class Derived(Base):
    b: int = 5


class Record(msgspec.Struct):
    a: int


class LongRecord(Record):
    b: int = 5


class Open(TypedDict, total=False):
    a: int


@dataclass
class Holder:
    item: Any = None
    base: Base | None = None
    record: Record | None = None
    number: float = 0.0
    amount: Decimal = Decimal(0)
    text: str = ""


@dataclass(eq=False)
class Unequal:
    numbers: set[float]
    number: float = 0.0
    by_key: dict[int | str, float] = field(default_factory=dict)

    def content(self) -> tuple[Any, ...]:
        return self.numbers, repr(self.number), self.by_key


@dataclass
class Careless:
    """Is equal to anything, as classes of users may be."""

    item: Base

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Growing:
    x: int

    def __post_init__(self) -> None:
        self.x += 1


@dataclass
class Failing:
    x: int

    def __post_init__(self) -> None:
        if FAILS:
            raise KeyError("secret")


FAILS: list[bool] = []

LOSSES: dict[str, tuple[Any, Any]] = {
    "a subclass in a field": (Holder, Holder(base=Derived(1, 9))),
    "a struct's subclass in a field": (Holder, Holder(record=LongRecord(1, 9))),
    "a subclass in a list": (list[Base], [Derived(1, 9)]),
    "a subclass in a dict": (dict[str, Record], {"k": LongRecord(1, 9)}),
    "a subclass of an optional": (Base | None, Derived(1, 9)),
    "a subclass where all are equal": (Careless, Careless(Derived(1, 9))),
    "a key that is not in the type": (Open, {"a": 1, "b": 2}),
    "a number that no float is": (Holder, Holder(number=2**53 + 1)),
    "a number that no float is, in a class whose objects are unequal": (
        Unequal,
        Unequal({1.0}, 2**53 + 1),
    ),
    "what changes when it is read": (Growing, Growing(1)),
}


class TestLossyElements:
    @pytest.mark.parametrize(("element_type", "value"), LOSSES.values(), ids=LOSSES)
    def test_they_are_refused(self, element_type: Any, value: Any) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        with pytest.raises(InvalidRequestError, match=r"'s'.*come back changed"):
            state.add(value)
        with pytest.raises(InvalidRequestError, match="come back changed"):
            state.add_all([value])
        assert len(state) == 0
        entries = broadcast_state(backend, "b", (int, element_type))
        with pytest.raises(InvalidRequestError, match="come back changed"):
            entries.put(1, value)

    @pytest.mark.parametrize(
        "value",
        [
            Holder(number=3),
            Holder(number=math.inf),
            Holder(amount=3),  # type: ignore[arg-type]
            Holder(amount=0.1),  # type: ignore[arg-type]
            Holder(amount=1e-7),  # type: ignore[arg-type]
            Holder(item=[1, {"a": 2.0}], number=3),
            Holder(base=Base(2), record=Record(2), number=2**53),
        ],
        ids=repr,
    )
    def test_other_forms_of_the_same_are_taken(self, value: Any) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Holder).add(value)
        (again,) = list_state(restore_from(backend), "s", Holder).get()
        assert msgspec.convert(msgspec.to_builtins(value), Holder) == again
        assert (type(again.number), type(again.amount)) == (float, Decimal)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Unequal({8.0, 0.0, 16.0}), ({0.0, 8.0, 16.0}, "0.0", {})),
            (Unequal({1, 2.5}, 3), ({1.0, 2.5}, "3.0", {})),
            (Unequal(set(), math.nan), (set(), "nan", {})),
            (Unequal({8, 0, 16}, math.nan), ({0.0, 8.0, 16.0}, "nan", {})),
            (Unequal(set(), 0.5, {1: 1, "a": 2}), (set(), "0.5", {1: 1.0, "a": 2.0})),
        ],
        ids=range(5),
    )
    def test_objects_unequal_to_their_copies_keep_their_content(
        self, value: Unequal, expected: Any
    ) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Unequal).add(value)
        (again,) = list_state(restore_from(backend), "s", Unequal).get()
        assert again.content() == expected

    def test_object_keys_are_compared(self) -> None:
        element_type = dict[Point, float]
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        state.add({Point(1, 2): 3})
        with pytest.raises(InvalidRequestError, match="come back changed"):
            state.add({Point(1): 2**53 + 1})
        assert list_state(restore_from(backend), "s", element_type).get() == [{Point(1, 2.0): 3.0}]


def with_a_full_stack(call: Callable[[], object]) -> None:
    """Call it with room for 50 more calls through C, which take at most 3 levels of the limit each."""

    def room(levels: int) -> int:
        try:
            return next(map(room, (levels + 1,)))
        except RecursionError:
            return levels

    def nest_calls(levels: int) -> object:
        return next(map(nest_calls, (levels - 1,))) if levels else call()

    limit = sys.getrecursionlimit()
    if sys.version_info >= (3, 12):
        # C has a separate limit there, which must be reached first.
        sys.setrecursionlimit(1_000_000)
    try:
        nest_calls(room(0) - 50)
    finally:
        sys.setrecursionlimit(limit)


class TestClassErrors:
    def test_they_refuse_an_element(self) -> None:
        state = list_state(OperatorStateBackend(), "s", Failing)
        value = Failing(1)
        FAILS.append(True)
        try:
            with pytest.raises(InvalidRequestError, match="not every value") as caught:
                state.add(value)
        finally:
            FAILS.clear()
        assert "secret" not in str(caught.value)
        assert len(state) == 0

    def test_stored_element_can_not_be_read_then(self) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", Failing)
        state.add(Failing(1))
        entries = broadcast_state(backend, "b", (int, Failing), {1: Failing(1)})
        FAILS.append(True)
        try:
            with pytest.raises(CheckpointCorruptedError, match="Failing"):
                state.get()
            with pytest.raises(CheckpointCorruptedError, match="Failing"):
                entries.get(1)
        finally:
            FAILS.clear()
        assert state.get() == [Failing(1)]

    def test_elements_too_deep_for_the_stack_stay_stored(self) -> None:
        node = Node(0)
        for value in range(300):
            node = Node(value, node)
        state = list_state(OperatorStateBackend(), "s", Node)
        entries = broadcast_state(OperatorStateBackend(), "b", (int, Node), {1: node})
        state.add(node)
        for read in (state.get, lambda: entries.get(1)):
            with pytest.raises(InvalidRequestError, match="too deeply to be read here"):
                with_a_full_stack(read)
        assert state.get() == [node]
        assert entries.get(1) == node
