"""Element types that are not Arrow's own: through real bytes and back; what is refused."""

import copy
import datetime as dt
import math
import pickle
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
    VALUES,
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
    restored,
    snapshot_of,
    union_state,
)

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend, Pickled
from holdfast.backends.sections import Compression
from holdfast.backends.serializers import Outcome, serializer_of, stored_in
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StateMigrationError

BOTH = {**VALUES, **PYTHON_VALUES}
SAMPLE = pytest.mark.parametrize(("element_type", "values"), BOTH.values(), ids=BOTH)
PYTHON = pytest.mark.parametrize(
    ("element_type", "values"), PYTHON_VALUES.values(), ids=PYTHON_VALUES
)


class TestRoundTrip:
    @PYTHON
    @pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
    def test_a_restored_state_has_the_same_elements(
        self, element_type: Any, values: list[Any], compression: Compression | None
    ) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        for value in values:
            state.add(value)
        state.add_all(iter(values))
        handle = snapshot_of(backend, compression=compression)
        again = list_state(OperatorStateBackend.restore([handle]), "s", element_type)
        assert state.get() == list(again) == values * 2
        assert [type(value) for value in again] == [type(value) for value in values * 2]
        assert len(state) == len(again) == 2 * len(values)

    @SAMPLE
    def test_elements_are_values_of_a_map_too(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        entries = dict(enumerate(values))
        state = broadcast_state(backend, "b", (int, element_type), entries)
        again = broadcast_state(restored(backend), "b", (int, element_type))
        assert dict(state.entries()) == dict(again.entries()) == entries

    @PYTHON
    def test_hashable_elements_are_keys_of_a_map(
        self, element_type: Any, values: list[Any]
    ) -> None:
        entries = {key: str(key) for key in values if _is_hashable(key)}
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (element_type, str), entries)
        again = broadcast_state(restored(backend), "b", (element_type, str))
        assert dict(again.entries()) == entries

    @SAMPLE
    def test_a_part_of_the_elements_is_read_alone(
        self, element_type: Any, values: list[Any]
    ) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", element_type).add_all(values)
        handle = snapshot_of(backend)
        for first in range(len(values)):
            for end in range(first, len(values) + 1):
                cut = msgspec.structs.replace(handle.states["s"], first=first, count=end - first)
                part = OperatorStateBackend.restore(
                    [msgspec.structs.replace(handle, states={"s": cut})]
                )
                again = restored(part)  # also what nobody asked for
                for one in (part, again):
                    assert list_state(one, "s", element_type).get() == values[first:end]

    @SAMPLE
    def test_no_elements_are_none(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        assert (state.get(), len(state)) == ([], 0)
        again = list_state(restored(backend), "s", element_type)
        assert (again.get(), len(again)) == ([], 0)
        again.add_all([])
        again.update([])
        assert again.get() == []

    @PYTHON
    def test_a_column_has_several_chunks(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        for value in values:
            state.add_all([value])
        assert len(state.chunks()) == len(values)
        assert state.get() == values
        assert list_state(restored(backend, backend), "s", element_type).get() == values * 2

    @SAMPLE
    def test_slices_of_a_column_are_decoded(self, element_type: Any, values: list[Any]) -> None:
        serializer = serializer_of(element_type, {})
        (array,) = serializer.encode(values * 2)
        for first in range(len(array)):
            chunks = [array[first:], array[:0], array[:first]]
            column = pa.chunked_array(chunks, serializer.storage_type)
            again = (values * 2)[first:] + (values * 2)[:first]
            assert serializer.decode(column) == again

    def test_a_hundred_thousand_structs_come_back(self) -> None:
        values = [Point(n) for n in range(100_000)]
        backend = OperatorStateBackend()
        list_state(backend, "s", Point).add_all(values)
        assert list_state(restored(backend), "s", Point).get() == values


class TestElementsAreValues:
    @pytest.mark.parametrize("mode", [list_state, union_state])
    @PYTHON
    def test_changing_what_was_added_or_got_changes_nothing(
        self, element_type: Any, values: list[Any], mode: Any
    ) -> None:
        state = mode(OperatorStateBackend(), "s", element_type)
        mine = copy.deepcopy(values)
        state.add_all(mine)
        state.get().clear()
        for value in [*mine, *state.get()]:
            _change(value)
        assert state.get() == values

    def test_what_get_returned_from_an_arrow_state_may_be_changed(self) -> None:
        state = list_state(OperatorStateBackend(), "s", pa.struct({"a": pa.list_(pa.int64())}))
        state.add({"a": [1]})
        (value,) = state.get()
        value["a"].append(2)
        value["b"] = 1
        assert state.get() == [{"a": [1]}]


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _change(value: Any) -> None:
    if isinstance(value, dict | set | list):
        value.clear()
    elif isinstance(value, Event):
        value.tags.append("changed")
        value.note = "changed"
    elif isinstance(value, Node):
        value.value = -1
    elif isinstance(value, Order):
        value.lines.append("changed")
    elif isinstance(value, Circle):
        value.radius = -1.0
    elif isinstance(value, Plain):
        value.content = "changed"


class SubOrder(Order):
    pass


class SubNode(Node):
    more: int = 0


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)

WRONG: dict[str, tuple[Any, Any]] = {
    "int is no str": (str, 1),
    "bytes are no str": (str, b"a"),
    "a lone surrogate is no text": (str, "a\ud800"),
    "a str is no bytes": (bytes, "a"),
    "a str is no int": (int, "1"),
    "a fraction is no int": (int, 1.5),
    "a bool is no int": (int, True),
    "2**63 is no int": (int, 2**63),
    "-2**63-1 is no int": (int, -(2**63) - 1),
    "a str is no float": (float, "nan"),
    "an int is no bool": (bool, 1),
    "another class": (Point, Pair(1)),
    "a dict is no struct": (Point, {"x": 1}),
    "a subclass of a struct": (Node, SubNode(1)),
    "a subclass of a dataclass": (Order, SubOrder(1)),
    "another type in a field": (Point, Point("1")),  # type: ignore[arg-type]
    "another type in a nested field": (Event, Event(1, NOON, Pair(1))),  # type: ignore[arg-type]
    "None in a field": (Point, Point(None)),  # type: ignore[arg-type]
    "more than 64 bits in a field": (Point, Point(2**64)),
    "less than 64 bits in a field": (Point, Point(-(2**63) - 1)),
    "a lone surrogate in a field": (Pair, Pair(1, "\ud800")),
    "a lone surrogate in a key": (dict[str, int], {"\ud800": 1}),
    "another type in a dataclass": (Order, Order("1")),  # type: ignore[arg-type]
    "none of a union": (Circle | Square, Point(1)),
    "another type in a list": (list[float], ["1.5"]),
    "another type in a dict": (dict[str, int], {"a": "1"}),
    "too few in a tuple": (tuple[int, str], (1,)),
    "no enum": (Color, "red"),
    "a datetime is no date": (dt.date, NOON),
    "what msgspec does not know": (Any, object()),
    "what contains itself": (list[Any], RECURSIVE),
    "another class than that which is pickled": (Pickled(Plain), {"a": 1}),
    "what can't be pickled": (Pickled(), lambda: None),
}


GOOD: dict[str, Any] = {str(one): values[0] for one, values in PYTHON_VALUES.values()}


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
        assert dict(broadcast_state(restored(backend), "b", (int, element_type)).entries()) == {
            1: good
        }

    @SAMPLE
    def test_none_is_no_element_anywhere(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        state.add_all(values)
        with pytest.raises(InvalidRequestError):
            state.add(None)
        nothing: Any
        for nothing in ([*values, None], [None], (None,), None, 5):
            with pytest.raises(InvalidRequestError):
                state.add_all(nothing)
            with pytest.raises(InvalidRequestError):
                state.update(nothing)
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
    def test_arrow_data_is_refused_where_elements_are_objects(
        self, element_type: Any, values: Any
    ) -> None:
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
class WithAnything:
    content: Plain


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
    """Whose notion of equality is that of its users."""

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


class TestElementsThatWouldLoseSomething:
    @pytest.mark.parametrize(("element_type", "value"), LOSSES.values(), ids=LOSSES)
    def test_they_are_refused(self, element_type: Any, value: Any) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        with pytest.raises(InvalidRequestError, match=r"'s'.*come back as another one"):
            state.add(value)
        with pytest.raises(InvalidRequestError, match="come back as another one"):
            state.add_all([value])
        assert len(state) == 0
        entries = broadcast_state(backend, "b", (int, element_type))
        with pytest.raises(InvalidRequestError, match="come back as another one"):
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
        (again,) = list_state(restored(backend), "s", Holder).get()
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
    def test_also_where_objects_are_unequal_to_their_copies(
        self, value: Unequal, expected: Any
    ) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Unequal).add(value)
        (again,) = list_state(restored(backend), "s", Unequal).get()
        assert again.content() == expected

    def test_keys_that_are_objects_are_compared_too(self) -> None:
        element_type = dict[Point, float]
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        state.add({Point(1, 2): 3})
        with pytest.raises(InvalidRequestError, match="come back as another one"):
            state.add({Point(1): 2**53 + 1})
        assert list_state(restored(backend), "s", element_type).get() == [{Point(1, 2.0): 3.0}]


def with_a_full_stack(call: Callable[[], object]) -> None:
    """Call it where 50 calls through C are left, each of which takes at most 3 levels of the limit."""

    def room(levels: int) -> int:
        try:
            return next(map(room, (levels + 1,)))
        except RecursionError:
            return levels

    def nested(levels: int) -> object:
        return next(map(nested, (levels - 1,))) if levels else call()

    limit = sys.getrecursionlimit()
    if sys.version_info >= (3, 12):
        # C has a limit of its own there, which is to be the nearer one.
        sys.setrecursionlimit(1_000_000)
    try:
        nested(room(0) - 50)
    finally:
        sys.setrecursionlimit(limit)


class TestErrorsOfAClassItself:
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

    def test_a_stored_element_can_not_be_read_then(self) -> None:
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

    def test_elements_that_are_too_deep_for_the_stack_are_still_there_for_another(self) -> None:
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


class TestTypes:
    @pytest.mark.parametrize(
        "element_type",
        [None, 5, "int", Plain, WithAnything, complex, Pickled, object(), list[Plain]],
    )
    def test_what_nobody_can_store_is_refused(self, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError, match="'s'"):
            ListStateDescriptor("s", element_type)
        with pytest.raises(InvalidRequestError, match="'s'"):
            MapStateDescriptor("s", int, element_type)

    @pytest.mark.parametrize("element_type", [Point, Pickled(), int], ids=str)
    def test_defaults_are_for_structs_of_arrow(self, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError, match="default"):
            ListStateDescriptor("s", element_type, defaults={"x": 1})

    @pytest.mark.parametrize("defaults", [{"b": 1}, {"a": "x"}, {"a": None}], ids=str)
    def test_a_default_has_to_fit_its_field(self, defaults: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError):
            ListStateDescriptor("s", pa.struct({"a": pa.int64()}), defaults=defaults)

    @SAMPLE
    def test_descriptors_pickle_and_compare(self, element_type: Any, values: list[Any]) -> None:
        for descriptor in (
            ListStateDescriptor("s", element_type),
            MapStateDescriptor("s", element_type, element_type),
        ):
            again = pickle.loads(pickle.dumps(descriptor))
            assert again == descriptor
            assert hash(again) == hash(descriptor)
            assert repr(again) == repr(descriptor)
        assert descriptor != ListStateDescriptor("s", element_type)
        assert ListStateDescriptor("s", element_type) != ListStateDescriptor("t", element_type)
        state = list_state(OperatorStateBackend(), "s", element_type)
        state.add_all(values)
        assert ListStateDescriptor("s", element_type).serializer == state.serializer

    def test_native_types_are_arrows(self) -> None:
        for native, arrow in (
            (str, pa.string()),
            (bytes, pa.binary()),
            (int, pa.int64()),
            (float, pa.float64()),
            (bool, pa.bool_()),
        ):
            assert ListStateDescriptor("s", native) == ListStateDescriptor("s", arrow)

    def test_another_class_with_the_same_name_of_state_is_refused(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Point).add(Point(1))
        with pytest.raises(StateMigrationError, match=r"Point.*Pair"):
            list_state(backend, "s", Pair)
        assert list_state(backend, "s", Point).get() == [Point(1)]


class TestManyBytes:
    def test_single_elements_of_a_few_megabytes_are_one_chunk(self) -> None:
        text = "größe" * 200_000
        backend = OperatorStateBackend()
        state = list_state(backend, "s", str)
        for _ in range(8):
            state.add(text)
        assert len(state.chunks()) == 1
        assert list_state(restored(backend), "s", str).get() == [text] * 8

    def test_chunks_and_single_elements_keep_their_order(self) -> None:
        state = list_state(OperatorStateBackend(), "s", Point)
        state.add(Point(1))
        state.add_all([Point(2), Point(3)])
        state.add(Point(4))
        assert [len(chunk) for chunk in state.chunks()] == [1, 2, 1]
        assert [point.x for point in state] == [1, 2, 3, 4]


class TestStored:
    @SAMPLE
    def test_the_same_type_reads_it_as_it_is(self, element_type: Any, values: list[Any]) -> None:
        serializer = serializer_of(element_type, {})
        again = serializer_of(element_type, {})
        compatibility = again.compatibility(serializer.stored, serializer.storage_type)
        assert compatibility.outcome is Outcome.AS_IS

    @pytest.mark.parametrize("stored", [int, Point, Pickled()], ids=str)
    @pytest.mark.parametrize("wanted", [int, Point, Pickled()], ids=str)
    def test_another_kind_of_serializer_is_incompatible(self, stored: Any, wanted: Any) -> None:
        if stored == wanted:
            return
        backend = OperatorStateBackend()
        list_state(backend, "s", stored)
        with pytest.raises(StateMigrationError, match="'s'"):
            list_state(restored(backend), "s", wanted)

    def test_a_column_that_does_not_say_how_it_was_stored_is_corrupt(self) -> None:
        for content in (b"", b"\xc1", msgspec.msgpack.encode({"kind": "other", "name": "x"})):
            stored = pa.field(
                "element", pa.large_binary(), metadata={b"holdfast.serializer": content}
            )
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                stored_in(stored, "s")

    def test_bytes_that_are_no_elements_are_corrupt(self) -> None:
        column = pa.chunked_array([[b"\xc1"]], pa.large_binary())
        for element_type in (Point, Pickled()):
            with pytest.raises(CheckpointCorruptedError):
                serializer_of(element_type, {}).decode(column)


class Bomb:
    """Its pickle leaves a mark where it is loaded."""

    def __reduce__(self) -> Any:
        return _explode, ()


LOADED: list[str] = []


def _explode() -> None:
    LOADED.append("loaded")


class TestPickle:
    def test_it_is_never_loaded_unless_the_job_says_so(self) -> None:
        LOADED.clear()
        backend = OperatorStateBackend()
        list_state(backend, "s", Pickled()).add(Bomb())
        list_state(backend, "other").add(1)
        broadcast_state(backend, "b", (int, Pickled()), {1: Bomb()})
        for _ in range(3):
            backend = restored(backend)
            assert backend.registered_state_names() == {"s", "other"}
            assert backend.registered_broadcast_state_names() == {"b"}
            for wanted in (int, bytes, pa.large_binary(), Point, Any):
                with pytest.raises(StateMigrationError, match="'s'"):
                    list_state(backend, "s", wanted)
                with pytest.raises(StateMigrationError, match="'b'"):
                    broadcast_state(backend, "b", (int, wanted))
        assert LOADED == []
        list_state(backend, "s", Pickled()).get()
        assert LOADED == ["loaded"]

    def test_what_is_asked_for_is_loaded_when_somebody_looks(self) -> None:
        LOADED.clear()
        backend = OperatorStateBackend()
        list_state(backend, "s", Pickled()).add(Bomb())
        backend = restored(backend)
        state = list_state(backend, "s", Pickled())
        assert len(state) == 1
        snapshot_of(backend)
        assert LOADED == []

    def test_a_class_that_is_gone_is_an_error_only_for_who_reads_it(self) -> None:
        backend = OperatorStateBackend()
        globals()["Gone"] = type("Gone", (), {"__module__": __name__, "__qualname__": "Gone"})
        list_state(backend, "s", Pickled()).add(globals()["Gone"]())
        list_state(backend, "other").add(1)
        del globals()["Gone"]
        for _ in range(3):
            backend = restored(backend)
        assert list_state(backend, "other").get() == [1]
        with pytest.raises(CheckpointCorruptedError, match="Gone"):
            list_state(backend, "s", Pickled()).get()
