"""Types that change between two runs of a job: what is kept, what is refused, what is stored then.

Source:
    Flink, StateBackendMigrationTestBase: the cases of operator state.
"""

import enum
import math
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    Plain,
    backend_with,
    broadcast_state,
    list_state,
    memory_factory,
    restored,
    snapshot_of,
    union_state,
)
from hypothesis import assume, given, note
from hypothesis import strategies as st

from holdfast.backends import (
    CheckpointedFunction,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    Pickled,
)
from holdfast.backends.assignment import redistribute
from holdfast.backends.serializers import NoWayError, Outcome, change_of, serializer_of
from holdfast.backends.subtask import OperatorStateHandler
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.coordination import files_of


def migrated(
    stored: Any, wanted: Any, values: Any, defaults: dict[str, Any] | None = None
) -> list[Any]:
    """The elements as the other type, through real bytes; and again as that is stored."""
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(values)
    list_state(backend, "untouched", stored).add_all(values)
    backend = restored(backend)
    descriptor = ListStateDescriptor("s", wanted, defaults=defaults)
    result = backend.get_list_state(descriptor).get()
    assert backend.get_list_state(descriptor).get() == result
    again = restored(backend)
    assert again.get_list_state(ListStateDescriptor("s", wanted)).get() == result
    objects = values.to_pylist() if isinstance(values, pa.Array) else values
    assert list_state(again, "untouched", stored).get() == list(objects)
    return result


def refused(stored: Any, wanted: Any, values: Any = ()) -> str:
    """Why elements can't be those of the other type; they are still there as their own."""
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(values)
    backend = restored(backend)
    with pytest.raises(StateMigrationError, match="'s'") as caught:
        list_state(backend, "s", wanted)
    message = str(caught.value)
    assert serializer_of(stored, {}).name in message
    assert serializer_of(wanted, {}).name in message
    assert list_state(backend, "s", stored).get() == list(values)
    return message


def struct(**fields: Any) -> pa.StructType:
    return pa.struct(list(fields.items()))


def required(name: str, type: Any) -> pa.Field:
    return pa.field(name, type, nullable=False)


class TestArrowStructs:
    STORED = struct(a=pa.int64(), b=pa.string())
    ROWS: list[Any] = [{"a": 1, "b": "x"}, {"a": None, "b": None}]  # noqa: RUF012  # not changed

    def test_a_field_may_be_added_that_can_be_missing(self) -> None:
        wanted = struct(a=pa.int64(), b=pa.string(), c=pa.list_(pa.int8()))
        assert migrated(self.STORED, wanted, self.ROWS) == [{**row, "c": None} for row in self.ROWS]

    @pytest.mark.parametrize(
        ("type", "default"),
        [
            (pa.int64(), 7),
            (pa.string(), ""),
            (pa.list_(pa.int8()), [1]),
            (struct(x=pa.int8()), {"x": 1}),
            (pa.map_(pa.string(), pa.int8()), [("a", 1)]),
            (pa.decimal128(5, 2), Decimal("1.50")),
            (pa.dictionary(pa.int32(), pa.string()), "a"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("nullable", [True, False])
    def test_a_field_with_a_default_may_be_added(
        self,
        type: Any,
        default: Any,
        nullable: bool,  # noqa: FBT001
    ) -> None:
        wanted = pa.struct([*self.STORED, pa.field("c", type, nullable=nullable)])
        rows = migrated(self.STORED, wanted, self.ROWS, {"c": default})
        assert rows == [{**row, "c": default} for row in self.ROWS]

    def test_a_field_that_must_be_there_needs_a_default(self) -> None:
        wanted = pa.struct([*self.STORED, required("c", pa.int64())])
        assert "c is new" in refused(self.STORED, wanted, self.ROWS)

    def test_a_default_is_not_for_a_field_further_down(self) -> None:
        stored = struct(c=pa.int64(), d=struct(x=pa.int64()))
        wanted = struct(c=pa.int64(), d=pa.struct([("x", pa.int64()), required("c", pa.int64())]))
        backend = OperatorStateBackend()
        list_state(backend, "s", stored)
        with pytest.raises(StateMigrationError, match=r"d\.c is new"):
            restored(backend).get_list_state(ListStateDescriptor("s", wanted, defaults={"c": 1}))

    def test_fields_may_be_removed(self) -> None:
        rows = migrated(self.STORED, struct(b=pa.string()), self.ROWS)
        assert rows == [{"b": "x"}, {"b": None}]
        assert migrated(self.STORED, pa.struct([]), self.ROWS) == [{}, {}]

    def test_all_fields_may_be_others(self) -> None:
        rows = migrated(self.STORED, struct(c=pa.int8()), self.ROWS)
        assert rows == [{"c": None}, {"c": None}]
        assert migrated(pa.struct([]), struct(c=pa.int8()), [{}, {}]) == rows

    def test_fields_may_come_in_another_order(self) -> None:
        wanted = pa.struct(list(self.STORED)[::-1])
        backend = OperatorStateBackend()
        list_state(backend, "s", self.STORED).add_all(self.ROWS)
        state = list_state(restored(backend), "s", wanted)
        assert state.get() == self.ROWS
        assert [list(row) for row in state.get()] == [["b", "a"]] * 2

    def test_what_could_be_missing_can_not_become_required(self) -> None:
        wanted = pa.struct([required("a", pa.int64()), ("b", pa.string())])
        assert "a could be missing" in refused(self.STORED, wanted, self.ROWS)
        assert migrated(wanted, self.STORED, self.ROWS[:1]) == self.ROWS[:1]

    def test_two_fields_of_one_name_are_refused(self) -> None:
        twice = pa.struct([("a", pa.int64()), ("a", pa.int64())])
        with pytest.raises(NoWayError, match="two fields"):
            change_of(twice, self.STORED, {})
        with pytest.raises(NoWayError, match="two fields"):
            change_of(self.STORED, twice, {})

    def test_slices_with_nulls_inside_of_everything(self) -> None:
        inner = struct(x=pa.int8(), y=pa.string())
        stored = struct(
            l=pa.list_(inner), m=pa.map_(pa.string(), inner), s=inner, f=pa.list_(pa.int8(), 2)
        )
        wide = struct(y=pa.large_string(), z=pa.bool_(), x=pa.float64())
        wanted = struct(
            s=wide,
            m=pa.map_(pa.large_string(), wide),
            l=pa.large_list(wide),
            f=pa.list_(pa.int64()),
        )
        one = {"x": 1, "y": "a"}
        rows: list[Any] = [
            {"l": [one], "m": [("dropped", one)], "s": one, "f": [9, 9]},
            {"l": [one, None, {"x": None, "y": None}], "m": [("k", one), ("", None)], "s": None}
            | {"f": [1, None]},
            {"l": None, "m": None, "s": {"x": -128, "y": ""}, "f": None},
            {"l": [], "m": [], "s": one, "f": [3, 4]},
            {"l": [one], "m": [("dropped", one)], "s": one, "f": [9, 9]},
        ]
        array = pa.array(rows, stored)
        for start in range(5):
            for length in range(6 - start):
                part = array[start : start + length]
                expected = [_wider(row) for row in rows[start : start + length]]
                assert migrated(stored, wanted, part) == expected
                change = change_of(stored, wanted, {})  # the offsets of a slice, not of a file
                result = change(part)
                result.validate(full=True)
                assert result.to_pylist() == expected


def _wider(row: dict[str, Any]) -> dict[str, Any]:
    def inner(one: Any) -> Any:
        return one and {"y": one["y"], "z": None, "x": one["x"]}

    return {
        "s": inner(row["s"]),
        "m": row["m"] and [(key, inner(one)) for key, one in row["m"]],
        "l": row["l"] and [inner(one) for one in row["l"]],
        "f": row["f"],
    }


INTS = {
    str(one): (one, low, high)
    for bits in (8, 16, 32, 64)
    for one, low, high in (
        (getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        (getattr(pa, f"uint{bits}")(), 0, 2**bits - 1),
    )
}
FLOATS = {
    "halffloat": (pa.float16(), 11),
    "float": (pa.float32(), 24),
    "double": (pa.float64(), 53),
}


class TestArrowNumbers:
    @pytest.mark.parametrize("stored", INTS)
    @pytest.mark.parametrize("wanted", INTS)
    def test_integers_become_others_that_hold_all_of_them(self, stored: str, wanted: str) -> None:
        one, low, high = INTS[stored]
        other, least, most = INTS[wanted]
        if least <= low and high <= most:
            assert migrated(one, other, [low, 0, high]) == [low, 0, high]
        else:
            assert "does not hold all" in refused(one, other, [1])

    @pytest.mark.parametrize("stored", INTS)
    @pytest.mark.parametrize("wanted", FLOATS)
    def test_integers_become_floats_that_are_exact(self, stored: str, wanted: str) -> None:
        one, low, high = INTS[stored]
        other, bits = FLOATS[wanted]
        if max(-low, high + 1) <= 2**bits:
            values = [low, 0, high, high - 1]
            assert migrated(one, other, values) == values
        else:
            refused(one, other, [1])

    @pytest.mark.parametrize("stored", FLOATS)
    @pytest.mark.parametrize("wanted", [*FLOATS, "int64"])
    def test_floats_become_wider_ones_only(self, stored: str, wanted: str) -> None:
        one, bits = FLOATS[stored]
        other, more = FLOATS.get(wanted, (pa.int64(), 0))
        if bits <= more:
            assert migrated(one, other, [1.5, -0.25]) == [1.5, -0.25]
        else:
            refused(one, other, [1.5])

    @pytest.mark.parametrize(
        ("wanted", "fits"),
        [
            (pa.decimal128(5, 2), True),
            (pa.decimal128(6, 2), True),
            (pa.decimal128(6, 3), True),
            (pa.decimal256(76, 2), True),
            (pa.decimal128(5, 3), False),
            (pa.decimal128(4, 2), False),
            (pa.decimal128(9, 1), False),
            (pa.float64(), False),
            (pa.int64(), False),
            (pa.string(), False),
        ],
        ids=str,
    )
    def test_decimals_keep_their_digits(
        self,
        wanted: Any,
        fits: bool,  # noqa: FBT001
    ) -> None:
        values = [Decimal("-999.99"), Decimal("0.01")]
        if fits:
            assert migrated(pa.decimal128(5, 2), wanted, values) == values
        else:
            refused(pa.decimal128(5, 2), wanted, values)


CATEGORY = pa.dictionary(pa.int32(), pa.string())


class TestOtherArrowTypes:
    @pytest.mark.parametrize(
        ("stored", "wanted", "values"),
        [
            (pa.string(), pa.large_string(), ["", "größe"]),
            (pa.string_view(), pa.string(), ["", "a" * 20]),
            (pa.string(), pa.string_view(), ["", "a" * 20]),
            (pa.binary(), pa.large_binary(), [b"", b"\xff"]),
            (CATEGORY, pa.string(), ["a", "b", "a"]),
            (CATEGORY, pa.large_string(), ["a", "b", "a"]),
            (CATEGORY, pa.string_view(), ["a", "b", "a"]),
            (pa.dictionary(pa.int32(), pa.int32()), pa.float64(), [1, 2, 1]),
            (pa.list_(pa.int8()), pa.list_(pa.int64()), [[1, None], []]),
            (pa.list_(pa.int8()), pa.large_list(pa.int8()), [[1, None], []]),
            (pa.list_(pa.int8(), 2), pa.list_(pa.int8()), [[1, None], [2, 3]]),
            (pa.list_(pa.list_(pa.int8())), pa.list_(pa.list_(pa.int16())), [[[1], None], []]),
            (
                pa.map_(pa.int8(), pa.string()),
                pa.map_(pa.int16(), pa.large_string()),
                [[(1, "a"), (2, None)], []],
            ),
        ],
        ids=str,
    )
    def test_what_holds_all_is_taken(self, stored: Any, wanted: Any, values: list[Any]) -> None:
        assert migrated(stored, wanted, values) == values

    @pytest.mark.parametrize(
        ("stored", "wanted"),
        [
            (pa.large_string(), pa.string()),
            (pa.large_list(pa.int8()), pa.list_(pa.int8())),
            (pa.list_(pa.int8()), pa.list_(pa.int8(), 2)),
            (pa.list_(pa.int64()), pa.list_(pa.int8())),
            (pa.list_(pa.int64()), pa.int64()),
            (pa.int64(), pa.list_(pa.int64())),
            (pa.list_(pa.int8()), pa.list_(pa.field("item", pa.int8(), nullable=False))),
            (
                pa.map_(pa.string(), pa.int8()),
                pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
            ),
            (pa.map_(pa.string(), pa.int8()), struct(a=pa.int8())),
            (pa.string(), pa.binary()),
            (pa.binary(), pa.string()),
            (pa.string(), pa.int64()),
            (pa.int64(), pa.string()),
            (pa.int64(), pa.bool_()),
            (pa.bool_(), pa.int64()),
            (pa.int64(), pa.timestamp("us")),
            (pa.timestamp("us"), pa.int64()),
            (pa.timestamp("us"), pa.timestamp("ms")),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
            (pa.date32(), pa.timestamp("us")),
            (struct(a=pa.int64()), pa.int64()),
            (pa.string(), CATEGORY),
        ],
        ids=str,
    )
    def test_what_need_not_hold_all_is_refused(self, stored: Any, wanted: Any) -> None:
        refused(stored, wanted)

    @pytest.mark.parametrize(
        ("stored", "wanted", "at"),
        [
            (struct(a=struct(b=pa.string())), struct(a=struct(b=pa.int8())), "a.b "),
            (pa.list_(pa.string()), pa.list_(pa.int8()), "[] "),
            (struct(a=pa.list_(pa.string())), struct(a=pa.list_(pa.int8())), "a[] "),
            (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), "[key] "),
            (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.bool_()), "[item] "),
        ],
        ids=str,
    )
    def test_the_message_says_where(self, stored: Any, wanted: Any, at: str) -> None:
        assert at in refused(stored, wanted)


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((one, st.integers(low, high)) for one, low, high in INTS.values()),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=3)),
    (pa.large_string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(5, 2), st.decimals("-999", "999", places=2)),
    (pa.decimal128(8, 3), st.decimals("-999", "999", places=3)),
    (CATEGORY, st.sampled_from("abc")),
    (pa.null(), st.none()),
]
LEAF_VALUES = dict(LEAVES)
leaf_types = st.sampled_from([one for one, _ in LEAVES])


def _field(name: str, type: pa.DataType, *, nullable: bool) -> pa.Field:
    return pa.field(name, type, nullable=nullable or pa.types.is_null(type))


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(_field, st.sampled_from("abcd"), types, nullable=st.booleans())
    return st.lists(field, max_size=4, unique_by=lambda one: one.name).map(pa.struct)


def _nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    item = st.builds(_field, st.just("item"), types, nullable=st.booleans())
    keys = st.sampled_from([pa.int8(), pa.int64(), pa.string()])
    return (
        _fields(types)
        | item.map(pa.list_)
        | item.map(pa.large_list)
        | item.map(lambda field: pa.list_(field, 2))
        | st.builds(pa.map_, keys, item.map(lambda field: field.with_name("value")))
    )


all_types = st.recursive(leaf_types, _nested, max_leaves=5)


@st.composite
def changed(draw: st.DrawFn, stored: pa.DataType) -> pa.DataType:
    """Some type; most of the time one that is like the given one."""
    if draw(st.integers(0, 9)) == 0:
        return draw(all_types)
    if pa.types.is_struct(stored):
        fields = [
            _field(
                field.name,
                draw(changed(field.type)),
                nullable=field.nullable or draw(st.booleans()),
            )
            for field in stored
            if draw(st.integers(0, 3))
        ]
        if draw(st.booleans()):
            fields.append(_field("new", draw(leaf_types), nullable=draw(st.integers(0, 3)) > 0))
        return pa.struct(draw(st.permutations(fields)))
    if pa.types.is_map(stored):
        item = pa.field("value", draw(changed(stored.item_type)), nullable=True)
        key = draw(changed(stored.key_type).filter(lambda one: not pa.types.is_null(one)))
        return pa.map_(key, item)
    if isinstance(stored, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        item = _field("item", draw(changed(stored.value_type)), nullable=draw(st.booleans()))
        return draw(st.sampled_from([pa.list_, pa.large_list]))(item)
    return draw(leaf_types if draw(st.booleans()) else st.just(stored))


def values_of(one: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    found: st.SearchStrategy[Any]
    if pa.types.is_struct(one):
        found = st.fixed_dictionaries(
            {field.name: values_of(field.type, nullable=field.nullable) for field in one}
        )
    elif pa.types.is_map(one):
        items = values_of(one.item_type, nullable=one.item_field.nullable)
        entries = st.dictionaries(LEAF_VALUES[one.key_type], items, max_size=2)
        found = entries.map(lambda one: list(one.items()))  # as Arrow gives it back
    elif isinstance(one, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        items = values_of(one.value_type, nullable=one.value_field.nullable)
        fixed = isinstance(one, pa.FixedSizeListType)
        found = st.lists(items, min_size=2 if fixed else 0, max_size=2)
    else:
        found = LEAF_VALUES[one]
    return st.none() | found if nullable and not pa.types.is_null(one) else found


def expected(value: Any, stored: pa.DataType, wanted: pa.DataType) -> Any:
    """What a value is in a type that holds it."""
    if value is None:
        return None
    if pa.types.is_struct(wanted):
        return {
            field.name: expected(value[field.name], stored.field(field.name).type, field.type)
            if stored.get_field_index(field.name) >= 0
            else None
            for field in wanted
        }
    if pa.types.is_map(wanted):
        return [
            (
                expected(key, stored.key_type, wanted.key_type),
                expected(item, stored.item_type, wanted.item_type),
            )
            for key, item in value
        ]
    if isinstance(value, list):
        return [expected(one, stored.value_type, wanted.value_type) for one in value]
    return value


def _is_valid(array: pa.Array) -> bool:
    """Whether Arrow takes the array for whole: it fills null structs with indices of empty dictionaries."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@given(data=st.data(), stored=all_types, start=st.integers(0, 3))
def test_a_change_keeps_every_value_or_is_refused(
    data: st.DataObject, stored: pa.DataType, start: int
) -> None:
    wanted = data.draw(changed(stored))
    note(f"{stored} -> {wanted}")
    values = data.draw(st.lists(values_of(stored), max_size=6))
    try:
        change = change_of(stored, wanted, {})
    except NoWayError:
        return
    array = pa.array(values, stored)[start:]
    assume(_is_valid(array))
    result = change(array)
    assert result.type.equals(wanted)
    result.validate(full=True)
    assert result.to_pylist() == [expected(value, stored, wanted) for value in values[start:]]


@given(data=st.data(), stored=all_types)
def test_a_state_is_migrated_or_stays_as_it_was(data: st.DataObject, stored: pa.DataType) -> None:
    wanted = data.draw(changed(stored))
    values = [one for one in data.draw(st.lists(values_of(stored), max_size=4)) if one is not None]
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(pa.array(values, stored))
    backend = restored(backend)
    with suppress(StateMigrationError):
        state = list_state(backend, "s", wanted)
        assert state.get() == [expected(value, stored, wanted) for value in values]
        assert list_state(restored(backend), "s", wanted).get() == state.get()
        return
    assert list_state(backend, "s", stored).get() == values


# MessagePack. Classes of one name and different fields, as they are in two versions of a program.


def message(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct("Message", fields, module=__name__, **options)


V1 = message(("a", int), ("b", str))


class RedOrBlue(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Red(enum.Enum):
    RED = "red"


class TypedV1(TypedDict):
    a: int


class TypedV2(TypedDict, total=False):
    a: int
    b: str


class NamedV1(NamedTuple):
    a: int
    b: int


class NamedOther(NamedTuple):
    b: int
    a: int


class NamedBetween(NamedTuple):
    a: int
    new: int = 0
    b: int = 0


class NamedMore(NamedTuple):
    a: float
    b: int
    new: int = 0


class One(msgspec.Struct, tag="one"):
    a: int


class Two(msgspec.Struct, tag="two"):
    b: str


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int


class OnlyX(msgspec.Struct, frozen=True):
    x: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


NODE = """
import msgspec
class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None
    children: "list[Node]" = []
"""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes types that refer to themselves, with a field more; each in a module of its own."""

    def make(field: str = "") -> Any:
        module = ModuleType(f"program_{uuid.uuid4().hex}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(f"{NODE}    {field}", vars(module))
        return module.Node

    return make


class TestMessagePack:
    @pytest.mark.parametrize(
        ("stored", "wanted", "values", "expected"),
        [
            (V1, message(("a", int), ("b", str), ("c", int, 7)), [(1, "x")], [(1, "x", 7)]),
            (
                V1,
                message(("c", list[int], []), ("b", str), ("a", int), kw_only=True),
                [(1, "x")],
                [{"a": 1, "b": "x", "c": []}],
            ),
            (V1, message(("a", int)), [(1, "x")], [(1,)]),
            (V1, message(), [(1, "x")], [()]),
            (V1, message(("a", float), ("b", str)), [(1, "x")], [(1.0, "x")]),
            (V1, message(("a", int | None), ("b", str | None)), [(1, "x")], [(1, "x")]),
            (V1, message(("a", int | str), ("b", Any)), [(1, "x")], [(1, "x")]),
            (message(("a", RedOrBlue)), message(("a", str)), [(RedOrBlue.RED,)], [("red",)]),
            (message(("a", Red)), message(("a", RedOrBlue)), [(Red.RED,)], [(RedOrBlue.RED,)]),
            (message(("a", One)), message(("a", One | Two)), [(One(1),)], [(One(1),)]),
            (
                message(("a", int, 5), omit_defaults=True),
                message(("a", Any, 5), omit_defaults=True),
                [(1,), ()],
                [(1,), ()],
            ),
            (message(("a", list[int])), message(("a", list[float])), [([1],)], [([1.0],)]),
            (message(("a", list[int])), message(("a", tuple[int, ...])), [([1],)], [((1,),)]),
            (
                message(("a", dict[str, int])),
                message(("a", dict[str, int | None])),
                [({"k": 1},)],
                [({"k": 1},)],
            ),
            (
                message(("a", int), array_like=True),
                message(("a", int), ("b", str, "new"), array_like=True),
                [(1,)],
                [(1, "new")],
            ),
            (
                message(("a", int), ("b", str), array_like=True),
                message(("a", int), array_like=True),
                [(1, "x")],
                [(1,)],
            ),
        ],
    )
    def test_structs_change_as_msgspec_allows(
        self, stored: Any, wanted: Any, values: list[Any], expected: list[Any]
    ) -> None:
        results = migrated(stored, wanted, [stored(*one) for one in values])
        assert results == [
            wanted(**one) if isinstance(one, dict) else wanted(*one) for one in expected
        ]
        assert all(type(one) is wanted for one in results)

    @pytest.mark.parametrize(
        ("stored", "wanted", "values", "expected"),
        [
            (Red, RedOrBlue, [Red.RED], [RedOrBlue.RED]),
            (One, One | Two, [One(1)], [One(1)]),
            (One | Two, One | Two | None, [Two("x")], [Two("x")]),
            (list[int], list[float], [[1], []], [[1.0], []]),
            (list[int], list[int | str], [[1]], [[1]]),
            (set[int], list[int], [{1}], [[1]]),
            (tuple[int, int], list[int], [(1, 2)], [[1, 2]]),
            (tuple[int, str], tuple[float, Any], [(1, "a")], [(1.0, "a")]),
            (TypedV1, TypedV2, [{"a": 1}], [{"a": 1}]),
            (TypedV1, dict[str, int], [{"a": 1}], [{"a": 1}]),
            (Strict, dict[str, int], [Strict(1)], [{"a": 1}]),
            (dict[str, int], dict[str, float], [{"a": 1}], [{"a": 1.0}]),
            (list[int], Any, [[1]], [[1]]),
            (NamedV1, NamedMore, [NamedV1(1, 2)], [NamedMore(1.0, 2)]),
            (NamedV1, tuple[int, int], [NamedV1(1, 2)], [(1, 2)]),
            (tuple[int, int], NamedV1, [(1, 2)], [NamedV1(1, 2)]),
            (NamedV1, list[int], [NamedV1(1, 2)], [[1, 2]]),
        ],
        ids=str,
    )
    def test_other_types_become_wider(
        self, stored: Any, wanted: Any, values: list[Any], expected: list[Any]
    ) -> None:
        assert migrated(stored, wanted, values) == expected

    @pytest.mark.parametrize(
        ("stored", "wanted", "why"),
        [
            (V1, message(("a", int), ("b", str), ("c", int)), "c is new"),
            (V1, message(("a", str), ("b", str)), "a was integer"),
            (V1, message(("a", int), forbid_unknown_fields=True), "b is unknown"),
            (message(("a", float)), message(("a", int)), "a was number"),
            (message(("a", int | None)), message(("a", int)), "a was null"),
            (message(("a", int, 0)), message(("a", int)), "a could be missing"),
            (message(("a", str)), message(("a", RedOrBlue)), "a could have other values"),
            (message(("a", RedOrBlue)), message(("a", Red)), "other values"),
            (message(("a", One | Two)), message(("a", One)), "type could have other values"),
            (message(("a", bytes)), message(("a", str)), "contentEncoding"),
            (message(("a", str)), message(("a", bytes)), "a was stored with contentEncoding"),
            (
                message(("a", int), array_like=True),
                message(("a", int), ("b", int), array_like=True),
                "needs more",
            ),
            (
                message(("a", int), ("b", int), array_like=True),
                message(("a", int), array_like=True, forbid_unknown_fields=True),
                "more elements",
            ),
            (message(("a", int), array_like=True), message(("a", int)), "was array"),
            (list[str], message(("a", int, 0), array_like=True), "was string"),
            (list[int], set[int], "twice"),
            (list[int], tuple[int, int], "needs more"),
            (tuple[int, str], list[int], "was string"),
            (dict[str, int], message(("a", int, 0)), "was a dict"),
            (dict[str, int], Strict, "was a dict"),
            (dict[int, str], dict[float, str], "[key] could be the same for several"),
            (dict[Point, str], dict[OnlyX, str], "the same for several that were different"),
            (dict[str, int], TypedV2, "was a dict"),
            (message(("x", dict[str, int])), message(("x", Strict)), "x was a dict"),
            (NamedV1, NamedOther, "[0] was a, and is b now"),
            (NamedV1, NamedBetween, "[1] was b, and is new now"),
            (
                message(("a", int), ("b", int), array_like=True, tag=True),
                message(("b", int), array_like=True, tag=True),
                "[1] was a, and is b now",
            ),
            (
                message(("a", str), array_like=True, tag=True),
                message(("a", str), array_like=True),
                "[0] was the tag, and is a now",
            ),
            (dict[str, str], dict[str, int], "was string"),
            (list[Any], list[int], "was anything"),
            (RedOrBlue, Red, "other values"),
            (One | Two, One, "other values"),
        ],
    )
    def test_what_msgspec_could_not_read_is_refused(
        self, stored: Any, wanted: Any, why: str
    ) -> None:
        assert why in refused(stored, wanted)

    def test_types_that_refer_to_themselves_change_too(self, node: Callable[..., Any]) -> None:
        stored = node()
        values = [stored(1, stored(2), [stored(3, stored(4))])]
        wanted = node("name: str = 'new'")
        (result,) = migrated(stored, wanted, values)
        assert result.name == result.next.name == result.children[0].next.name == "new"
        assert (result.next.value, result.children[0].next.value) == (2, 4)

    def test_what_is_wrong_in_a_type_that_refers_to_itself_is_found(
        self, node: Callable[..., Any]
    ) -> None:
        stored, wanted = node("name: str = ''"), node("name: int = 0")
        assert "name was string" in refused(stored, wanted)

    def test_types_that_misfit_in_one_place_misfit_in_the_next(self) -> None:
        # In the union the other alternative fits; behind it, alone, this one must not.
        stored = message(("a", One), ("b", One))
        assert "b.type could" in refused(stored, message(("a", One | Two), ("b", Two)))
        stored = message(("a", list[One]), ("b", list[One]))
        wanted = message(("a", list[Two | One]), ("b", list[Two]))
        assert "b[].type could" in refused(stored, wanted)

    def test_another_name_or_docstring_is_the_same_type(self) -> None:
        stored = message(("a", int))
        wanted = msgspec.defstruct("Other", [("a", int)], module=__name__)
        wanted.__doc__ = "Says more."
        assert migrated(stored, wanted, [stored(1)]) == [wanted(1)]

    def test_elements_are_stored_anew_in_the_new_form(self) -> None:
        wanted = message(("a", int), ("b", str), ("c", int, 7))
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add_all([V1(1, "x")])
        backend = restored(backend)
        (element,) = list_state(backend, "s", wanted).to_arrow().to_pylist()
        assert msgspec.msgpack.decode(element) == {"a": 1, "b": "x", "c": 7}
        handle = snapshot_of(backend)
        # Another default later: it is for what had no field, and by now all have.
        later = message(("a", int), ("b", str), ("c", int, 8))
        again = OperatorStateBackend.restore([handle])
        assert list_state(again, "s", later).get() == [later(1, "x", 7)]
        serializer = serializer_of(wanted, {})
        assert serializer.compatibility(serializer.stored, serializer.storage_type).outcome is (
            Outcome.AS_IS
        )


MODES = {"list": list_state, "union": union_state}


class TestBackend:
    """Flink's cases: each state kind, when its serializer changes."""

    @pytest.mark.parametrize("get", MODES.values(), ids=MODES)
    @pytest.mark.parametrize(
        ("stored", "wanted", "value", "expected"),
        [
            (pa.int32(), pa.int64(), 1, 1),
            (V1, message(("a", int), ("c", int, 7)), V1(1, "x"), {"a": 1, "c": 7}),
        ],
        ids=["Arrow", "MessagePack"],
    )
    def test_elements_of_lists_migrate(
        self, get: Any, stored: Any, wanted: Any, value: Any, expected: Any
    ) -> None:
        backend = OperatorStateBackend()
        get(backend, "s", stored).add(value)
        backend = restored(backend, backend)
        state: ListState = get(backend, "s", wanted)
        assert msgspec.to_builtins(state.get()) == [expected] * 2
        state.add_all(state.get())
        assert msgspec.to_builtins(get(restored(backend), "s", wanted).get()) == [expected] * 4
        with pytest.raises(StateMigrationError):
            get(backend, "s", stored)

    @pytest.mark.parametrize(
        ("stored", "wanted"),
        [
            ((pa.int32(), pa.int32()), (pa.int64(), pa.int32())),
            ((pa.int32(), pa.int32()), (pa.int32(), pa.int64())),
            ((pa.int32(), pa.int32()), (pa.int64(), pa.float64())),
        ],
        ids=["keys", "values", "both"],
    )
    def test_keys_and_values_of_maps_migrate(self, stored: Any, wanted: Any) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", stored, {1: 2, 3: 4})
        backend = restored(backend)
        state = broadcast_state(backend, "b", wanted)
        assert dict(state.entries()) == {1: 2, 3: 4}
        state.put(2**20, 2)
        again = broadcast_state(restored(backend), "b", wanted)
        assert dict(again.entries()) == {1: 2, 3: 4, 2**20: 2}

    @pytest.mark.parametrize("place", ["key", "value"])
    def test_keys_and_values_of_maps_that_can_not_migrate_are_refused(self, place: str) -> None:
        wanted = (str, int) if place == "key" else (int, str)
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (int, int), {1: 2})
        backend = restored(backend)
        with pytest.raises(StateMigrationError, match=r"'b'.*int64.*string"):
            broadcast_state(backend, "b", wanted)
        assert dict(broadcast_state(backend, "b", (int, int)).entries()) == {1: 2}

    def test_values_of_maps_get_defaults(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (int, struct(a=pa.int64())), {1: {"a": 1}})
        wanted = pa.struct([("a", pa.int64()), required("b", pa.int64())])
        descriptor = MapStateDescriptor("b", int, wanted, defaults={"b": 7})
        state = restored(backend).get_broadcast_state(descriptor)
        assert state.get(1) == {"a": 1, "b": 7}

    def test_what_is_not_asked_for_stays_as_it_was_stored(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add(V1(1, "x"))
        for _ in range(3):
            backend = restored(backend)
        assert list_state(backend, "s", V1).get() == [V1(1, "x")]

    def test_a_refused_type_leaves_the_state_for_the_next_snapshot(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add(V1(1, "x"))
        broadcast_state(backend, "b", (str, V1), {"k": V1(2, "y")})
        backend = restored(backend)
        with pytest.raises(StateMigrationError):
            list_state(backend, "s", str)
        with pytest.raises(StateMigrationError):
            broadcast_state(backend, "b", (str, int))
        again = restored(backend)
        assert list_state(again, "s", V1).get() == [V1(1, "x")]
        assert broadcast_state(again, "b", (str, V1)).get("k") == V1(2, "y")


class _LeftOutFive(msgspec.Struct, omit_defaults=True):
    a: int
    b: int = 5


class _LeftOutSix(msgspec.Struct, omit_defaults=True):
    a: int
    b: int = 6


def test_a_default_that_was_left_out_must_not_change() -> None:
    backend = OperatorStateBackend()
    list_state(backend, "s", _LeftOutFive).add(_LeftOutFive(1))
    with pytest.raises(StateMigrationError, match="b was left out"):
        list_state(restored(backend), "s", _LeftOutSix)


class _LeftOutSet(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: frozenset[int] = frozenset([0, 8])
    c: float = math.nan


class _LeftOutSetPutOtherwise(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: frozenset[int] = frozenset([8, 0])
    c: float = math.nan


class _OtherNumber(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: frozenset[int] = frozenset([0, 8])
    c: float = math.inf


class _LeftOutSetAndMore(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: frozenset[int] = frozenset([0, 8])
    c: float = math.nan
    d: int = 7


class _NotLeftOut(msgspec.Struct):
    b: frozenset[int] = frozenset([8, 0])


class _Numbered(msgspec.Struct, omit_defaults=True):
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    tags: list[str] = []
    more: Any = None


class _NumberedAndMore(msgspec.Struct, omit_defaults=True):
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    tags: list[str] = []
    more: Any = None
    new: int = 7


class _Letter(msgspec.Struct, omit_defaults=True):
    a: str = msgspec.field(default_factory=lambda: "x")
    b: float | None = math.nan


def _outcome(stored_as: Any, schema: dict[str, Any], wanted: Any) -> Outcome:
    """What becomes of elements of a class, if this was stored as the schema of its fields."""
    serializer = serializer_of(stored_as, {})
    whole = msgspec.json.decode(serializer.stored.schema)
    for name, words in schema.items():
        field = whole["$defs"][stored_as.__name__]["properties"][name]
        field.pop("leftOut", None)
        field.update(words)
    stored = msgspec.structs.replace(serializer.stored, schema=msgspec.json.encode(whole))
    return serializer_of(wanted, {}).compatibility(stored, serializer.storage_type).outcome


class TestDefaultsThatAreLeftOut:
    def test_one_class_is_one_type_whatever_order_its_sets_have(self) -> None:
        assert list(_LeftOutSet().b) != list(_LeftOutSetPutOtherwise().b)  # as in another process
        one, other = (serializer_of(c, {}).stored for c in (_LeftOutSet, _LeftOutSetPutOtherwise))
        assert one.schema.replace(b"_LeftOutSet", b"") == other.schema.replace(
            b"_LeftOutSetPutOtherwise", b""
        )
        result = migrated(_LeftOutSet, _LeftOutSetPutOtherwise, [_LeftOutSet(1), _LeftOutSet(2)])
        assert [(one.a, one.b) for one in result] == [(1, {0, 8}), (2, {0, 8})]

    def test_nan_is_nan_and_not_another_number(self) -> None:
        (one,) = migrated(_LeftOutSet, _LeftOutSetAndMore, [_LeftOutSet(1)])
        assert math.isnan(one.c)
        assert one.d == 7
        assert "c was left out" in refused(_LeftOutSet, _OtherNumber)

    def test_they_may_be_written_from_now_on(self) -> None:
        (one,) = migrated(_LeftOutSet, _NotLeftOut, [_LeftOutSet(1)])
        assert one.b == {0, 8}

    def test_what_a_factory_makes_is_always_written(self) -> None:
        backend = OperatorStateBackend()
        value = _Numbered()
        list_state(backend, "s", _Numbered).add(value)
        assert list_state(backend, "s", _Numbered).get() == [value]
        assert list_state(restored(backend), "s", _Numbered).get() == [value]
        (again,) = list_state(restored(backend), "s", _NumberedAndMore).get()
        assert (again.id, again.tags, again.new) == (value.id, [], 7)

    @pytest.mark.parametrize(
        ("stored", "schema", "wanted", "outcome"),
        [
            # As it was stored before there was one form of it.
            (_LeftOutSet, {"b": {"leftOut": [8, 0]}}, _LeftOutSetPutOtherwise, "AFTER_MIGRATION"),
            (_LeftOutSet, {"c": {"leftOut": None}}, _LeftOutSet, "AFTER_MIGRATION"),
            (_LeftOutSet, {"c": {"leftOut": None}}, _LeftOutSetAndMore, "AFTER_MIGRATION"),
            (_Letter, {"a": {"leftOut": "x"}}, _Letter, "AFTER_MIGRATION"),
            (_Letter, {"a": {"leftOut": "y"}}, _Letter, "INCOMPATIBLE"),
            (_Letter, {"b": {"leftOut": None}}, _Letter, "INCOMPATIBLE"),  # it was None
            (_LeftOutSet, {"b": {"leftOut": [8, 1]}}, _LeftOutSet, "INCOMPATIBLE"),
        ],
    )
    def test_what_was_stored_in_another_form_is_known(
        self, stored: Any, schema: dict[str, Any], wanted: Any, outcome: str
    ) -> None:
        assert _outcome(stored, schema, wanted) is Outcome[outcome]


def test_arrays_without_names_are_told_by_their_places() -> None:
    serializer = serializer_of(NamedV1, {})
    schema = msgspec.json.decode(serializer.stored.schema)
    del schema["$defs"]["NamedV1"]["names"]  # as it was stored before there were any
    stored = msgspec.structs.replace(serializer.stored, schema=msgspec.json.encode(schema))
    for wanted in (NamedV1, NamedOther, NamedMore):
        compatibility = serializer_of(wanted, {}).compatibility(stored, serializer.storage_type)
        assert compatibility.outcome is Outcome.AFTER_MIGRATION


def test_no_error_quotes_an_element() -> None:
    class Picky(msgspec.Struct):
        kind: Literal["a"]

    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", Picky))
    with pytest.raises(InvalidRequestError) as caught:
        state.add(Picky(kind="secret"))  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert "$.kind" in str(caught.value)


MOVED = [msgspec.defstruct("Moved", [("x", int)], module=module) for module in ("before", "now")]


class TestSubtasksThatAskAtDifferentTimes:
    """A type that is new to the job, but that not every subtask has asked for in each run."""

    TYPES = (
        pytest.param((struct(a=pa.int32()), struct(a=pa.int64()), {"a": 1}, {"a": 1}), id="Arrow"),
        pytest.param(
            (V1, message(("a", int), ("c", int, 7)), V1(1, "x"), {"a": 1, "c": 7}),
            id="MessagePack",
        ),
        pytest.param((*MOVED, MOVED[0](1), {"x": 1}), id="only moved"),
    )

    @staticmethod
    def half_migrated(get: Any, stored: Any, wanted: Any, value: Any) -> list[list[Any]]:
        """Handles of two subtasks, of which the second one has asked for the new type."""
        handles = []
        for number in range(2):
            backend = OperatorStateBackend()
            get(backend, "s", stored).add_all([value] * 2)
            backend = restored(backend)
            if number:
                get(backend, "s", wanted)
            handles.append([snapshot_of(backend)])
        return handles

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("parallelism", [1, 2, 3])
    @pytest.mark.parametrize("idle_runs", [0, 1, 2])
    @pytest.mark.parametrize("types", TYPES)
    def test_each_part_is_migrated_by_its_own_type(
        self, mode: str, parallelism: int, idle_runs: int, types: tuple[Any, Any, Any, Any]
    ) -> None:
        get = MODES[mode]
        stored, wanted, value, expected = types
        handles = self.half_migrated(get, stored, wanted, value)
        for _ in range(idle_runs):  # nobody asks
            parts = redistribute(handles, parallelism)
            results = [
                OperatorStateBackend.restore(part).snapshot(memory_factory()).run()
                for part in parts
            ]
            handles = [list(one.handles) for one in results]
        backends = [OperatorStateBackend.restore(p) for p in redistribute(handles, parallelism)]
        found = [msgspec.to_builtins(get(one, "s", wanted).get()) for one in backends]
        if mode == "list":
            assert list(chain.from_iterable(found)) == [expected] * 4
        else:
            assert found == [[expected] * 4] * parallelism

    def test_elements_keep_their_order(self) -> None:
        old, new = struct(a=pa.int32()), struct(a=pa.int64())
        types = (old, new, old, old, new)
        handles = [
            snapshot_of(backend_with(s=(one, [{"a": number}]))) for number, one in enumerate(types)
        ]
        state = list_state(OperatorStateBackend.restore(handles), "s", new)
        assert [one["a"] for one in state.get()] == [0, 1, 2, 3, 4]

    def test_the_rest_is_in_files_of_its_own(self, local_directory: str) -> None:
        backends = [backend_with(s=(one, [1]), t=(int, [2])) for one in (pa.int32(), pa.int64())]
        backend = restored(*backends)
        access = FileSystemCheckpointStorage(local_directory, inline_threshold=0)
        storage = access.create_checkpoint_storage("job")
        storage.initialize_base_locations_for_checkpoint()
        location = storage.initialize_location_for_checkpoint(1)
        result = backend.snapshot(location).run()
        assert [sorted(one.states) for one in result.handles] == [["s", "t"], ["s"]]
        assert result.written is None
        again = OperatorStateBackend.restore(result.handles)
        assert (list_state(again, "s").get(), list_state(again, "t").get()) == ([1, 1], [2, 2])
        uris = [one.uri for one in files_of([one.stream for one in result.handles])]
        files = [Path(uri.removeprefix("file://")) for uri in uris]
        assert len(files) == 2
        assert all(one.exists() for one in files)

    def test_a_subtask_stores_all_of_it(self) -> None:
        backend = restored(*(backend_with(s=(one, [1])) for one in (pa.int32(), pa.int64())))
        handler = OperatorStateHandler(uid="op", function=_Nothing(), backend=backend)
        state = handler.snapshot_state(1, memory_factory()).run()
        again = OperatorStateBackend.restore(state.managed_operator)
        assert list_state(again, "s").get() == [1, 1]

    def test_pickles_of_a_class_that_has_moved_stay_apart(self) -> None:
        backends = [
            backend_with(s=(Pickled(one), [value]))
            for one, value in ((Plain, Plain(1)), (dict, {1: 2}))
        ]
        backend = restored(*backends)
        assert len(backend.snapshot(memory_factory()).run().handles) == 2
        with pytest.raises(StateMigrationError, match="another class"):
            list_state(backend, "s", Pickled(Plain))
        assert list_state(backend, "s", Pickled()).get() == [Plain(1), {1: 2}]


class _Nothing(CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        pass


class TestKeys:
    STORED = msgspec.defstruct("K", [("x", int), ("y", int)], frozen=True)
    WITHOUT_Y = msgspec.defstruct("K", [("x", int)], frozen=True)

    def restored(self, *keys: Any) -> OperatorStateBackend:
        backend = OperatorStateBackend()
        entries = {key: str(key.y) for key in keys}
        broadcast_state(backend, "b", (self.STORED, str), entries)
        return restored(backend)

    def test_keys_that_would_be_the_same_are_refused(self) -> None:
        backend = self.restored(self.STORED(1, 1), self.STORED(1, 2))
        for _ in range(2):
            with pytest.raises(StateMigrationError, match=r"'b'.*keys that were different"):
                broadcast_state(backend, "b", (self.WITHOUT_Y, str))
        state = broadcast_state(restored(backend), "b", (self.STORED, str))
        assert dict(state.entries()) == {self.STORED(1, 1): "1", self.STORED(1, 2): "2"}

    def test_keys_that_stay_different_migrate(self) -> None:
        backend = self.restored(self.STORED(1, 1), self.STORED(2, 2))
        state = broadcast_state(backend, "b", (self.WITHOUT_Y, str))
        assert dict(state.entries()) == {self.WITHOUT_Y(1): "1", self.WITHOUT_Y(2): "2"}

    def test_keys_that_several_handles_share_migrate(self) -> None:
        backends = [self.restored(self.STORED(1, 1), self.STORED(2, 2)) for _ in range(2)]
        state = broadcast_state(restored(*backends), "b", (self.WITHOUT_Y, str))
        assert dict(state.entries()) == {self.WITHOUT_Y(1): "1", self.WITHOUT_Y(2): "2"}

    def test_keys_that_can_not_be_looked_up_any_more_are_refused(self) -> None:
        wanted = message(("x", int))
        with pytest.raises(StateMigrationError, match="looked up"):
            broadcast_state(self.restored(self.STORED(1, 1)), "b", (wanted, str))


def test_a_dictionary_of_nothing_inside_of_what_is_missing_becomes_texts() -> None:
    kinds = pa.dictionary(pa.int32(), pa.string())
    stored, wanted = struct(s=struct(d=kinds)), struct(s=struct(d=pa.string()))
    assert migrated(stored, wanted, [{"s": None}]) == [{"s": None}]
    assert migrated(stored, wanted, [{"s": None}, {"s": {"d": "a"}}]) == [
        {"s": None},
        {"s": {"d": "a"}},
    ]
