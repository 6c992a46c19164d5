"""Bad input, and none at all."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend, Keys
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError
from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints
from holdfast.testing.contracts.keyed.keyed_suite import GROUPS
from holdfast.testing.contracts.keyed.state_suite import (
    KEY,
    ROW,
    TTL,
    StateSuite,
)


class InputSuite(StateSuite):
    """What refusing must do, and what a snapshot has of states."""

    def test_bad_input_is_refused_and_changes_nothing(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int))
        keys = self.keys(backend, "a", "b")
        state.columns.put(keys, [1, 2])
        calls: list[Callable[[], object]] = [
            lambda: state.columns.put(keys, [1]),
            lambda: state.columns.put(keys, ["x", "y"]),
            lambda: state.columns.put(keys, pa.array([0.5, 1.5])),
            lambda: entries.columns.put(keys, ["x"], [1]),
            lambda: entries.columns.put(keys, ["x", None], [1, 2]),
            lambda: entries.columns.get(keys, ["x"], indices=[7]),
            lambda: backend.keys([pa.array([1])]),
            lambda: backend.keys(pa.record_batch({"other": ["a"]})),
            lambda: backend.set_current_key(0),
            state.value,
            lambda: state.update(1),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()
        with pytest.raises(
            InvalidRequestError, match="map keys don't fit state 'm' of type string"
        ):
            entries.columns.put(keys, ["x", 2], [1, 2])
        assert state.columns.get(keys).to_pylist() == [1, 2]
        backend.begin_batch(keys)
        with pytest.raises(InvalidRequestError, match="no key is current"):
            state.value()
        with pytest.raises(InvalidRequestError, match="none of the 2 keys"):
            backend.set_current_key(2)
        backend.set_current_key(0)
        state.update("text")
        with pytest.raises(InvalidRequestError, match=r"'v'.*int64"):
            backend.end_batch()
        assert state.columns.get(keys).to_pylist() == [1, 2]

    def test_keys_of_other_subtasks_are_refused(self) -> None:
        groups = KeyGroupRange(0, 3)
        backend = KeyedStateBackend(self.tables_of(groups), KEY, GROUPS, groups)
        users = [f"user {n}" for n in range(40)]
        with pytest.raises(InvalidRequestError, match="came to the subtask of key groups 0 to 3"):
            backend.keys([pa.array(users)])
        state = backend.get_state(ValueStateDescriptor("v", int)).columns
        with pytest.raises(InvalidRequestError, match="came to the subtask"):
            state.get(Keys.of([pa.array(users)], GROUPS))
        with pytest.raises(InvalidRequestError, match="came to the subtask"):
            backend.begin_batch(Keys.of([pa.array(users)], GROUPS))

    def test_a_snapshot_has_what_was_written_by_key(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        self.current(backend)
        state.update(1)
        part = backend.snapshot(1, checkpoints.location(1))
        self.current(backend)
        state.update(2)
        restored = self.restored(checkpoints.run(part))
        self.current(restored)
        assert restored.get_state(ValueStateDescriptor("v", int)).value() == 1

    def test_an_empty_batch_is_one(self, backend: KeyedStateBackend) -> None:
        keys = self.keys(backend)
        empty = np.empty(0, np.int64)
        value = backend.get_state(ValueStateDescriptor("v", ROW)).columns
        elements = backend.get_list_state(ListStateDescriptor("l", int, ttl=TTL)).columns
        entries = backend.get_map_state(MapStateDescriptor("m", str, int)).columns
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int)).columns
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg")).columns
        value.put(keys, [])
        elements.append(keys, [])
        elements.put(keys, [])
        entries.put(keys, [], [])
        entries.clear(keys)
        total.add(keys, [])
        mean.add(keys, [])
        backend.event_time_timers().columns.register(keys, empty)
        assert len(backend.event_time_timers().fire(5)) == 0
        assert len(value.get(keys)) == len(elements.get(keys)) == len(entries.items(keys)) == 0
        assert len(total.get(keys)) == len(mean.get(keys)) == 0
        backend.begin_batch(keys)
        backend.end_batch()
