"""Values that list state takes as they are, rounds or refuses: of Python, Arrow, pandas and numpy."""

import datetime as dt
import math
import uuid
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from contracts.elements import broadcast_state, list_state, restore_from, state_of

from holdfast.backends import OperatorStateBackend
from holdfast.backends.arrow import IncompatibleValueError, cast_rows
from holdfast.errors import InvalidRequestError

REQUIRED = pa.field("item", pa.int64(), nullable=False)
UTC_MS = pa.timestamp("ms", "UTC")
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("element_type", "value"),
    [
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1.5)]),
        (pa.map_(pa.string(), pa.struct({"x": pa.int64()})), {"a": {"x": 1, "y": 2}}),
        (pa.struct({"a": pa.int64()}), (1.5,)),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), {"a": None}),
        (pa.dictionary(pa.int32(), pa.int64()), 1.5),
        (pa.date32(), NOON),
        (pa.date32(), 3.5),
        (UTC_MS, NOON.replace(microsecond=1)),
        (UTC_MS, NOON.replace(tzinfo=None)),
        (pa.timestamp("ms"), NOON),
        (pa.timestamp("us", "UTC"), pd.Timestamp(1, unit="ns", tz="UTC")),
        (pa.time32("s"), dt.time(1, 2, 3, 4)),
        (pa.duration("s"), dt.timedelta(microseconds=1)),
        (pa.duration("s"), 3.5),
        (pa.string(), b"bytes"),
        (pa.binary(), "text"),
        (pa.binary(2), "ab"),
        (pa.uuid(), "x" * 16),
        (pa.list_(pa.string()), "abc"),
        (pa.list_(pa.uint8()), b"abc"),
        (pa.list_(pa.uint8()), bytearray(b"abc")),
        (pa.list_(pa.uint8()), memoryview(b"abc")),
        (pa.list_view(pa.string()), "abc"),
        (pa.list_view(pa.int64()), [1.5]),
        (pa.large_list_view(pa.int64()), [1.5]),
        (pa.list_view(pa.timestamp("s")), [NOON.replace(tzinfo=None, microsecond=1)]),
        (pa.opaque(pa.int64(), "a", "b"), 1.5),
        (pa.time64("us"), dt.time(1, 2, 3, tzinfo=dt.UTC)),
        (pa.duration("us"), pd.Timedelta(1, "ns")),
        (pa.float32(), 1e300),
        (pa.float32(), -1e300),
        (pa.float16(), 70000.0),
        (pa.float16(), 70000),
        (pa.float16(), 2049),
        (pa.list_(pa.float32()), [1.5, 1e300]),
        (pa.struct({"a": pa.float32()}), {"a": 1e300}),
        (pa.list_(REQUIRED), [1, None]),
        (pa.list_(REQUIRED, 2), [1, None]),
        (pa.list_view(REQUIRED), [1, None]),
        (pa.map_(pa.string(), REQUIRED), {"a": None}),
        (pa.list_(pa.struct([REQUIRED])), [{"item": None}]),
    ],
)
def test_lossy_python_value_is_refused(element_type: Any, value: Any) -> None:
    state = state_of(element_type)
    with pytest.raises(InvalidRequestError, match="'s'"):
        state.add(value)
    with pytest.raises(InvalidRequestError, match="'s'"):
        state.add_all([value])
    assert len(state) == 0


def arrow_takes_uuids() -> bool:
    try:
        pa.array([uuid.UUID(int=5)], pa.uuid())
    except pa.ArrowTypeError:
        return False
    return True


@pytest.mark.parametrize(
    ("element_type", "value", "expected"),
    [
        (pa.float32(), 0.1, np.float32(0.1)),
        (pa.float32(), math.inf, math.inf),
        (pa.float32(), 2**24, 2**24),
        (pa.float32(), np.float64(0.5), 0.5),
        (pa.float16(), 65504, 65504),
        (pa.list_(pa.float32()), [0.5, None, -math.inf, 3], [0.5, None, -math.inf, 3]),
        (pa.list_view(pa.int64()), [1, None], [1, None]),
        (pa.list_view(pa.list_(pa.string())), [["a"], None], [["a"], None]),
        (pa.binary(2), b"ab", b"ab"),
        pytest.param(
            pa.uuid(),
            uuid.UUID(int=5),
            uuid.UUID(int=5),
            marks=pytest.mark.skipif(not arrow_takes_uuids(), reason="pyarrow 21 takes only bytes"),
        ),
        (pa.uuid(), uuid.UUID(int=5).bytes, uuid.UUID(int=5)),
        (pa.json_(), '{"a": 1}', '{"a": 1}'),
        (pa.opaque(pa.int64(), "a", "b"), 1, 1),
        (pa.time64("us"), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
        (pa.duration("ns"), pd.Timedelta(1, "ns"), pd.Timedelta(1, "ns")),
        (
            pa.struct([pa.field("a", pa.list_(pa.int64()), nullable=False)]),
            {"a": np.array([1, 2])},
            {"a": [1, 2]},
        ),
        (pa.list_(REQUIRED), [1, 2], [1, 2]),
        (pa.map_(pa.string(), REQUIRED), {"a": 1}, [("a", 1)]),
        (pa.list_(pa.struct([REQUIRED])), [{"item": 1}, None], [{"item": 1}, None]),
    ],
    ids=str,
)
def test_lossless_python_value_is_accepted(element_type: Any, value: Any, expected: Any) -> None:
    state = state_of(element_type, value)
    state.add_all([value])
    assert state.get() == [expected] * 2


SCALARS_MAKE_NO_ARRAY: dict[str, tuple[pa.DataType, Any]] = {
    "tensor": (pa.fixed_shape_tensor(pa.int64(), [2]), [1, 2]),
    "null in a struct": (pa.struct({"n": pa.null(), "a": pa.string()}), {"n": None, "a": "x"}),
    "null in a list of lists": (pa.list_(pa.list_(pa.string())), [["a"], None]),
    "null further in": (
        pa.struct({"l": pa.list_(pa.struct({"n": pa.null()}))}),
        {"l": [{"n": None}, None]},
    ),
}


@pytest.mark.parametrize(
    ("element_type", "value"), SCALARS_MAKE_NO_ARRAY.values(), ids=SCALARS_MAKE_NO_ARRAY
)
def test_single_added_elements_are_in_the_snapshot(element_type: pa.DataType, value: Any) -> None:
    backend = OperatorStateBackend()
    state = list_state(backend, "s", element_type)
    state.add(value)
    state.add_all([value])
    state.add(value)
    broadcast_state(backend, "b", (int, element_type), {1: value, 2: value})
    again = restore_from(backend)
    assert list_state(again, "s", element_type).get() == state.get() == [value] * 3
    entries = broadcast_state(again, "b", (int, element_type))
    entries.put(3, value)
    assert dict(broadcast_state(restore_from(again), "b", (int, element_type)).entries()) == (
        dict.fromkeys([1, 2, 3], value)
    )


@pytest.mark.parametrize(
    ("element_type", "elements"),
    [
        (pa.timestamp("us"), pa.array([2**62], pa.timestamp("us"))),
        (pa.timestamp("s"), pa.array([2**60], pa.timestamp("s"))),
        (pa.timestamp("us", "Nowhere/X"), pa.array([1], pa.timestamp("us", "Nowhere/X"))),
        (
            pa.struct([("a", pa.int64()), ("a", pa.int64())]),
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_elements_without_python_objects_are_readable_in_arrow(
    element_type: pa.DataType, elements: pa.Array
) -> None:
    backend = OperatorStateBackend()
    state = list_state(backend, "s", element_type)
    state.add_all(elements)
    broadcast_state(backend, "b", (int, element_type)).put(1, elements[0])
    for state_backend in (backend, restore_from(backend)):
        with pytest.raises(InvalidRequestError, match=r"list state .s.*take it as Arrow data"):
            list_state(state_backend, "s", element_type).get()
        with pytest.raises(InvalidRequestError, match=r"broadcast state .b.*take it as Arrow data"):
            broadcast_state(state_backend, "b", (int, element_type)).get(1)
        assert list_state(state_backend, "s", element_type).to_arrow().chunk(0).equals(elements)


def _struct_with_a_null(field: pa.Field, values: Any) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(values, field.type)], fields=[field])


NULLS: dict[str, tuple[pa.DataType, pa.Array]] = {
    "in a struct": (pa.struct([REQUIRED]), _struct_with_a_null(REQUIRED, [1, None])),
    "in a batch": (
        pa.struct([REQUIRED]),
        pa.record_batch([pa.array([1, None])], schema=pa.schema([REQUIRED])),
    ),
    "in a list": (pa.list_(REQUIRED), pa.array([[1], [2, None]], pa.list_(REQUIRED))),
    "in a list of another type": (pa.list_(REQUIRED), pa.array([[1, None]])),
    "in a list view": (pa.list_view(REQUIRED), pa.array([[1, None]], pa.list_view(REQUIRED))),
    "in a list of fixed size": (
        pa.list_(REQUIRED, 2),
        pa.array([[1, None]], pa.list_(REQUIRED, 2)),
    ),
    "in a map": (
        pa.map_(pa.string(), REQUIRED),
        pa.array([[("a", None)]], pa.map_(pa.string(), REQUIRED)),
    ),
    "further in": (
        pa.list_(pa.struct([REQUIRED])),
        pa.ListArray.from_arrays(
            [0, 2],
            _struct_with_a_null(REQUIRED, [1, None]),
            type=pa.list_(pa.struct([REQUIRED])),
        ),
    ),
}


@pytest.mark.parametrize(("element_type", "elements"), NULLS.values(), ids=NULLS)
def test_arrow_data_with_nulls_in_required_fields_is_refused(
    element_type: pa.DataType, elements: Any
) -> None:
    state = state_of(element_type)
    with pytest.raises(InvalidRequestError, match="item' must not be None"):
        state.add_all(elements)
    assert len(state) == 0


@pytest.mark.parametrize("start", range(4))
def test_nulls_elsewhere_are_no_matter(start: int) -> None:
    inner = pa.struct([REQUIRED])
    fields = {
        "s": inner,
        "l": pa.list_(REQUIRED),
        "m": pa.map_(pa.string(), REQUIRED),
        "v": pa.list_view(inner),
    }
    rows: list[Any] = [
        {"s": {"item": 1}, "l": [1, 2], "m": [("a", 1)], "v": [{"item": 1}, None]},
        {"s": None, "l": None, "m": None, "v": None},
        {"s": {"item": 2}, "l": [], "m": [], "v": []},
        {"s": {"item": 3}, "l": [3], "m": [("b", 2)], "v": [{"item": 4}]},
    ]
    state = state_of(pa.struct(fields))
    state.add_all(pa.array(rows, pa.struct(fields))[start:])
    assert state.get() == rows[start:]
    narrower = pa.struct({**fields, "l": pa.list_(pa.field("item", pa.int8(), nullable=False))})
    state.update(pa.array(rows, narrower)[start:])
    assert state.get() == rows[start:]


NARROWER: dict[str, tuple[pa.Array, pa.DataType]] = {
    "double": (pa.array([1.5, 1e300]), pa.float32()),
    "to half": (pa.array([1.5, -70000.0]), pa.float16()),
    "in a list": (pa.array([[1.5], None, [-1e300]]), pa.list_(pa.float32())),
    "in a struct": (pa.array([{"a": 1e300}, None]), pa.struct({"a": pa.float32()})),
    "in a map": (
        pa.array([[("a", 1e300)]], pa.map_(pa.string(), pa.float64())),
        pa.map_(pa.string(), pa.float32()),
    ),
    "in a dictionary": (
        pa.array([1e300]).dictionary_encode(),
        pa.dictionary(pa.int32(), pa.float32()),
    ),
    "too large an integer": (pa.array([1, 70000]), pa.float16()),
    "an integer in between": (pa.array([2049]), pa.float16()),
    "an integer in a list": (pa.array([[2049]]), pa.list_(pa.float16())),
    "numpy": (np.array([1e300]), pa.float32()),
}


@pytest.mark.parametrize(("elements", "element_type"), NARROWER.values(), ids=NARROWER)
def test_numbers_beyond_a_narrower_float_are_refused(
    elements: Any, element_type: pa.DataType
) -> None:
    state = state_of(element_type)
    with pytest.raises(InvalidRequestError, match="not every value"):
        state.add_all(elements)
    assert len(state) == 0


def test_numbers_within_a_narrower_float_are_rounded() -> None:
    state = state_of(pa.float32())
    state.add_all(pa.array([0.1, math.inf, -math.inf, 3.0]))
    assert state.get() == [np.float32(0.1), math.inf, -math.inf, 3.0]
    state.update(np.array([], "float64"))
    assert state.get() == []
    state = state_of(pa.list_(pa.float16()))
    state.add_all(pa.array([[1, 2048], None, [None]])[2:])
    assert state.get() == [[None]]


class TestPandasColumns:
    def test_nan_is_a_number_in_a_column_of_floats(self) -> None:
        state = state_of(float)
        for column in (pd.Series([1.0, math.nan]), np.array([1.0, math.nan])):
            state.update(column)
            assert [str(element) for element in state.get()] == ["1.0", "nan"]
        with pytest.raises(InvalidRequestError, match="None is not a valid element"):
            state.add_all(pd.Series([1.0, None], dtype="Float64"))

    @pytest.mark.parametrize("as_column", [np.array, pd.Series])
    def test_byte_order_is_irrelevant(self, as_column: Any) -> None:
        state = state_of(pa.int64())
        state.add_all(as_column(np.array([1, 2], ">i8")))
        assert state.get() == [1, 2]

    @pytest.mark.parametrize(
        "values", [pd.DataFrame({"a": [1]}), np.array([[1]])], ids=["DataFrame", "2"]
    )
    def test_rows_are_to_be_made_a_table(self, values: Any) -> None:
        state = state_of(pa.struct({"a": pa.int64()}))
        with pytest.raises(InvalidRequestError, match=r"make it a pyarrow\.Table"):
            state.add_all(values)
        state.add_all(pa.Table.from_pandas(pd.DataFrame({"a": [1]})))
        assert state.get() == [{"a": 1}]


class TestRows:
    SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(REQUIRED))])

    def test_they_are_the_same_if_they_fit(self) -> None:
        batch = pa.record_batch([pa.array([1]), pa.array([[2]], self.SCHEMA.types[1])], self.SCHEMA)
        assert cast_rows(batch, self.SCHEMA) is batch

    @pytest.mark.parametrize(
        ("a", "b", "why"),
        [
            ([None], [[1]], "column 'a' must not be None"),
            ([1], [[None]], "column 'b': field 'item' must not be None"),
        ],
    )
    def test_nulls_in_required_fields_are_refused(self, a: Any, b: Any, why: str) -> None:
        columns = [pa.array(a, pa.int64()), pa.array(b, self.SCHEMA.types[1])]
        for batch in (
            pa.record_batch(columns, self.SCHEMA),
            pa.record_batch(columns, ["a", "b"]),
        ):
            with pytest.raises(IncompatibleValueError, match=why):
                cast_rows(batch, self.SCHEMA)


def test_nanoseconds_of_arrow_scalars_are_kept() -> None:
    state = state_of(pa.time64("ns"))
    state.add(pa.scalar(1_234_567, pa.time64("ns")))
    assert state.to_arrow()[0].value == 1_234_567


def test_numpy_columns_are_taken_as_they_are() -> None:
    state = state_of(pa.int32())
    state.add_all(np.arange(5))
    assert state.get() == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidRequestError):
        state.add_all(np.array([1.5]))


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "ü\ud83d"])
def test_lone_surrogate_is_refused_and_the_state_stays_usable(text: str) -> None:
    state = state_of(pa.string(), "before")
    for call in (
        lambda: state.add(text),
        lambda: state.add_all([text]),
        lambda: state.update(["x", text]),
    ):
        with pytest.raises(InvalidRequestError, match="'s'") as caught:
            call()  # type: ignore[no-untyped-call]
        assert text not in str(caught.value)
    state.add("größe 🎉")
    assert state.get() == ["before", "größe 🎉"]


@pytest.mark.parametrize("native", [str, bytes, int, float, bool])
def test_single_values_and_many_are_refused_alike(native: Any) -> None:
    values: list[Any] = ["a", b"a", 1, 1.5, True, None, 2**63, "\ud800", [1], {"a": 1}]
    for value in values:
        outcomes: list[list[Any] | None] = []
        for add in ("add", "add_all", "update"):
            state = state_of(native)
            try:
                getattr(state, add)(value if add == "add" else [value])
            except InvalidRequestError:
                outcomes.append(None)
            else:
                outcomes.append(state.get())
        assert outcomes[0] == outcomes[1] == outcomes[2], (native, value)


@dataclass
class Part:
    number: int
    names: list[str]


@dataclass
class Whole:
    first: Part | None
    others: list[Part | None]
    by_name: dict[str, Part]
    weight: float = 0.5


def test_nested_objects_of_a_single_added_object_are_values() -> None:
    given = [
        Whole(Part(1, ["a"]), [None, Part(2, [])], {"b": Part(3, ["c"])}),
        Whole(None, [], {}, 2),
    ]
    before = deepcopy(given)
    elements = state_of(Whole, *given)
    entries = broadcast_state(OperatorStateBackend(), types=(int, Whole))
    for number, value in enumerate(given):
        entries.put(number, value)
    given[0].first = None
    given[0].by_name["b"].names.append("later")
    entries.get(0).others.clear()
    assert elements.get() == [entries.get(number) for number in range(2)] == before


@pytest.mark.parametrize(
    "value",
    [
        Whole(Part(1 << 63, []), [], {}),
        Whole(None, ["x"], {}),  # type: ignore[list-item]
        Whole(None, [], {"\ud800": Part(1, [])}),
        Whole(None, [], {}, (1 << 53) + 1),
        None,
    ],
    ids=["a large number", "no object", "no text", "no float", "None"],
)
def test_single_added_object_is_refused_for_a_nested_value(value: Any) -> None:
    elements = state_of(Whole)
    with pytest.raises(InvalidRequestError, match="don't fit list state 's'"):
        elements.add(value)
    assert len(elements) == 0
