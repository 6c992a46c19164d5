"""Invalid and empty input."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    GROUPS,
    ROW,
    TTL,
    USER,
    KeyedCheckpoints,
    StateSuite,
    UserStates,
)

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


class InputSuite(StateSuite):
    """Requirements of validation, and the content of snapshots."""

    def test_bad_input_is_refused_and_changes_nothing(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int))
        keys = backend.users("a", "b")
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
        with pytest.raises(InvalidRequestError, match="2 keys"):
            backend.set_current_key(2)
        backend.set_current_key(0)
        with pytest.raises(InvalidRequestError, match=r"'v'.*int64"):
            state.update("text")
        state.update(1 << 63)
        with pytest.raises(InvalidRequestError, match=r"'v'.*int64"):
            backend.end_batch()
        assert state.columns.get(keys).to_pylist() == [1, 2]

    def test_keys_of_other_subtasks_are_refused(self) -> None:
        groups = KeyGroupRange(0, 3)
        backend = KeyedStateBackend(self.tables_of(groups), USER, GROUPS, groups)
        users = [f"user {n}" for n in range(40)]
        with pytest.raises(InvalidRequestError, match="key groups 0 to 3"):
            backend.keys([pa.array(users)])
        state = backend.get_state(ValueStateDescriptor("v", int)).columns
        with pytest.raises(InvalidRequestError, match="subtask of key groups"):
            state.get(Keys.of([pa.array(users)], GROUPS))
        with pytest.raises(InvalidRequestError, match="subtask of key groups"):
            backend.begin_batch(Keys.of([pa.array(users)], GROUPS))

    def test_tables_of_other_key_groups_are_refused(self) -> None:
        for groups in (KeyGroupRange(0, 3), KeyGroupRange(0, GROUPS)):
            with pytest.raises(InvalidRequestError, match="key_group"):
                KeyedStateBackend(self.tables_of(groups), USER, GROUPS)
        with pytest.raises(InvalidRequestError, match=f"must be below max parallelism {GROUPS}"):
            KeyedStateBackend(self.tables_of(groups), USER, GROUPS, groups)

    def test_key_columns_with_other_names_or_types_are_refused(self, backend: UserStates) -> None:
        users = pa.array(["a", "b"])
        table = pa.table({"other": [1, 2], "user": users})
        assert len(backend.keys(table)) == len(backend.keys(table.to_batches()[0])) == 2
        refused: list[Any] = [
            users,
            [["a", "b"]],
            [users, users],
            table.rename_columns(["user"] * 2),
        ]
        for columns in refused:
            with pytest.raises(InvalidRequestError, match=r"user string|'user'"):
                backend.keys(columns)
        keys = backend.keys([users])
        namespaces: list[Any] = [[["a", "b"]], users]
        for columns in namespaces:
            with pytest.raises(InvalidRequestError, match="a namespace's columns"):
                backend.in_namespaces(keys, columns)

    def test_a_batch_of_other_keys_is_refused_before_it_begins(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        keys = backend.users("a")
        numbers = Keys.of([pa.array([1])], GROUPS)
        for other in (numbers, backend.in_namespaces(keys, [pa.array([1])])):
            with pytest.raises(InvalidRequestError, match="the key's columns must be user string"):
                backend.begin_batch(other)
            with pytest.raises(InvalidRequestError, match="no key is current"):
                state.update(1)
        backend.checkpoint()

    @pytest.mark.parametrize("time", [1.5, "5", None, math.nan, 1 << 63])
    def test_times_are_whole_milliseconds(self, backend: UserStates, time: Any) -> None:
        timers = backend.event_time_timers()
        backend.select()
        calls = (timers.register, timers.delete, timers.fire, timers.due, backend.advance_time)
        for call in calls:
            with pytest.raises(InvalidRequestError, match="integer of milliseconds"):
                call(time)
        backend.select()
        timers.register(np.int64(5))  # type: ignore[arg-type]
        assert timers.fire((1 << 63) - 1).times_ms.tolist() == [5]

    def test_index_outside_of_keys_is_refused(self, backend: UserStates) -> None:
        keys = backend.users("a", "b")
        entries = backend.get_map_state(MapStateDescriptor("m", str, int)).columns
        timers = backend.event_time_timers().columns
        for index in (-1, 2, 0.5):
            for call in (entries.get, entries.remove):
                with pytest.raises(InvalidRequestError, match=r"'m'.*2 keys"):
                    call(keys, ["x"], indices=[index])
            for write in (timers.register, timers.delete):
                with pytest.raises(InvalidRequestError, match="2 keys"):
                    write(keys, [5], indices=[index])

    def test_string_as_list_and_non_numbers_in_mean_are_refused(self, backend: UserStates) -> None:
        words = backend.get_list_state(ListStateDescriptor("words", str))
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("mean", "avg"))
        keys = backend.users("a")
        lists: list[Any] = ["text", 5, {"x": 1}]
        for elements in lists:
            with pytest.raises(InvalidRequestError, match="'words' takes lists of elements"):
                words.columns.put(keys, [elements])
            backend.select()
            for change in (words.add_all, words.update):
                with pytest.raises(InvalidRequestError, match="'words' takes lists of elements"):
                    change(elements)
        backend.select()
        for number in ("5", b"5", [1], 10**400):
            with pytest.raises(InvalidRequestError, match="'mean' is a mean of floats"):
                mean.add(number)
        assert mean.get() is None

    def test_oversized_column_is_refused_with_suitable_type(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", bytes)).columns
        keys = backend.users(*map(str, range(33)))
        chunk = pa.array([bytes(64 << 20)], pa.binary())
        with pytest.raises(InvalidRequestError, match=r"2 GiB.*large_binary"):
            state.put(keys, pa.chunked_array([chunk] * 33))
        assert state.get(keys).null_count == 33

    def test_snapshot_includes_values_written_by_key(
        self, backend: UserStates, checkpoints: KeyedCheckpoints
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        backend.select()
        state.update(1)
        part = backend.snapshot(1, checkpoints.location(1))
        backend.select()
        state.update(2)
        restored = UserStates(self.tables_of, checkpoints, checkpoints.run(part))
        restored.select()
        assert restored.get_state(ValueStateDescriptor("v", int)).value() == 1

    def test_an_empty_batch_is_one(self, backend: UserStates) -> None:
        keys = backend.users()
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
