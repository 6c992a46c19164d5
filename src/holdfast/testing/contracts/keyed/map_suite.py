"""Map states."""

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import MapStateDescriptor
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import InvalidRequestError
from holdfast.testing.contracts.keyed.state_suite import Place, StateSuite


class MapSuite(StateSuite):
    """Requirements of map states."""

    def test_entries_are_put_read_and_removed_by_arrays(self, backend: KeyedStateBackend) -> None:
        state = backend.get_map_state(MapStateDescriptor("m", str, int)).columns
        keys = self.keys(backend, "a", "b", "a", "a")
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
        a = self.keys(backend, "a")
        state.remove(a, ["x", "gone"], indices=[0, 0])
        assert state.items(keys).values.to_pylist().count(3) == 1
        assert len(state.items(keys)) == 2
        state.clear(self.keys(backend, "b"))
        assert len(state.items(keys)) == 1

    def test_map_of_current_key_matches_flink(self, backend: KeyedStateBackend) -> None:
        state = backend.get_map_state(MapStateDescriptor("m", str, int))
        self.select_key(backend)
        assert state.is_empty()
        assert state.get("x") is None
        state.put("x", 1)
        state.put_all({"y": 2, "z": 3})
        assert "y" in state
        self.select_key(backend)
        state.put("x", 10)
        state.remove("y")
        state.remove("never")
        assert state.items() == {"x": 10, "z": 3}
        assert sorted(state) == sorted(state.keys()) == ["x", "z"]
        assert sorted(state.values()) == [3, 10]
        assert "y" not in state
        self.select_key(backend, "b")
        assert state.is_empty()
        self.select_key(backend)
        assert state.items() == {"x": 10, "z": 3}
        state.clear()
        state.put("w", 4)
        assert state.get("x") is None
        self.select_key(backend)
        assert state.items() == {"w": 4}
        state.remove("w")
        self.select_key(backend)
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

    def test_map_keys_may_have_any_hashable_type(self, backend: KeyedStateBackend) -> None:
        floats = backend.get_map_state(MapStateDescriptor("f", float, int))
        places = backend.get_map_state(MapStateDescriptor("p", Place, int))
        for number in range(2):
            self.select_key(backend)
            floats.put(math.nan, number)
            floats.put(-0.0, number)
            places.put(Place("x", 1), number)
        self.select_key(backend)
        assert floats.get(float("nan")) == floats.get(0.0) == places.get(Place("x", 1)) == 1
        assert len(floats.items()) == 2
        with pytest.raises(InvalidRequestError, match="'u': the map key"):
            backend.get_map_state(MapStateDescriptor("u", pa.uint8(), int))

    def test_map_keys_are_instants_whatever_clocks_show(self, backend: KeyedStateBackend) -> None:
        berlin = ZoneInfo("Europe/Berlin")
        kind = pa.timestamp("us", "Europe/Berlin")
        state = backend.get_map_state(MapStateDescriptor("m", kind, int))
        first, second = (
            dt.datetime(2020, 10, 25, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1)
        )
        for _ in range(2):
            self.select_key(backend)
            state.put(first, 1)
            state.put(second, 2)
            state.put(second.astimezone(dt.UTC), 3)
            assert (state.get(first), state.get(second)) == (1, 3)
            assert sorted(state.values()) == [1, 3]
            assert sorted(map(state.get, state)) == [1, 3]
        self.select_key(backend)
        state.remove(first.astimezone(dt.UTC))
        assert state.values() == [3]
