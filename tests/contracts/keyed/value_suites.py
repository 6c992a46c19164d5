"""Value states."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    ROW,
    TTL,
    Place,
    StateSuite,
    UserStates,
    values_by_user,
)

from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.serializers import Pickled
from holdfast.errors import InvalidRequestError


class ValueSuite(StateSuite):
    """Requirements of value states."""

    def test_values_are_put_read_and_removed_by_arrays(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int)).columns
        keys = backend.users("a", "b", "a", None)
        assert values_by_user(keys, state.get(keys)) == {"a": None, "b": None, None: None}
        users = keys.columns[0].to_pylist()
        values = {"a": 1, "b": None, None: 3}
        state.put(keys, pa.array([values[user] for user in users]))
        assert values_by_user(keys, state.get(keys)) == values
        state.put(keys, [4 if user == "b" else None for user in users])
        assert values_by_user(keys, state.get(keys)) == {"a": None, "b": 4, None: None}
        state.clear(keys)
        assert state.get(keys).null_count == len(keys)

    def test_value_of_current_key_is_last_update(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", str))
        backend.select()
        assert state.value() is None
        state.update("x")
        assert state.value() == "x"
        backend.select("b")
        assert state.value() is None
        state.update("y")
        backend.select()
        assert state.value() == "x"
        state.update(None)
        assert state.value() is None
        backend.select()
        assert state.value() is None
        backend.select("b")
        state.clear()
        assert state.value() is None

    def test_missing_value_returns_copy_of_default(self, backend: UserStates) -> None:
        lists = backend.get_state(ValueStateDescriptor("v", pa.list_(pa.int64()), default=[1]))
        backend.select()
        lists.value().append(2)
        assert lists.value() == [1]
        keys = backend.users("a", "b")
        assert lists.columns.get(keys).to_pylist() == [[1], [1]]
        number = backend.get_state(ValueStateDescriptor("n", int, default=10**15))
        backend.select()
        assert number.value() == 10**15
        assert number.value() is number.value()  # immutable, so it is not copied
        alive = backend.get_state(ValueStateDescriptor("w", int, default=5, ttl=TTL))
        backend.select()
        assert alive.value() is None

    @pytest.mark.parametrize(
        ("type", "value"),
        [
            (pa.int32(), 5),
            (ROW, {"n": 1, "total": 2.5}),
            (ROW, {"n": None, "total": None}),
            (pa.list_(ROW.field(0)), [1, None]),
            (pa.struct([]), {}),
            (Place, Place("x", 1)),
            (dict[str, int], {"a": 1}),
            (Pickled(complex), 1j),
            (bytes, b"\0"),
            (pa.string_view(), "text in a view"),
            (pa.binary_view(), b"bytes in a view"),
            (pa.struct([("x", pa.list_(pa.string_view()))]), {"x": ["text in a view", None]}),
        ],
        ids=str,
    )
    def test_values_of_all_types_are_restored(
        self, backend: UserStates, type: Any, value: Any
    ) -> None:
        descriptor = ValueStateDescriptor("v", type)
        state = backend.get_state(descriptor)
        backend.select()
        state.update(value)
        backend.select()
        assert state.value() == value
        other = backend.restart()
        other.select()
        assert other.get_state(descriptor).value() == value
        other.select("b")
        assert other.get_state(descriptor).value() is None

    def test_texts_in_views_are_values_elements_and_entries(self, backend: UserStates) -> None:
        type = pa.string_view()
        keys = backend.users("a", "b", "a")
        value = backend.get_state(ValueStateDescriptor("v", type, default="none")).columns
        value.put(keys, pa.array(["x", None], type))
        assert sorted(value.get(keys).to_pylist()) == ["none", "x"]
        elements = backend.get_list_state(ListStateDescriptor("l", type, ttl=TTL)).columns
        elements.append(keys, pa.array(["x", "y", "z"], type))
        assert values_by_user(keys, elements.get(keys)) == {"a": ["x", "z"], "b": ["y"]}
        entries = backend.get_map_state(MapStateDescriptor("m", str, type)).columns
        entries.put(keys, ["k", "k", "l"], pa.array(["x", "y", "z"], type))
        assert entries.get(keys, ["l", "l", "k"]).to_pylist() == ["z", None, "x"]

    def test_writes_by_key_and_by_arrays_are_mutually_visible(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        keys = backend.users("a", "b")
        backend.begin_batch(keys)
        backend.set_current_key(0)
        state.update(1)
        assert state.columns.get(keys).to_pylist() == [1, None]
        assert state.value() == 1
        state.columns.put(keys, [5, 6])
        assert state.value() == 5
        backend.set_current_key(1)
        assert state.value() == 6


class ListSuite(StateSuite):
    """Requirements of list states."""

    def test_elements_are_appended_in_the_order_of_rows(self, backend: UserStates) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str)).columns
        keys = backend.users("a", "b", "a", "a")
        state.append(keys, ["1", "2", "3", "4"])
        state.append(keys, pa.array(["5", "6", "7", "8"]))
        expected = {"a": ["1", "3", "4", "5", "7", "8"], "b": ["2", "6"]}
        assert values_by_user(keys, state.get(keys)) == expected
        b = backend.users("b")
        state.put(b, [[]])
        assert values_by_user(keys, state.get(keys)) == {"a": expected["a"], "b": None}
        state.append(b, ["9"])
        state.put(backend.users("a"), pa.array([["x", "y"]]))
        assert values_by_user(keys, state.get(keys)) == {"a": ["x", "y"], "b": ["9"]}
        state.clear(keys)
        assert state.get(keys).null_count == 2

    def test_list_of_current_key_matches_flink(self, backend: UserStates) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        backend.select()
        assert state.get() == []
        state.add("1")
        state.add_all([])
        state.add_all(["2", "3"])
        backend.select()
        state.add("4")
        assert state.get() == ["1", "2", "3", "4"]
        state.get().append("lost")
        state.add("5")
        backend.select()
        assert state.get() == ["1", "2", "3", "4", "5"]
        state.update(["x"])
        state.add("y")
        backend.select()
        assert state.get() == ["x", "y"]
        state.update([])
        assert state.get() == []
        state.add("z")
        backend.select()
        assert state.get() == ["z"]
        state.clear()
        backend.select()
        assert state.get() == []

    def test_none_as_list_element_is_refused(self, backend: UserStates) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        keys = backend.users("a", "b")
        backend.select()
        calls: list[Callable[[], None]] = [
            lambda: state.add(None),
            lambda: state.add_all(["a", None]),
            lambda: state.update(["a", None]),
            lambda: state.add_all(None),  # type: ignore[arg-type]
            lambda: state.update(None),  # type: ignore[arg-type]
            lambda: state.columns.append(keys, ["a", None]),
            lambda: state.columns.put(keys, [["a"], ["b", None]]),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match=r"'l'.*None|None.*'l'"):
                call()
        assert state.get() == []


class MapSuite(StateSuite):
    """Requirements of map states."""

    def test_entries_are_put_read_and_removed_by_arrays(self, backend: UserStates) -> None:
        state = backend.get_map_state(MapStateDescriptor("m", str, int)).columns
        keys = backend.users("a", "b", "a", "a")
        state.put(keys, ["x", "x", "y", "x"], [1, 2, 3, 4])
        assert state.get(keys, ["x", "x", "y", "z"]).to_pylist() == [4, 2, 3, None]
        entries = state.items(keys)
        values = {
            (keys.columns[0][index].as_py(), map_key): value
            for index, map_key, value in zip(
                entries.indices.tolist(),
                entries.map_keys.to_pylist(),
                entries.values.to_pylist(),
                strict=True,
            )
        }
        assert values == {("a", "x"): 4, ("a", "y"): 3, ("b", "x"): 2}
        assert entries.indices.tolist() == sorted(entries.indices.tolist())
        a = backend.users("a")
        state.remove(a, ["x", "gone"], indices=[0, 0])
        assert state.items(keys).values.to_pylist().count(3) == 1
        assert len(state.items(keys)) == 2
        state.clear(backend.users("b"))
        assert len(state.items(keys)) == 1

    def test_map_of_current_key_matches_flink(self, backend: UserStates) -> None:
        state = backend.get_map_state(MapStateDescriptor("m", str, int))
        backend.select()
        assert state.is_empty()
        assert state.get("x") is None
        state.put("x", 1)
        state.put_all({"y": 2, "z": 3})
        assert "y" in state
        backend.select()
        state.put("x", 10)
        state.remove("y")
        state.remove("never")
        assert state.items() == {"x": 10, "z": 3}
        assert sorted(state) == sorted(state.keys()) == ["x", "z"]
        assert sorted(state.values()) == [3, 10]
        assert "y" not in state
        backend.select("b")
        assert state.is_empty()
        backend.select()
        assert state.items() == {"x": 10, "z": 3}
        state.clear()
        state.put("w", 4)
        assert state.get("x") is None
        backend.select()
        assert state.items() == {"w": 4}
        state.remove("w")
        backend.select()
        assert state.is_empty()
        with pytest.raises(InvalidRequestError, match="None"):
            state.put("x", None)
        with pytest.raises(InvalidRequestError, match="map state 'm' must not be None"):
            state.put(None, 1)
        with pytest.raises(InvalidRequestError, match="map keys don't fit state 'm'"):
            state.get([])
        lists = backend.get_map_state(MapStateDescriptor("by list", pa.list_(pa.int64()), int))
        with pytest.raises(
            InvalidRequestError, match="type list of state 'by list' can't be hashed"
        ):
            lists.get([])

    def test_map_keys_may_have_any_hashable_type(self, backend: UserStates) -> None:
        floats = backend.get_map_state(MapStateDescriptor("f", float, int))
        places = backend.get_map_state(MapStateDescriptor("p", Place, int))
        for number in range(2):
            backend.select()
            floats.put(math.nan, number)
            floats.put(-0.0, number)
            places.put(Place("x", 1), number)
        backend.select()
        assert floats.get(float("nan")) == floats.get(0.0) == places.get(Place("x", 1)) == 1
        assert len(floats.items()) == 2
        with pytest.raises(InvalidRequestError, match="'u': the map key"):
            backend.get_map_state(MapStateDescriptor("u", pa.uint8(), int))

    def test_map_keys_are_instants_whatever_clocks_show(self, backend: UserStates) -> None:
        berlin = ZoneInfo("Europe/Berlin")
        kind = pa.timestamp("us", "Europe/Berlin")
        state = backend.get_map_state(MapStateDescriptor("m", kind, int))
        first, second = (
            dt.datetime(2020, 10, 25, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1)
        )
        for _ in range(2):
            backend.select()
            state.put(first, 1)
            state.put(second, 2)
            state.put(second.astimezone(dt.UTC), 3)
            assert (state.get(first), state.get(second)) == (1, 3)
            assert sorted(state.values()) == [1, 3]
            assert sorted(map(state.get, state)) == [1, 3]
        backend.select()
        state.remove(first.astimezone(dt.UTC))
        assert state.values() == [3]
