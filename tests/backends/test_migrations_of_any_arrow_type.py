"""Any Arrow type that becomes any other: every value is kept, or the change is refused."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import list_state, restore_from
from contracts.migrations import CATEGORY, INTS
from hypothesis import assume, example, given, note
from hypothesis import strategies as st

from holdfast.backends import OperatorStateBackend
from holdfast.backends.arrow import conform, nullable_type
from holdfast.backends.arrow.nesting import map_array
from holdfast.backends.serializers import ANY_FIELD, IncompatibleTypeError, change_of
from holdfast.backends.serializers.arrow_migration import Rules
from holdfast.errors import StateMigrationError

DROPS_FIELDS = Rules(dropped=[ANY_FIELD])
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((int_type, st.integers(low, high)) for int_type, low, high in INTS.values()),
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
leaf_types = st.sampled_from([leaf for leaf, _ in LEAVES])


def _field(name: str, type: pa.DataType, *, nullable: bool) -> pa.Field:
    return pa.field(name, type, nullable=nullable or pa.types.is_null(type))


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(_field, st.sampled_from("abcd"), types, nullable=st.booleans())
    return st.lists(field, max_size=4, unique_by=lambda struct_field: struct_field.name).map(
        pa.struct
    )


def _nest(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    item = st.builds(_field, st.just("item"), types, nullable=st.booleans())
    keys = st.sampled_from([pa.int8(), pa.int64(), pa.string()])
    return (
        _fields(types)
        | item.map(pa.list_)
        | item.map(pa.large_list)
        | item.map(lambda field: pa.list_(field, 2))
        | st.builds(pa.map_, keys, item.map(lambda field: field.with_name("value")))
    )


all_types = st.recursive(leaf_types, _nest, max_leaves=5)


@st.composite
def change_type(draw: st.DrawFn, stored: pa.DataType) -> pa.DataType:
    """Some type; most of the time one that is like the given one."""
    if draw(st.integers(0, 9)) == 0:
        return draw(all_types)
    if pa.types.is_struct(stored):
        fields = [
            _field(
                field.name,
                draw(change_type(field.type)),
                nullable=field.nullable or draw(st.booleans()),
            )
            for field in stored
            if draw(st.integers(0, 3))
        ]
        if draw(st.booleans()):
            fields.append(_field("new", draw(leaf_types), nullable=draw(st.integers(0, 3)) > 0))
        return pa.struct(draw(st.permutations(fields)))
    if pa.types.is_map(stored):
        item = pa.field("value", draw(change_type(stored.item_type)), nullable=True)
        key = draw(
            change_type(stored.key_type).filter(lambda data_type: not pa.types.is_null(data_type))
        )
        return pa.map_(key, item)
    if isinstance(stored, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        item = _field("item", draw(change_type(stored.value_type)), nullable=draw(st.booleans()))
        return draw(st.sampled_from([pa.list_, pa.large_list]))(item)
    return draw(leaf_types if draw(st.booleans()) else st.just(stored))


def values_of(data_type: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    values: st.SearchStrategy[Any]
    if pa.types.is_struct(data_type):
        values = st.fixed_dictionaries(
            {field.name: values_of(field.type, nullable=field.nullable) for field in data_type}
        )
    elif pa.types.is_map(data_type):
        items = values_of(data_type.item_type, nullable=data_type.item_field.nullable)
        entries = st.dictionaries(LEAF_VALUES[data_type.key_type], items, max_size=2)
        values = entries.map(lambda pairs: list(pairs.items()))  # as Arrow gives it back
    elif isinstance(data_type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        items = values_of(data_type.value_type, nullable=data_type.value_field.nullable)
        fixed = isinstance(data_type, pa.FixedSizeListType)
        values = st.lists(items, min_size=2 if fixed else 0, max_size=2)
    else:
        values = LEAF_VALUES[data_type]
    return st.none() | values if nullable and not pa.types.is_null(data_type) else values


def migrate_value(value: Any, stored: pa.DataType, wanted: pa.DataType) -> Any:
    """Return the value in a wider type."""
    if value is None:
        return None
    if pa.types.is_struct(wanted):
        return {
            field.name: migrate_value(value[field.name], stored.field(field.name).type, field.type)
            if stored.get_field_index(field.name) >= 0
            else None
            for field in wanted
        }
    if pa.types.is_map(wanted):
        return [
            (
                migrate_value(key, stored.key_type, wanted.key_type),
                migrate_value(item, stored.item_type, wanted.item_type),
            )
            for key, item in value
        ]
    if isinstance(value, list):
        return [migrate_value(element, stored.value_type, wanted.value_type) for element in value]
    return value


def _is_valid(array: pa.Array) -> bool:
    """Return whether Arrow accepts the array, whose null structs may have indices into empty dictionaries."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@given(data=st.data(), stored=all_types, start=st.integers(0, 3))
def test_change_keeps_every_value_or_is_refused(
    data: st.DataObject, stored: pa.DataType, start: int
) -> None:
    wanted = data.draw(change_type(stored))
    note(f"{stored} -> {wanted}")
    values = data.draw(st.lists(values_of(stored), max_size=6))
    try:
        change = change_of(stored, wanted, DROPS_FIELDS)
    except IncompatibleTypeError:
        return
    array = pa.array(values, stored)[start:]
    assume(_is_valid(array))
    result = change(array)
    assert result.type.equals(wanted)
    result.validate(full=True)
    assert result.to_pylist() == [migrate_value(value, stored, wanted) for value in values[start:]]


@dataclass(frozen=True)
class Drawn:
    """Data for an example."""

    values: list[Any]

    def draw(self, _: object) -> list[Any]:
        return self.values


REQUIRED = pa.field("a", pa.int64(), nullable=False)
SOME_REQUIRED = pa.struct([REQUIRED, ("b", pa.list_(pa.null()))])
PAIR_OF_REQUIRED = pa.list_(pa.field("item", pa.struct([REQUIRED]), nullable=False), 2)


@given(data=st.data(), type=all_types, start=st.integers(0, 3), end=st.integers(0, 6))
@example(Drawn([{"a": 1, "b": [None, None]}, {"a": 2, "b": [None]}]), SOME_REQUIRED, 0, 1)
@example(Drawn([None, [{"a": 1}, {"a": 2}], None]), PAIR_OF_REQUIRED, 1, 3)
@example(Drawn([[{"a": 1}, {"a": 2}]] * 2), PAIR_OF_REQUIRED, 1, 2)
@example(Drawn([[], None, []]), pa.list_(REQUIRED, 0), 0, 2)
@example(Drawn([[], []]), pa.list_(REQUIRED, 0), 0, 2)
def test_array_conforms_to_a_type_with_nulls_elsewhere(
    data: st.DataObject | Drawn, type: pa.DataType, start: int, end: int
) -> None:
    values = data.draw(st.lists(values_of(type), max_size=6))
    array = pa.array(values, type)[start:end]
    assume(_is_valid(array))
    wanted = nullable_type(type)
    result = conform(array, wanted)
    result.validate(full=True)
    again = conform(result, type)
    assert (result.type, again.type) == (wanted, type)
    assert result.to_pylist() == again.to_pylist() == values[start:end]


def test_map_with_a_null_key_is_refused() -> None:
    offsets, items = pa.array([0, 0, 2], pa.int32()), pa.array([1, 2])
    with pytest.raises(pa.ArrowInvalid, match="a key of a map must not be null"):
        map_array(
            offsets,
            pa.array([1, None]),
            items,
            type=pa.map_(pa.int64(), pa.int64()),
            mask=pa.array([True, False]),
        )


@given(data=st.data(), stored=all_types)
def test_state_is_migrated_or_stays_as_it_was(data: st.DataObject, stored: pa.DataType) -> None:
    wanted = data.draw(change_type(stored))
    values = [
        element
        for element in data.draw(st.lists(values_of(stored), max_size=4))
        if element is not None
    ]
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(pa.array(values, stored))
    backend = restore_from(backend)
    with suppress(StateMigrationError):
        state = list_state(backend, "s", wanted)
        assert state.get() == [migrate_value(value, stored, wanted) for value in values]
        assert list_state(restore_from(backend), "s", wanted).get() == state.get()
        return
    assert list_state(backend, "s", stored).get() == values
