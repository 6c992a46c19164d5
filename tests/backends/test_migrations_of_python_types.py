"""Python types that change between two runs of a job: what is kept and what is refused."""

import enum
import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from contracts.elements import (
    list_state,
    restored,
    snapshot_of,
)
from contracts.migrations import V1, message, migrated, refused

from holdfast.backends import (
    ListStateDescriptor,
    OperatorStateBackend,
)
from holdfast.backends.serializers import Outcome, serializer_of
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
        results = migrated(stored, wanted, [stored(*arguments) for arguments in values])
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
