"""States whose values expire."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import StateMigrationError
from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints
from holdfast.testing.contracts.keyed.state_suite import TTL, StateSuite

READ_TTL = StateTtlConfig(timedelta(milliseconds=100), UpdateType.ON_READ_AND_WRITE)
SHOWN_TTL = StateTtlConfig(
    timedelta(milliseconds=100), visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
)


class TtlSuite(StateSuite):
    """Requirements of time to live."""

    def test_values_and_entries_expire_one_by_one(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=TTL))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=TTL))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int, ttl=TTL))
        self.select_key(backend)
        value.update(1)
        entries.put("x", 1)
        elements.add("x")
        total.add(1)
        backend.advance_time(1050)
        self.select_key(backend)
        entries.put("y", 2)
        elements.add("y")
        total.add(2)
        backend.advance_time(1099)
        self.select_key(backend)
        assert (value.value(), entries.items()) == (1, {"x": 1, "y": 2})
        assert (elements.get(), total.get()) == (["x", "y"], 3)
        keys = self.keys(backend, "a")
        assert elements.columns.get(keys).to_pylist() == [["x", "y"]]
        backend.advance_time(1100)
        self.select_key(backend)
        assert (value.value(), entries.items(), entries.get("x")) == (None, {"y": 2}, None)
        assert (elements.get(), total.get()) == (["y"], 3)
        assert elements.columns.get(keys).to_pylist() == [["y"]]
        backend.advance_time(1150)
        self.select_key(backend)
        assert (value.value(), entries.items(), elements.get(), total.get()) == (None, {}, [], None)
        total.add(5)
        assert total.get() == 5
        assert elements.columns.get(keys).to_pylist() == [None]

    @pytest.mark.parametrize("by_arrays", [False, True])
    @pytest.mark.parametrize("ttl", [TTL, READ_TTL], ids=["writing", "reading"])
    def test_read_renews_ttl_only_if_configured(
        self, backend: KeyedStateBackend, ttl: StateTtlConfig, *, by_arrays: bool
    ) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=ttl))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=ttl))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=ttl))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int, ttl=ttl))
        keys = self.keys(backend, "a", "b")
        value.columns.put(keys, [1, 1])
        entries.columns.put(keys, ["x", "x"], [1, 1])
        elements.columns.append(keys, ["x", "x"])
        total.columns.add(keys, [1, 1])
        a = self.keys(backend, "a")

        def read() -> list[Any]:
            if by_arrays:
                return [
                    value.columns.get(a).to_pylist()[0],
                    entries.columns.get(a, ["x"]).to_pylist()[0],
                    elements.columns.get(a).to_pylist()[0],
                    total.columns.get(a).to_pylist()[0],
                ]
            self.select_key(backend)
            values = [value.value(), entries.get("x"), elements.get() or None, total.get()]
            backend.end_batch()
            return values

        for time_ms in (60, 120, 180):
            backend.advance_time(1000 + time_ms)
            lives = ttl is READ_TTL or time_ms < 100
            assert read() == ([1, 1, ["x"], 1] if lives else [None] * 4), time_ms
        b = self.keys(backend, "b")
        assert value.columns.get(b).to_pylist() == [None]
        assert len(entries.columns.items(b)) == 0
        assert elements.columns.get(b).to_pylist() == [None]
        assert total.columns.get(b).to_pylist() == [None]

    def test_expired_value_is_returned_if_configured(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=SHOWN_TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=SHOWN_TTL))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=SHOWN_TTL))
        keys = self.keys(backend, "a")
        value.columns.put(keys, [1])
        elements.columns.append(keys, ["x"])
        entries.columns.put(keys, ["x"], [1])
        backend.advance_time(5000)
        shown = entries.columns.get(keys, ["x"]).to_pylist()[0]
        assert shown in {1, None}
        assert entries.columns.items(keys).values.to_pylist() == ([shown] if shown else [])
        assert value.columns.get(keys).to_pylist()[0] in {1, None}
        assert elements.columns.get(keys).to_pylist()[0] in (["x"], None)
        self.select_key(backend)
        assert value.value() in {1, None}
        assert elements.get() in (["x"], [])
        assert entries.get("x") == shown
        entries.clear()
        self.select_key(backend)
        assert entries.columns.get(keys, ["x"]).to_pylist() == [None]
        assert entries.items() == {}
        disabled = StateTtlConfig(timedelta(milliseconds=1), UpdateType.DISABLED)
        always = backend.get_state(ValueStateDescriptor("w", int, default=3, ttl=disabled))
        assert always.columns.get(keys).to_pylist() == [3]

    def test_times_survive(self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints) -> None:
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=TTL)).columns
        keys = self.keys(backend, "a")
        elements.append(keys, ["x"])
        backend.advance_time(1060)
        elements.append(keys, ["y"])
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles, 1110)
        longer = StateTtlConfig(timedelta(milliseconds=105))
        state = restored.get_list_state(ListStateDescriptor("l", str, ttl=longer)).columns
        assert state.get(keys).to_pylist() == [["y"]]

    def test_cleared_map_stays_empty_after_longer_ttl(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL)).columns
        keys = self.keys(backend, "a")
        entries.put(keys, ["x"], [1])
        backend.advance_time(1100)
        entries.clear(keys)
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles, 1100)
        longer = StateTtlConfig(timedelta(milliseconds=500))
        state = restored.get_map_state(MapStateDescriptor("m", str, int, ttl=longer)).columns
        assert len(state.items(keys)) == 0

    def test_state_stored_without_ttl_can_not_get_one(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        backend.get_state(ValueStateDescriptor("v", int))
        backend.get_list_state(ListStateDescriptor("l", int))
        backend.get_map_state(MapStateDescriptor("m", str, int))
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles)
        for _ in range(2):
            with pytest.raises(StateMigrationError, match="'v' was stored without a time to live"):
                restored.get_state(ValueStateDescriptor("v", int, ttl=TTL))
            with pytest.raises(StateMigrationError, match="'l' was stored without a time to live"):
                restored.get_list_state(ListStateDescriptor("l", int, ttl=TTL))
            with pytest.raises(StateMigrationError, match="'m' was stored without a time to live"):
                restored.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        assert restored.get_list_state(ListStateDescriptor("l", int)).name == "l"

    @pytest.mark.parametrize("start_ms", [1000, 0, -5000])
    def test_no_element_expires_early_when_the_clock_goes_back(
        self, start_ms: int, checkpoints: KeyedCheckpoints
    ) -> None:
        backend = self.restore_backend((), start_ms)
        keys = self.keys(backend, "a")
        states = [
            backend.get_list_state(ListStateDescriptor(name, int, ttl=TTL)).columns
            for name in ("l", "never read")
        ]
        for element, ms in enumerate((0, -70, -60)):
            backend.advance_time(start_ms + ms)
            for state in states:
                state.append(keys, [element])
            assert states[0].get(keys).to_pylist() == [list(range(element + 1))]
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles, start_ms + 35)
        for each in (backend, restored):
            each.advance_time(start_ms + 35)
            for name in ("l", "never read"):
                elements = each.get_list_state(ListStateDescriptor(name, int, ttl=TTL)).columns
                assert elements.get(keys).to_pylist() == [[0, 2]]
            each.advance_time(start_ms + 45)
            assert elements.get(keys).to_pylist() == [[0]]
            each.advance_time(start_ms + 100)
            assert elements.get(keys).to_pylist() == [None]
