"""List state: how elements are added, replaced and read, which are refused, and who owns them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from contracts.elements import VALUES, state_of

from holdfast.backends import ListStateDescriptor, MapStateDescriptor
from holdfast.errors import InvalidRequestError

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
CATEGORY = pa.dictionary(pa.int32(), pa.string())
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
TABLE = pa.Table.from_pylist(ROWS, schema=pa.schema(list(ROW)))


@pytest.mark.parametrize(("element_type", "values"), VALUES.values(), ids=VALUES)
def test_elements_come_back_as_they_were_added(element_type: Any, values: list[Any]) -> None:
    state = state_of(element_type, *values)
    state.add_all(values)
    state.add_all(pa.array(values, element_type))
    assert state.get() == list(state) == values * 3
    assert len(state) == 3 * len(values)
    assert state.to_arrow().type == element_type


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        pa.array([1, 2, 3]),
        pa.array([1, 2, 3], pa.int8()),
        pa.array([0, 1, 2, 3, 4])[1:4],
        pa.chunked_array([[1], [], [2, 3]]),
        pa.chunked_array([pa.array([0, 1, 2])[1:], pa.array([3])]),
        pd.Series([1, 2, 3]),
        pd.Series([1, 2, 3], dtype="int64[pyarrow]"),
        pd.Series([1, 2, 3], dtype="Int64"),
    ],
    ids=[
        "list",
        "tuple",
        "range",
        "array",
        "narrower array",
        "slice",
        "chunks",
        "sliced chunks",
        "numpy series",
        "arrow series",
        "nullable series",
    ],
)
def test_many_elements_come_in_many_shapes(values: Any) -> None:
    for method in ("add_all", "update"):
        state = state_of(pa.int64())
        getattr(state, method)(values)
        assert state.get() == [1, 2, 3]


def test_table_without_rows_replaces_all_elements() -> None:
    state = state_of(ROW, *ROWS)
    state.update(TABLE.slice(2))
    assert len(state) == 0
    state.add_all(TABLE.slice(2))
    assert state.to_table().num_rows == 0


def test_iterator_is_read_once() -> None:
    state = state_of(pa.int64(), 1)
    state.add_all(iter([2, 3]))
    state.update(value * 10 for value in state)
    assert state.get() == [10, 20, 30]
    state.add_all(state)
    assert state.get() == [10, 20, 30] * 2


@pytest.mark.parametrize(
    "values",
    [
        ROWS,
        TABLE,
        TABLE.to_batches()[0],
        pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(0, 0), TABLE.slice(1)]),
        TABLE.replace_schema_metadata({"pandas": "{}"}),
        TABLE.to_struct_array(),
    ],
    ids=["list", "table", "batch", "chunked table", "table with metadata", "structs"],
)
def test_rows_come_as_batches_and_tables_and_leave_as_a_table(values: Any) -> None:
    state = state_of(pa.schema(list(ROW)))
    state.add_all(values)
    assert state.type == ROW
    assert state.get() == ROWS
    assert state.to_table().equals(TABLE)
    state.clear()
    assert state.to_table().equals(TABLE.slice(0, 0))


def test_rows_with_lists_of_no_type_and_required_fields_become_a_table() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([("none", pa.list_(pa.null())), ("s", inner)])
    rows = [
        {"none": [None] * number, "s": {"x": number} if number else None} for number in range(4)
    ]
    state = state_of(schema)
    state.add_all(pa.Table.from_pylist(rows, schema).slice(1, 2))
    state.add_all(pa.Table.from_pylist(rows, schema).slice(0, 1))
    table = state.to_table()
    assert table.schema.equals(schema)
    assert table.to_pylist() == [rows[1], rows[2], rows[0]]


def test_elements_without_columns_have_no_table() -> None:
    with pytest.raises(InvalidRequestError, match="only structs are rows"):
        state_of(pa.int64(), 1).to_table()


def test_update_replaces_and_clear_removes() -> None:
    state = state_of(pa.int64(), 1)
    state.update([2, 3])
    assert state.get() == [2, 3]
    state.add(4)
    state.update([])
    assert (state.get(), len(state)) == ([], 0)
    state.add_all([5])
    state.add(6)
    state.clear()
    assert (state.get(), len(state), state.to_arrow().to_pylist()) == ([], 0, [])


GOOD = {pa.int64(): 7, pa.string(): "x", pa.timestamp("ms"): 7, CATEGORY: "a", ROW: ROWS[0]}
INCOMPATIBLE: dict[Any, dict[str, Any]] = {
    pa.int64(): {
        "None": None,
        "list of None": [None],
        "None inside": [1, None],
        "None inside an array": pa.array([1, None]),
        "None inside chunks": pa.chunked_array([[1], [None]]),
        "None inside a series": pd.Series([1, None], dtype="Int64"),
        "null scalar": [pa.scalar(None, pa.int64())],
        "string": [1, "a"],
        "too large": [2**63],
        "fraction": [1.5],
        "boolean": [True],
        "no elements": 5,
        "array of strings": pa.array(["1"]),
        "array of fractions": pa.array([1.5]),
        "array of too large": pa.array([2**64 - 1], pa.uint64()),
        "table": TABLE,
    },
    pa.string(): {
        "number": [1],
        "no UTF-8": [b"\xff"],
        "array of numbers": pa.array([1]),
        "array of no UTF-8": pa.array([b"\xff"]),
    },
    pa.timestamp("ms"): {
        "string": ["2024"],
        "NaT": [pd.NaT],
        "array that is more exact": pa.array([1], pa.timestamp("ns")),
    },
    CATEGORY: {
        "None": [None],
        "None in the dictionary": pa.DictionaryArray.from_arrays([0, 1], ["a", None]),
    },
    ROW: {
        "None": [None],
        "number": [1],
        "other names": TABLE.rename_columns(["id", "other"]),
        "other order": TABLE.select(["name", "id"]),
        "too few fields": TABLE.select(["id"]),
        "too many fields": TABLE.append_column("more", [[1, 2]]),
        "other types": TABLE.set_column(0, "id", [["x", "y"]]),
        "array of numbers": pa.array([1]),
    },
}


@pytest.mark.parametrize("method", ["add_all", "update"])
@pytest.mark.parametrize(
    ("element_type", "values"),
    [
        pytest.param(element_type, values, id=f"{element_type}: {name}")
        for element_type, cases in INCOMPATIBLE.items()
        for name, values in cases.items()
    ],
)
def test_incompatible_elements_are_refused_and_change_nothing(
    element_type: Any, values: Any, method: str
) -> None:
    state = state_of(element_type, GOOD[element_type])
    expected = state.get()
    state.add(GOOD[element_type])
    with pytest.raises(InvalidRequestError, match="'s'"):
        getattr(state, method)(values)
    assert state.get() == expected * 2
    assert len(state) == 2


@pytest.mark.parametrize(
    ("element_type", "value"),
    [
        (pa.int64(), None),
        (pa.int64(), "1"),
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int64(), 2**63),
        (pa.int8(), 128),
        (pa.int64(), [1]),
        (pa.int64(), pa.scalar(None, pa.int64())),
        (pa.string(), 1),
        (pa.string(), b"\xff"),
        (pa.float64(), "nan"),
        (pa.timestamp("us"), "2024-01-01"),
        (pa.timestamp("us"), pd.NaT),
        (pa.list_(pa.int64()), ["a"]),
        (pa.list_(pa.int64()), 1),
        (ROW, {"id": "x"}),
        (ROW, {"id": 1, "name": "a", "more": 1}),
        (ROW, 1),
    ],
)
def test_incompatible_element_is_refused_and_changes_nothing(element_type: Any, value: Any) -> None:
    state = state_of(element_type)
    with pytest.raises(InvalidRequestError, match="'s'"):
        state.add(value)
    assert state.get() == []


def test_element_changed_after_it_was_added_stays_unchanged() -> None:
    state = state_of(pa.list_(pa.int64()))
    element: list[Any] = [1]
    state.add(element)
    element.append("no longer a list of longs")
    assert state.get() == [[1]]


def test_single_elements_do_not_make_a_chunk_each() -> None:
    state = state_of(pa.int64(), *range(1000))
    assert len(state.chunks()) == 1
    state.add_all(pa.chunked_array([[1], [], [2]]))
    assert len(state.chunks()) == 3


def test_arrays_of_the_right_type_are_taken_without_a_copy() -> None:
    array = pa.array(range(1000))
    state = state_of(pa.int64())
    state.add_all(array)
    assert state.chunks()[0].buffers()[1].address == array.buffers()[1].address


class TestDescriptor:
    def test_schema_is_a_type_of_rows(self) -> None:
        assert ListStateDescriptor("s", pa.schema(list(ROW))) == ListStateDescriptor("s", ROW)

    @pytest.mark.parametrize(
        ("name", "element_type"),
        [
            (None, pa.int64()),
            (1, pa.int64()),
            ("\ud800", pa.int64()),
            ("s", object()),
            ("s", None),
        ],
    )
    def test_another_kind_of_name_or_type_is_refused(self, name: Any, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError):
            ListStateDescriptor(name, element_type)
        with pytest.raises(InvalidRequestError):
            MapStateDescriptor(name, element_type, element_type)

    def test_empty_name_is_a_name(self) -> None:
        assert ListStateDescriptor("", pa.int64()).name == ""


def test_error_of_the_users_own_generator_comes_through() -> None:
    def values() -> Iterator[int]:
        yield 1
        raise ValueError("mine")

    state = state_of(pa.int64())
    with pytest.raises(ValueError, match="mine"):
        state.add_all(values())
    assert len(state) == 0


class TestOwnership:
    """A state is independent of the objects that it was made of."""

    @pytest.mark.parametrize("as_column", [np.array, pd.Series])
    def test_column_of_numpy_changed_afterwards_changes_nothing(self, as_column: Any) -> None:
        state = state_of(pa.int64())
        column = as_column([1, 2, 3])
        for change in (state.update, state.add_all):
            change(column)
            column[:] = 9
            assert state.get() == [1, 2, 3]
            column[:] = [1, 2, 3]
            state.clear()

    @pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}, np.str_("def")], ids=repr)
    def test_accidental_iterable_is_refused_as_elements(self, values: Any) -> None:
        state = state_of(pa.string())
        with pytest.raises(InvalidRequestError, match="not a list of elements"):
            state.add_all(values)
        assert state.get() == []

    def test_many_single_elements_are_as_they_were_added(self) -> None:
        state = state_of(pa.int64())
        for number in range(70_000):
            state.add(number)
        assert state.get() == list(range(70_000))

    @pytest.mark.parametrize(
        "element_type",
        [
            pa.dictionary(pa.int8(), pa.string()),
            pa.list_(pa.dictionary(pa.int16(), pa.string())),
            pa.run_end_encoded(pa.int32(), pa.string()),
        ],
        ids=str,
    )
    def test_type_without_room_for_all_values_is_refused(self, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError, match="'s'"):
            ListStateDescriptor("s", element_type)
