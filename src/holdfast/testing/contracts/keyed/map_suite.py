"""Maps of keys."""

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
    """What map states must do."""

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

    def test_a_map_of_the_current_key_does_what_flink_s_does(
        self, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_map_state(MapStateDescriptor("m", str, int))
        self.current(backend)
        assert state.is_empty()
        assert state.get("x") is None
        state.put("x", 1)
        state.put_all({"y": 2, "z": 3})
        assert "y" in state
        self.current(backend)
        state.put("x", 10)
        state.remove("y")
        state.remove("never")
        assert state.items() == {"x": 10, "z": 3}
        assert sorted(state) == sorted(state.keys()) == ["x", "z"]
        assert sorted(state.values()) == [3, 10]
        assert "y" not in state
        self.current(backend, "b")
        assert state.is_empty()
        self.current(backend)
        assert state.items() == {"x": 10, "z": 3}
        state.clear()
        state.put("w", 4)
        assert state.get("x") is None
        self.current(backend)
        assert state.items() == {"w": 4}
        state.remove("w")
        self.current(backend)
        assert state.is_empty()
        with pytest.raises(InvalidRequestError, match="None is no value"):
            state.put("x", None)
        with pytest.raises(InvalidRequestError, match="None is no key of map state 'm'"):
            state.put(None, 1)
        with pytest.raises(InvalidRequestError, match="map keys don't fit state 'm'"):
            state.get([])
        lists = backend.get_map_state(MapStateDescriptor("by list", pa.list_(pa.int64()), int))
        with pytest.raises(InvalidRequestError, match="list can't be looked up"):
            lists.get([])

    def test_map_keys_may_be_of_any_type_that_is_hashed(self, backend: KeyedStateBackend) -> None:
        floats = backend.get_map_state(MapStateDescriptor("f", float, int))
        places = backend.get_map_state(MapStateDescriptor("p", Place, int))
        for number in range(2):
            self.current(backend)
            floats.put(math.nan, number)
            floats.put(-0.0, number)
            places.put(Place("x", 1), number)
        self.current(backend)
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
            self.current(backend)
            state.put(first, 1)
            state.put(second, 2)
            state.put(second.astimezone(dt.UTC), 3)
            assert (state.get(first), state.get(second)) == (1, 3)
            assert sorted(state.values()) == [1, 3]
            assert sorted(map(state.get, state)) == [1, 3]
        self.current(backend)
        state.remove(first.astimezone(dt.UTC))
        assert state.values() == [3]
