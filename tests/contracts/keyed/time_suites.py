"""Timers, and states whose values expire."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from contracts.keyed.checkpoints import TTL, WINDOW, StateSuite, UserStates

from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.errors import InvalidRequestError, StateMigrationError

READ_TTL = StateTtlConfig(timedelta(milliseconds=100), UpdateType.ON_READ_AND_WRITE)
SHOWN_TTL = StateTtlConfig(
    timedelta(milliseconds=100), visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
)


class TtlSuite(StateSuite):
    """Requirements of time to live."""

    def test_values_and_entries_expire_one_by_one(self, backend: UserStates) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=TTL))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=TTL))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int, ttl=TTL))
        backend.select()
        value.update(1)
        entries.put("x", 1)
        elements.add("x")
        total.add(1)
        backend.advance_time(1050)
        backend.select()
        entries.put("y", 2)
        elements.add("y")
        total.add(2)
        backend.advance_time(1099)
        backend.select()
        assert (value.value(), entries.items()) == (1, {"x": 1, "y": 2})
        assert (elements.get(), total.get()) == (["x", "y"], 3)
        keys = backend.users("a")
        assert elements.columns.get(keys).to_pylist() == [["x", "y"]]
        backend.advance_time(1100)
        backend.select()
        assert (value.value(), entries.items(), entries.get("x")) == (None, {"y": 2}, None)
        assert (elements.get(), total.get()) == (["y"], 3)
        assert elements.columns.get(keys).to_pylist() == [["y"]]
        backend.advance_time(1150)
        backend.select()
        assert (value.value(), entries.items(), elements.get(), total.get()) == (None, {}, [], None)
        total.add(5)
        assert total.get() == 5
        assert elements.columns.get(keys).to_pylist() == [None]

    @pytest.mark.parametrize("by_arrays", [False, True])
    @pytest.mark.parametrize("ttl", [TTL, READ_TTL], ids=["writing", "reading"])
    def test_read_renews_ttl_only_if_configured(
        self, backend: UserStates, ttl: StateTtlConfig, *, by_arrays: bool
    ) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=ttl))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=ttl))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=ttl))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int, ttl=ttl))
        keys = backend.users("a", "b")
        value.columns.put(keys, [1, 1])
        entries.columns.put(keys, ["x", "x"], [1, 1])
        elements.columns.append(keys, ["x", "x"])
        total.columns.add(keys, [1, 1])
        a = backend.users("a")

        def read() -> list[Any]:
            if by_arrays:
                return [
                    value.columns.get(a).to_pylist()[0],
                    entries.columns.get(a, ["x"]).to_pylist()[0],
                    elements.columns.get(a).to_pylist()[0],
                    total.columns.get(a).to_pylist()[0],
                ]
            backend.select()
            values = [value.value(), entries.get("x"), elements.get() or None, total.get()]
            backend.end_batch()
            return values

        for time_ms in (60, 120, 180):
            backend.advance_time(1000 + time_ms)
            lives = ttl is READ_TTL or time_ms < 100
            assert read() == ([1, 1, ["x"], 1] if lives else [None] * 4), time_ms
        b = backend.users("b")
        assert value.columns.get(b).to_pylist() == [None]
        assert len(entries.columns.items(b)) == 0
        assert elements.columns.get(b).to_pylist() == [None]
        assert total.columns.get(b).to_pylist() == [None]

    def test_expired_value_is_returned_if_configured(self, backend: UserStates) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=SHOWN_TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=SHOWN_TTL))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=SHOWN_TTL))
        keys = backend.users("a")
        value.columns.put(keys, [1])
        elements.columns.append(keys, ["x"])
        entries.columns.put(keys, ["x"], [1])
        backend.advance_time(5000)
        shown = entries.columns.get(keys, ["x"]).to_pylist()[0]
        assert shown in {1, None}
        assert entries.columns.items(keys).values.to_pylist() == ([shown] if shown else [])
        assert value.columns.get(keys).to_pylist()[0] in {1, None}
        assert elements.columns.get(keys).to_pylist()[0] in (["x"], None)
        backend.select()
        assert value.value() in {1, None}
        assert elements.get() in (["x"], [])
        assert entries.get("x") == shown
        entries.clear()
        backend.select()
        assert entries.columns.get(keys, ["x"]).to_pylist() == [None]
        assert entries.items() == {}
        disabled = StateTtlConfig(timedelta(milliseconds=1), UpdateType.DISABLED)
        always = backend.get_state(ValueStateDescriptor("w", int, default=3, ttl=disabled))
        assert always.columns.get(keys).to_pylist() == [3]

    def test_times_survive(self, backend: UserStates) -> None:
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=TTL)).columns
        keys = backend.users("a")
        elements.append(keys, ["x"])
        backend.advance_time(1060)
        elements.append(keys, ["y"])
        restored = backend.restart(1110)
        longer = StateTtlConfig(timedelta(milliseconds=105))
        state = restored.get_list_state(ListStateDescriptor("l", str, ttl=longer)).columns
        assert state.get(keys).to_pylist() == [["y"]]

    def test_cleared_map_stays_empty_after_longer_ttl(self, backend: UserStates) -> None:
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL)).columns
        keys = backend.users("a")
        entries.put(keys, ["x"], [1])
        backend.advance_time(1100)
        entries.clear(keys)
        restored = backend.restart(1100)
        longer = StateTtlConfig(timedelta(milliseconds=500))
        state = restored.get_map_state(MapStateDescriptor("m", str, int, ttl=longer)).columns
        assert len(state.items(keys)) == 0

    def test_state_stored_without_ttl_can_not_get_one(self, backend: UserStates) -> None:
        backend.get_state(ValueStateDescriptor("v", int))
        backend.get_list_state(ListStateDescriptor("l", int))
        backend.get_map_state(MapStateDescriptor("m", str, int))
        restored = backend.restart()
        requests: dict[str, Callable[[], object]] = {
            "v": lambda: restored.get_state(ValueStateDescriptor("v", int, ttl=TTL)),
            "l": lambda: restored.get_list_state(ListStateDescriptor("l", int, ttl=TTL)),
            "m": lambda: restored.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL)),
        }
        for name, request in [*requests.items()] * 2:
            with pytest.raises(
                StateMigrationError, match=f"'{name}' was stored without a time to live"
            ):
                request()
        assert restored.get_list_state(ListStateDescriptor("l", int)).name == "l"

    @pytest.mark.parametrize("start_ms", [1000, 0, -5000])
    def test_no_element_expires_early_when_the_clock_goes_back(
        self, backend: UserStates, start_ms: int
    ) -> None:
        backend = backend.restart(start_ms)
        keys = backend.users("a")
        states = [
            backend.get_list_state(ListStateDescriptor(name, int, ttl=TTL)).columns
            for name in ("l", "never read")
        ]
        for element, ms in enumerate((0, -70, -60)):
            backend.advance_time(start_ms + ms)
            for state in states:
                state.append(keys, [element])
            assert states[0].get(keys).to_pylist() == [list(range(element + 1))]
        restored = backend.restart(start_ms + 35)
        for each in (backend, restored):
            each.advance_time(start_ms + 35)
            for name in ("l", "never read"):
                elements = each.get_list_state(ListStateDescriptor(name, int, ttl=TTL)).columns
                assert elements.get(keys).to_pylist() == [[0, 2]]
            each.advance_time(start_ms + 45)
            assert elements.get(keys).to_pylist() == [[0]]
            each.advance_time(start_ms + 100)
            assert elements.get(keys).to_pylist() == [None]


class TimerSuite(StateSuite):
    """Requirements of timers."""

    def test_timers_fire_once_in_order_of_time(self, backend: UserStates) -> None:
        timers = backend.event_time_timers()
        other = backend.processing_time_timers()
        keys = backend.users("a", "b", "a")
        timers.columns.register(keys, [5000, 2000, 5000])
        backend.select(None)
        for time_ms in (-5, 2000, 1 << 50, 7):
            timers.register(time_ms)
        timers.delete(7)
        timers.columns.delete(backend.users("b"), [2000, 1], indices=[0, 0])
        fired = timers.fire(4999)
        assert (fired.times_ms.tolist(), fired.key[0].to_pylist()) == ([-5, 2000], [None, None])
        assert len(timers.fire(4999)) == 0
        timers.columns.register(backend.users("b"), [3])
        assert len(other.fire(1 << 60)) == 0
        fired = timers.fire(5000)
        assert (fired.times_ms.tolist(), fired.key[0].to_pylist()) == ([3, 5000], ["b", "a"])
        assert timers.fire((1 << 63) - 1).times_ms.tolist() == [1 << 50]
        with pytest.raises(InvalidRequestError, match="must be integers, in milliseconds"):
            timers.columns.register(keys, [0.5, 1, 2])

    def test_timers_are_of_a_namespace_and_survive(self, backend: UserStates) -> None:
        timers = backend.processing_time_timers("windows", WINDOW)
        backend.select()
        for window in (1, 2):
            backend.set_current_namespace(window)
            timers.register(10)
        restored = backend.restart()
        fired = restored.processing_time_timers("windows", WINDOW).fire(10)
        assert sorted(fired.namespace[0].to_pylist()) == [1, 2]
        assert restored.state_names() == frozenset()

    def test_due_timers_remain_until_deleted(self, backend: UserStates) -> None:
        timers = backend.processing_time_timers()
        keys = backend.users("a", "b")
        timers.columns.register(keys, [5, 7], indices=[0, 0])
        timers.columns.register(keys, [6], indices=[1])
        due = timers.due(6)
        assert due.times_ms.tolist() == timers.due(6).times_ms.tolist() == [5, 6]
        current = backend.keys(due.key)
        backend.begin_batch(current)
        for code, time_ms in zip(current.codes.tolist(), due.times_ms.tolist(), strict=True):
            backend.set_current_key(code)
            timers.register(time_ms)  # already registered
            timers.register(time_ms - 3)
            timers.delete(time_ms)
        assert timers.due(7).times_ms.tolist() == [2, 3, 7]

    def test_earliest_remaining_timers_are_reported(self, backend: UserStates) -> None:
        assert backend.next_timers() == (None, None)
        timers = backend.event_time_timers()
        windows = backend.processing_time_timers("windows", WINDOW)
        backend.select()
        backend.set_current_namespace(1)
        windows.register(500)
        for time_ms in (-7, 10, 20_000, 90_000, 1 << 61):
            timers.register(time_ms)
        assert backend.next_timers() == (-7, 500)
        keys = backend.users("a")
        timers.columns.delete(keys, [-7, 10, 5], indices=[0, 0, 0])
        timers.columns.register(keys, [30_000])
        assert (timers.earliest(), timers.columns.earliest()) == (20_000, 20_000)
        timers.columns.delete(keys, [20_000])
        restored = backend.restart()
        for each in (backend, restored):
            assert each.next_timers() == (30_000, 500)
            each.event_time_timers().fire(30_000)
            assert each.next_timers() == (90_000, 500)
            each.event_time_timers("other").columns.register(keys, [40_000])
            each.event_time_timers().fire(1 << 60)
            assert each.next_timers() == (40_000, 500)
            each.event_time_timers("other").fire(1 << 60)
            assert each.next_timers() == (1 << 61, 500)
            each.event_time_timers().fire(1 << 62)
            each.processing_time_timers("windows", WINDOW).fire(500)
            assert each.next_timers() == (None, None)

    def test_timers_at_the_first_and_the_last_time_fire_once(self, backend: UserStates) -> None:
        first, last = -(1 << 63), (1 << 63) - 1
        backend.event_time_timers().columns.register(
            backend.users("a", "a", "a"), [first, first + 1, last]
        )
        restored = backend.restart()
        for each in (backend, restored):
            timers = each.event_time_timers()
            for until_ms, due in ((first, [first]), (first + 1, [first + 1]), (last, [last])):
                assert timers.fire(until_ms).times_ms.tolist() == due
                assert timers.fire(until_ms).times_ms.tolist() == []
            assert timers.earliest() is None
