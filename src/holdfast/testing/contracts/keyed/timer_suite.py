"""Timers."""

import pytest

from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import InvalidRequestError
from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints
from holdfast.testing.contracts.keyed.state_suite import WINDOW, StateSuite


class TimerSuite(StateSuite):
    """Requirements of timers."""

    def test_timers_fire_once_in_order_of_time(self, backend: KeyedStateBackend) -> None:
        timers = backend.event_time_timers()
        other = backend.processing_time_timers()
        keys = self.keys(backend, "a", "b", "a")
        timers.columns.register(keys, [5000, 2000, 5000])
        self.select_key(backend, None)
        for time_ms in (-5, 2000, 1 << 50, 7):
            timers.register(time_ms)
        timers.delete(7)
        timers.columns.delete(self.keys(backend, "b"), [2000, 1], indices=[0, 0])
        fired = timers.fire(4999)
        assert (fired.times_ms.tolist(), fired.key[0].to_pylist()) == ([-5, 2000], [None, None])
        assert len(timers.fire(4999)) == 0
        timers.columns.register(self.keys(backend, "b"), [3])
        assert len(other.fire(1 << 60)) == 0
        fired = timers.fire(5000)
        assert (fired.times_ms.tolist(), fired.key[0].to_pylist()) == ([3, 5000], ["b", "a"])
        assert timers.fire((1 << 63) - 1).times_ms.tolist() == [1 << 50]
        with pytest.raises(InvalidRequestError, match="must be integers, in milliseconds"):
            timers.columns.register(keys, [0.5, 1, 2])

    def test_timers_are_of_a_namespace_and_survive(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        timers = backend.processing_time_timers("windows", WINDOW)
        self.select_key(backend)
        for window in (1, 2):
            backend.set_current_namespace(window)
            timers.register(10)
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles)
        fired = restored.processing_time_timers("windows", WINDOW).fire(10)
        assert sorted(fired.namespace[0].to_pylist()) == [1, 2]
        assert restored.state_names() == frozenset()

    def test_due_timers_remain_until_deleted(self, backend: KeyedStateBackend) -> None:
        timers = backend.processing_time_timers()
        keys = self.keys(backend, "a", "b")
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

    def test_earliest_remaining_timers_are_reported(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        assert backend.next_timers() == (None, None)
        timers = backend.event_time_timers()
        windows = backend.processing_time_timers("windows", WINDOW)
        self.select_key(backend)
        backend.set_current_namespace(1)
        windows.register(500)
        for time_ms in (-7, 10, 20_000, 90_000, 1 << 61):
            timers.register(time_ms)
        assert backend.next_timers() == (-7, 500)
        keys = self.keys(backend, "a")
        timers.columns.delete(keys, [-7, 10, 5], indices=[0, 0, 0])
        timers.columns.register(keys, [30_000])
        assert (timers.earliest(), timers.columns.earliest()) == (20_000, 20_000)
        timers.columns.delete(keys, [20_000])
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles)
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

    def test_timers_at_the_first_and_the_last_time_fire_once(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        first, last = -(1 << 63), (1 << 63) - 1
        backend.event_time_timers().columns.register(
            self.keys(backend, "a", "a", "a"), [first, first + 1, last]
        )
        restored = self.restore_backend(
            checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        )
        for each in (backend, restored):
            timers = each.event_time_timers()
            for until_ms, due in ((first, [first]), (first + 1, [first + 1]), (last, [last])):
                assert timers.fire(until_ms).times_ms.tolist() == due
                assert timers.fire(until_ms).times_ms.tolist() == []
            assert timers.earliest() is None
