"""Defaults that are left out of what is stored, and change between two runs of a job."""

import math
import uuid
from typing import Any

import msgspec
import pytest
from contracts.elements import list_state, restored
from contracts.migrations import migrated, refused

from holdfast.backends import OperatorStateBackend
from holdfast.backends.serializers import Outcome, serializer_of
from holdfast.errors import StateMigrationError


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
        element_type, other = (
            serializer_of(c, {}).stored for c in (_LeftOutSet, _LeftOutSetPutOtherwise)
        )
        assert element_type.schema.replace(b"_LeftOutSet", b"") == other.schema.replace(
            b"_LeftOutSetPutOtherwise", b""
        )
        result = migrated(_LeftOutSet, _LeftOutSetPutOtherwise, [_LeftOutSet(1), _LeftOutSet(2)])
        assert [(element.a, element.b) for element in result] == [(1, {0, 8}), (2, {0, 8})]

    def test_nan_is_nan_and_not_another_number(self) -> None:
        (element,) = migrated(_LeftOutSet, _LeftOutSetAndMore, [_LeftOutSet(1)])
        assert math.isnan(element.c)
        assert element.d == 7
        assert "c was left out" in refused(_LeftOutSet, _OtherNumber)

    def test_they_may_be_written_from_now_on(self) -> None:
        (element,) = migrated(_LeftOutSet, _NotLeftOut, [_LeftOutSet(1)])
        assert element.b == {0, 8}

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
