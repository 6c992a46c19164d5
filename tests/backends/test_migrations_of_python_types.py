"""Python types that change between two runs of a job: what is kept and what is refused."""

import enum
import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    list_state,
    restore_from,
    snapshot_of,
)
from contracts.migrations import V1, message, migrate, refusal_of

from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.serializers import serializer_of
from holdfast.errors import InvalidRequestError


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


class TypedZ(TypedDict):
    z: float


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


class PointAndMore(msgspec.Struct):
    x: int
    y: int
    z: int


class PointAndMany(msgspec.Struct):
    x: int
    y: int
    many: list[str] = []


class Record(msgspec.Struct):
    a: int


class Placed(msgspec.Struct, array_like=True):
    a: int


Positive = Annotated[int, msgspec.Meta(gt=0)]


class OnlyX(msgspec.Struct, frozen=True):
    x: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


ONLY_A: Any = message(("a", int))

NODE = """
import msgspec
class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None
    children: "list[Node]" = []
"""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes types that refer to themselves, with a field more; each in its own module."""

    def make(field: str = "") -> Any:
        module = ModuleType(f"program_{uuid.uuid4().hex}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(f"{NODE}    {field}", vars(module))
        return module.Node

    return make


class TestClasses:
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
        ],
    )
    def test_structs_change_as_msgspec_allows(
        self, stored: Any, wanted: Any, values: list[Any], expected: list[Any]
    ) -> None:
        results = migrate(stored, wanted, [stored(*arguments) for arguments in values])
        assert results == [
            wanted(**arguments) if isinstance(arguments, dict) else wanted(*arguments)
            for arguments in expected
        ]
        assert all(type(result) is wanted for result in results)

    @pytest.mark.parametrize(
        ("stored", "wanted", "values", "expected"),
        [
            (Red, RedOrBlue, [Red.RED], [RedOrBlue.RED]),
            (One, One | Two, [One(1)], [One(1)]),
            (One | Two, One | Two | None, [Two("x")], [Two("x")]),
            (list[int], list[float], [[1], []], [[1.0], []]),
            (list[int], list[int | str], [[1]], [[1]]),
            (set[int], list[int], [{1}], [[1]]),
            (TypedV1, TypedV2, [{"a": 1}], [{"a": 1}]),
            (dict[str, int], dict[str, float], [{"a": 1}], [{"a": 1.0}]),
            (list[int], Any, [[1]], [[1]]),
            (tuple[int, str], tuple[float, str], [(1, "a")], [(1.0, "a")]),
            (NamedV1, NamedMore, [NamedV1(1, 2)], [NamedMore(1.0, 2)]),
            (NamedV1, NamedOther, [NamedV1(1, 2)], [NamedOther(2, 1)]),
            (NamedV1, NamedBetween, [NamedV1(1, 2)], [NamedBetween(1, 0, 2)]),
            (dict[int, str], dict[float, str], [{1: "a"}], [{1.0: "a"}]),
            (list[int], set[int], [[1, 2]], [{1, 2}]),
            (Placed, Record, [Placed(1)], [Record(1)]),
            (One | Two, One, [One(1)], [One(1)]),
            (list[Any], list[int], [[1]], [[1]]),
        ],
        ids=str,
    )
    def test_other_types_become_wider(
        self, stored: Any, wanted: Any, values: list[Any], expected: list[Any]
    ) -> None:
        assert migrate(stored, wanted, values) == expected

    @pytest.mark.parametrize(
        ("stored", "wanted", "why"),
        [
            (V1, message(("a", int), ("b", str), ("c", int)), "c is new"),
            (V1, message(("a", str), ("b", str)), "a was int64"),
            (V1, message(("a", int)), "'b'] are gone; declare the state with dropped=['b']"),
            (V1, message(("a", int), ("c", str, "")), "declare the state with renamed={'c': 'b'}"),
            (NamedV1, TypedV1, "'b'] are gone"),
            (NamedV1, pa.struct({"a": pa.int64()}), "'b'] are gone"),
            (list[NamedV1], list[TypedV1], "['[].b'] are gone"),
            (message(("a", float)), message(("a", int)), "a was double"),
            (message(("a", int | None)), message(("a", int)), "a was nullable"),
            (message(("a", bytes)), message(("a", str)), "a was binary"),
            (message(("a", str)), message(("a", bytes)), "a was string"),
            (list[str], message(("a", int, 0), array_like=True), "was list"),
            (list[int], tuple[int, int], "was list"),
            (tuple[int, str], list[int], "was struct"),
            (tuple[int, int], NamedV1, "['a', 'b'] are new"),
            (TypedV1, dict[str, int], "was struct"),
            (dict[str, int], message(("a", int, 0)), "was map"),
            (message(("x", dict[str, int])), message(("x", Strict)), "x was map"),
            (dict[str, str], dict[str, int], "was string"),
            (message(("l", list[Point])), message(("l", list[PointAndMore])), "l[].z is new"),
            (int, message(("a", int)), "was int64"),
            (int, int | str, "was stored by Arrow"),
        ],
    )
    def test_unsupported_python_migration_is_refused(
        self, stored: Any, wanted: Any, why: str
    ) -> None:
        assert why in refusal_of(stored, wanted)

    @pytest.mark.parametrize(
        ("stored", "wanted", "value", "why"),
        [
            (message(("a", str)), message(("a", RedOrBlue)), {"a": "green"}, "not every value"),
            (message(("a", RedOrBlue)), message(("a", Red)), {"a": RedOrBlue.BLUE}, "not every"),
            (message(("a", int)), message(("a", Positive)), {"a": -1}, "not every value"),
            (message(("a", int)), message(("a", float)), {"a": 2**53 + 1}, "not every value"),
            (RedOrBlue, Red, RedOrBlue.BLUE, "not every value"),
            (list[int], set[int], [1, 1], "not every value"),
            (One | Two, One, Two("x"), "not every value"),
            (message(("a", One | Two)), message(("a", One)), {"a": Two("x")}, "not every value"),
            (message(("a", Any)), message(("a", set[int])), {"a": [1, 1]}, "can't hold an item"),
            (message(("a", Any)), message(("a", Strict)), {"a": {"b": 1}}, "not every value"),
            (
                message(("a", Any)),
                message(("a", Record)),
                {"a": {"a": 1, "b": 1}},
                "a key of a dict",
            ),
            (int | V1, int | ONLY_A, V1(1, "x"), "field 'b'; declare the state with"),
            (
                message(("a", int), tag="x"),
                message(("a", int), tag="y"),
                {"a": 1},
                "not every value",
            ),
        ],
    )
    def test_values_outside_of_the_new_type_are_refused(
        self, stored: Any, wanted: Any, value: Any, why: str
    ) -> None:
        element = stored(**value) if isinstance(value, dict) and isinstance(stored, type) else value
        assert why in refusal_of(stored, wanted, [element])
        assert migrate(stored, wanted, []) == []

    @pytest.mark.parametrize(
        ("stored", "wanted", "value", "expected", "dropped"),
        [
            (V1, message(("a", int)), V1(1, "x"), {"a": 1}, ["b"]),
            (V1, message(("a", int), forbid_unknown_fields=True), V1(1, "x"), {"a": 1}, ["b"]),
            (V1, message(), V1(1, "x"), {}, ["a", "b"]),
            (V1, message(("c", int, 7)), V1(1, "x"), {"c": 7}, ["a", "b"]),
            (NamedV1, pa.struct({"a": pa.int64()}), NamedV1(1, 2), {"a": 1}, ["b"]),
            (list[V1], list[ONLY_A], [V1(1, "x")], [{"a": 1}], ["[].b"]),
            (dict[Point, str], dict[OnlyX, str], {Point(1, 2): "a"}, {OnlyX(1): "a"}, ["[key].y"]),
            (int | V1, int | ONLY_A, V1(1, "x"), {"a": 1}, ["b"]),
        ],
    )
    def test_dropped_fields_are_lost(
        self, stored: Any, wanted: Any, value: Any, expected: Any, dropped: list[str]
    ) -> None:
        (result,) = migrate(stored, wanted, [value], dropped=dropped)
        is_dict_of_keys = isinstance(result, dict) and OnlyX(1) in result
        assert (result if is_dict_of_keys else msgspec.to_builtins(result)) == expected

    @pytest.mark.parametrize(
        ("stored", "wanted", "value", "expected", "renamed"),
        [
            (V1, message(("a", int), ("c", str, "")), V1(1, "x"), {"a": 1, "c": "x"}, {"c": "b"}),
            (list[Point], list[NamedV1], [Point(1, 2)], [(1, 2)], {"[].a": "x", "[].b": "y"}),
            (TypedV1, TypedZ, {"a": 1}, {"z": 1.0}, {"z": "a"}),
        ],
    )
    def test_renamed_fields_keep_their_values(
        self, stored: Any, wanted: Any, value: Any, expected: Any, renamed: dict[str, str]
    ) -> None:
        (result,) = migrate(stored, wanted, [value], renamed=renamed)
        assert msgspec.to_builtins(result) == expected

    def test_unknown_fields_can_not_be_renamed(self) -> None:
        with pytest.raises(InvalidRequestError, match="MessagePack, whose fields can't be renamed"):
            ListStateDescriptor("s", int | V1, renamed={"a": "c"})

    def test_structs_in_lists_and_dicts_get_defaults(self) -> None:
        stored = message(("l", list[Point]), ("d", dict[str, Point | None]))
        wanted = message(("l", list[PointAndMany]), ("d", dict[str, PointAndMany | None]))
        values = [stored([Point(1, 2), Point(3, 4)], {"a": Point(5, 6), "b": None})]
        assert migrate(stored, wanted, values) == [
            wanted([PointAndMany(1, 2), PointAndMany(3, 4)], {"a": PointAndMany(5, 6), "b": None})
        ]

    def test_values_omitted_by_an_older_class_are_not_guessed(self) -> None:
        stored = message(("a", int | str, 5), omit_defaults=True)
        wanted = message(("a", int | str, 6), omit_defaults=True)
        assert "omit_defaults" in refusal_of(stored, wanted, [stored()])

    def test_recursive_types_migrate(self, node: Callable[..., Any]) -> None:
        stored = node()
        values = [stored(1, stored(2), [stored(3, stored(4))])]
        wanted = node("name: str = 'new'")
        (result,) = migrate(stored, wanted, values)
        assert result.name == result.next.name == result.children[0].next.name == "new"
        assert (result.next.value, result.children[0].next.value) == (2, 4)

    def test_error_in_a_recursive_type_is_found(self, node: Callable[..., Any]) -> None:
        stored, wanted = node("name: str = ''"), node("name: int = 0")
        assert "name`" in refusal_of(stored, wanted, [stored(1, stored(2, name="x"), name="x")])

    def test_another_name_or_docstring_is_the_same_type(self) -> None:
        stored = message(("a", int))
        wanted = msgspec.defstruct("Other", [("a", int)], module=__name__)
        wanted.__doc__ = "More words."
        assert migrate(stored, wanted, [stored(1)]) == [wanted(1)]

    def test_elements_are_stored_in_the_new_form(self) -> None:
        wanted = message(("a", int), ("b", str), ("c", int, 7))
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add_all([V1(1, "x")])
        backend = restore_from(backend)
        assert list_state(backend, "s", wanted).to_arrow().to_pylist() == [
            {"a": 1, "b": "x", "c": 7}
        ]
        handle = snapshot_of(backend)
        # A later default has no effect, because all elements have the field.
        later = message(("a", int), ("b", str), ("c", int, 8))
        again = OperatorStateBackend.restore([handle])
        assert list_state(again, "s", later).get() == [later(1, "x", 7)]
        serializer = serializer_of(wanted)
        assert serializer.migration(serializer.stored, serializer.storage_type) is None


def test_no_error_quotes_an_element() -> None:
    class Picky(msgspec.Struct):
        kind: Literal["a"]

    state = OperatorStateBackend().get_list_state(ListStateDescriptor("s", Picky))
    with pytest.raises(InvalidRequestError) as caught:
        state.add(Picky(kind="secret"))  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert "$.kind" in str(caught.value)
