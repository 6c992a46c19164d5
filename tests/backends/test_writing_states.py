"""States written from tables are what a job would have stored."""

import math
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import pandas as pd
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
    Plain,
    Point,
    Square,
    broadcast_state,
    list_state,
    memory_factory,
    union_state,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import (
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    Pickled,
    StateRows,
)
from holdfast.backends.inspection import ReadableState, states_of, write_states
from holdfast.errors import InvalidRequestError
from holdfast.locations import StoredOperator, StoredSubtask

OTHER_WAYS = ("pickled", "pickled of a class", "anything")
"""Types whose elements are written in another way than they are read, or not at all."""

TYPES = VALUES | {kind: values for kind, values in PYTHON_VALUES.items() if kind not in OTHER_WAYS}


def operator_of(
    states: Mapping[str, StateRows], *, parallelism: int = 1, **options: Any
) -> StoredOperator:
    """An operator with these states, as in a checkpoint."""
    handles = write_states(
        states, memory_factory(), parallelism=parallelism, **{"replaced": {}, **options}
    )
    subtasks = {index: StoredSubtask((handle,)) for index, handle in handles.items()}
    return StoredOperator(parallelism, 128, subtasks)


def read_state(operator: StoredOperator, name: str = "s") -> ReadableState:
    states = {state.name: state for state in states_of("op", operator)}
    return states[name].readable()


def read_rows(operator: StoredOperator, name: str = "s") -> pa.Table:
    """A state as it is read."""
    state = read_state(operator, name)
    return pa.Table.from_batches(state.batches(), state.schema)


def backend_of(operator: StoredOperator, subtask: int = 0) -> OperatorStateBackend:
    return OperatorStateBackend.restore(operator.subtasks[subtask].managed_operator)


def as_read(element_type: Any, values: list[Any]) -> pa.Table:
    """The table that a list state with these elements is read as."""
    backend = OperatorStateBackend()
    list_state(backend, "s", element_type).add_all(values)
    (handle,) = backend.snapshot(memory_factory()).run().state.managed_operator
    return read_rows(StoredOperator(1, 128, {0: StoredSubtask((handle,))}))


@pytest.mark.parametrize("kind", TYPES)
def test_read_values_can_be_written_as_their_type(kind: str) -> None:
    element_type, values = TYPES[kind]
    table = as_read(element_type, values)
    written = operator_of({"s": StateRows(table, ListStateDescriptor("s", element_type))})
    assert read_rows(written).schema == table.schema
    if kind != "set":  # a set that is built again may have another order
        assert read_rows(written).equals(table)
    restored = list_state(backend_of(written), "s", element_type)
    before = OperatorStateBackend()
    expected = list_state(before, "s", element_type)
    expected.add_all(values)
    assert restored.get() == expected.get()


class Measured(msgspec.Struct):
    value: int | float | None = None
    values: list[float] | bool = False
    name: int | str = 0


class Untyped(msgspec.Struct):
    more: dict[str, Any] = {}
    keys: dict[int | None, int] | None = None


def test_nan_and_infinities_round_trip_through_json() -> None:
    values = [
        Measured(math.nan, [math.inf, 1.0]),
        Measured(-math.inf, name="NaN"),
        Measured(1, name=2),
        Measured(1.0),
        Measured(None),
    ]
    table = as_read(Measured, values)
    assert [text.split(",")[0] for text in table["value"].to_pylist()] == [
        '{"value":NaN',
        '{"value":-Infinity',
        '{"value":1',
        '{"value":1.0',
        '{"value":null',
    ]
    written = operator_of({"s": StateRows(table, ListStateDescriptor("s", Measured))})
    assert repr(list_state(backend_of(written), "s", Measured).get()) == repr(values)


@pytest.mark.parametrize(
    ("element_type", "value"),
    [
        (Any, b"abc"),
        (Any, NOON),
        (list, [{1: 2}]),
        (dict[str, Any], {"a": 1}),
        (Untyped, Untyped(more={"a": "b"})),
        (Untyped, Untyped(keys={None: 1})),
    ],
    ids=str,
)
def test_ambiguous_json_text_is_not_written(element_type: Any, value: Any) -> None:
    table = as_read(element_type, [value])
    with pytest.raises(InvalidRequestError, match="JSON text"):
        operator_of({"s": StateRows(table, ListStateDescriptor("s", element_type))})


HELD_BY_SPARK: dict[str, tuple[pa.Array, pa.DataType]] = {
    "uint64": (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
    "inside": (
        pa.array([{"a": [1]}], pa.struct([("a", pa.list_(pa.uint64()))])),
        pa.struct([("a", pa.list_(pa.decimal128(20, 0)))]),
    ),
    "fixed bytes": (pa.array([b"ab"], pa.binary(2)), pa.binary()),
    "UUID": (pa.array([b"a" * 16], pa.binary(16)).cast(pa.uuid()), pa.binary()),
}


@pytest.mark.parametrize("kind", HELD_BY_SPARK)
def test_spark_types_are_written_as_stored_types(kind: str) -> None:
    before, held = HELD_BY_SPARK[kind]
    storage = before.storage if isinstance(before, pa.ExtensionArray) else before
    rows = StateRows(pa.table({"value": storage.cast(held)}))
    stored_before = read_state(operator_of({"s": StateRows(pa.table({"value": before}))}))
    written = operator_of({"s": rows}, replaced={"s": stored_before})
    assert read_rows(written)["value"].combine_chunks().equals(before)


def test_decimals_with_a_fraction_are_refused_as_integers() -> None:
    rows = StateRows(pa.table({"value": [Decimal("1.5")]}), ListStateDescriptor("s", pa.uint64()))
    with pytest.raises(InvalidRequestError, match="can't be cast to uint64"):
        operator_of({"s": rows})


classes = {
    "struct": (Point, st.builds(Point)),
    "nested": (Event, st.builds(Event)),
    "union": (Circle | Square, st.one_of(st.builds(Circle), st.builds(Square))),
    "recursive": (
        Node,
        st.recursive(
            st.builds(Node, next=st.none(), children=st.just([])),
            lambda inner: st.builds(
                Node, next=st.none() | inner, children=st.lists(inner, max_size=2)
            ),
            max_leaves=4,
        ),
    ),
    "color": (Color, st.sampled_from(Color)),
}


def readable(value: Any) -> bool:
    """Return whether a value round-trips: MessagePack has no numbers beyond 64 bits."""
    backend = OperatorStateBackend()
    state = list_state(backend, "s", type(value))
    try:
        state.add(value)
    except InvalidRequestError:
        return False
    return bool(state.get() == [value])


@pytest.mark.parametrize("kind", classes)
@given(data=st.data())
def test_elements_of_any_value_come_back(kind: str, data: st.DataObject) -> None:
    element_type, strategy = classes[kind]
    values = data.draw(st.lists(strategy.filter(readable), max_size=5))
    table = as_read(element_type, values)
    written = operator_of({"s": StateRows(table, ListStateDescriptor("s", element_type))})
    assert list_state(backend_of(written), "s", element_type).get() == values


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1)), parallelism=st.integers(1, 5))
def test_list_is_spread_evenly_in_its_order(values: list[int], parallelism: int) -> None:
    rows = pa.table({"value": pa.array(values, pa.int64())})
    written = operator_of({"s": StateRows(rows)}, parallelism=parallelism)
    assert read_rows(written)["value"].to_pylist() == values
    counts = [
        sum(handle.states["s"].count for handle in subtask.managed_operator)
        for subtask in written.subtasks.values()
    ]
    assert max(counts) - min(counts) <= 1 or len(values) < parallelism


def test_rows_with_a_subtask_stay_there() -> None:
    rows = pa.table({"subtask": [2, 0, 2], "value": [1, 2, 3]})
    written = operator_of({"s": StateRows(rows)}, parallelism=4)
    assert read_rows(written).to_pylist() == [
        {"subtask": 0, "value": 2},
        {"subtask": 2, "value": 1},
        {"subtask": 2, "value": 3},
    ]
    for wrong in ([2, 0, 4], [-1, 0, 0], [None, 0, 0], ["a", "b", "c"]):
        wrong_rows = pa.table({"subtask": wrong, "value": [1, 2, 3]})
        with pytest.raises(InvalidRequestError, match="from 0 to 3"):
            operator_of({"s": StateRows(wrong_rows)}, parallelism=4)


def test_all_kinds_of_state_are_there_for_the_job() -> None:
    written = operator_of(
        {
            "l": StateRows(pa.table({"value": [1, 2]})),
            "u": StateRows(pa.table({"value": [1, 2, 3]}), union=True),
            "b": StateRows(
                pa.table({"key": ["a"], "value": [{"x": 5, "y": 1.0}]}),
                MapStateDescriptor("b", str, Point),
            ),
            "p": StateRows(
                pa.table({"value": [pickle.dumps(Plain(1))]}), ListStateDescriptor("p", Pickled())
            ),
            "empty": StateRows(pa.table({"value": pa.array([], pa.string())})),
        },
        parallelism=2,
    )
    assert [state.name for state in states_of("op", written)] == ["l", "u", "b", "p", "empty"]
    first = backend_of(written)
    assert list_state(first, "l").get() == [1]
    assert union_state(first, "u").get() == [1, 2]
    assert broadcast_state(first, "b", (str, Point)).get("a") == Point(5, 1.0)
    assert list_state(first, "p", Pickled()).get() == [Plain(1)]
    assert list_state(first, "empty", str).get() == []
    assert list_state(backend_of(written, 1), "l").get() == [2]


def test_replaced_state_keeps_its_type_and_mode() -> None:
    before = operator_of(
        {
            "u": StateRows(pa.table({"value": pa.array([1], pa.int32())}), union=True),
            "b": StateRows(pa.table({"key": ["a"], "value": [1.5]})),
            "p": StateRows(
                pa.table({"value": [{"x": 1}]})
                .select([])
                .append_column("value", pa.array([{"x": 1, "y": 1.0}])),
                ListStateDescriptor("p", Point),
            ),
        }
    )
    replaced = {name: read_state(before, name) for name in ("u", "b", "p")}
    after = operator_of(
        {
            "u": StateRows(pa.table({"value": pa.array([7], pa.int64())})),
            "b": StateRows(pa.table({"key": ["b"], "value": [2.5]})),
        },
        replaced=replaced,
    )
    assert read_state(after, "u").kind == "union"
    assert read_state(after, "u").schema.field("value").type == pa.int32()
    assert read_rows(after, "b").to_pylist() == [{"key": "b", "value": 2.5}]
    with pytest.raises(InvalidRequestError, match="give the job's descriptor"):
        operator_of({"p": StateRows(pa.table({"value": [{"x": 1, "y": 1.0}]}))}, replaced=replaced)


REFUSED: dict[str, tuple[StateRows, str]] = {
    "no value": (StateRows(pa.table({"id": [1]})), r"columns \['id'\]"),
    "another column": (
        StateRows(pa.table({"value": [1], "id": [1]})),
        r"columns \['value', 'id'\]",
    ),
    "subtask of a map": (
        StateRows(pa.table({"subtask": [0], "key": [1], "value": [1]})),
        r"need \['key', 'value'\]",
    ),
    "a missing element": (StateRows(pa.table({"value": [1, None]})), "None is not a valid element"),
    "a missing object": (
        StateRows(pa.table({"value": ["red", None]}), ListStateDescriptor("s", Color)),
        "None is not a valid element",
    ),
    "another type": (
        StateRows(pa.table({"value": ["a"]}), ListStateDescriptor("s", pa.int64())),
        "type string can't be cast to int64",
    ),
    "another class": (
        StateRows(pa.table({"value": ["green"]}), ListStateDescriptor("s", Color)),
        "not every value is a .*Color",
    ),
    "another tag": (
        StateRows(
            pa.table({"value": ['{"type":"x","radius":1.0}']}),
            ListStateDescriptor("s", Circle | Square),
        ),
        "not every value is a .*Circle",
    ),
    "no JSON text": (
        StateRows(
            pa.table({"value": [{"type": "Circle", "radius": 1.0}]}),
            ListStateDescriptor("s", Circle | Square),
        ),
        "JSON text",
    ),
    "no field of the class": (
        StateRows(pa.table({"value": [{"y": 1.0}]}), ListStateDescriptor("s", Point)),
        "rows have no field 'x'",
    ),
    "a field of another name": (
        StateRows(pa.table({"value": [{"x": 1, "why": 1.0}]}), ListStateDescriptor("s", Point)),
        r"rows have fields \['why'\], which the type does not have",
    ),
    "no fields at all": (
        StateRows(pa.table({"value": [["x"]]}), ListStateDescriptor("s", Point)),
        "type list.* can't be cast to struct",
    ),
    "a subtask too many": (
        StateRows(pa.table({"subtask": [1], "value": [1]})),
        r"from 0 to 0; .*operators=",
    ),
    "no pickles": (
        StateRows(pa.table({"value": [1]}), ListStateDescriptor("s", Pickled())),
        "bytes of their pickles",
    ),
    "a key twice": (StateRows(pa.table({"key": [1, 1], "value": [1, 2]})), "a key twice"),
    "no key twice": (
        StateRows(pa.table({"key": [math.nan, math.nan], "value": [1, 2]})),
        "a key twice",
    ),
    "no type": (StateRows(pa.table({"value": pa.nulls(0)})), "have no type"),
    "no type of a key": (
        StateRows(pa.table({"key": pa.nulls(0), "value": pa.array([], pa.int64())})),
        "have no type",
    ),
    "a key that is a list": (
        StateRows(pa.table({"key": [[1]], "value": [1]})),
        "can't be looked up",
    ),
    "another name": (
        StateRows(pa.table({"value": [1]}), ListStateDescriptor("t", pa.int64())),
        "has the name 't'",
    ),
    "a union of keys": (
        StateRows(pa.table({"key": [1], "value": [1]}), union=True),
        "can't be a union list state",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_state_rows_are_refused(case: str) -> None:
    rows, pattern = REFUSED[case]
    with pytest.raises(InvalidRequestError, match=pattern):
        operator_of({"s": rows})


def test_list_of_a_keyed_operator_needs_places() -> None:
    rows = pa.table({"value": [1]})
    with pytest.raises(InvalidRequestError, match="the subtask of their keys"):
        operator_of({"s": StateRows(rows)}, needs_subtasks=True)
    placed = rows.append_column("subtask", pa.array([1]))
    assert read_rows(operator_of({"s": StateRows(placed)}, parallelism=2, needs_subtasks=True))[
        "subtask"
    ].to_pylist() == [1]


def test_field_missing_in_rows_gets_its_default() -> None:
    rows = pa.table({"value": [{"x": 1}, {"x": 2}]})
    written = operator_of({"s": StateRows(rows, ListStateDescriptor("s", Point))})
    points = list_state(backend_of(written), "s", Point)
    assert points.get() == [Point(1), Point(2)]


def test_rows_of_pandas_are_a_table() -> None:
    frame = pd.DataFrame({"value": [1.5, 2.5]})
    table = pa.Table.from_pandas(frame, preserve_index=False)
    assert read_rows(operator_of({"s": StateRows(table)}))["value"].to_pylist() == [1.5, 2.5]
