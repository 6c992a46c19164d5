"""Value states."""

from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.backends.serializers import Pickled
from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints
from holdfast.testing.contracts.keyed.state_suite import (
    ROW,
    TTL,
    Place,
    StateSuite,
    values_by_user,
)


class ValueSuite(StateSuite):
    """Requirements of value states."""

    def test_values_are_put_read_and_removed_by_arrays(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int)).columns
        keys = self.keys(backend, "a", "b", "a", None)
        assert values_by_user(keys, state.get(keys)) == {"a": None, "b": None, None: None}
        users = keys.columns[0].to_pylist()
        values = {"a": 1, "b": None, None: 3}
        state.put(keys, pa.array([values[user] for user in users]))
        assert values_by_user(keys, state.get(keys)) == values
        state.put(keys, [4 if user == "b" else None for user in users])
        assert values_by_user(keys, state.get(keys)) == {"a": None, "b": 4, None: None}
        state.clear(keys)
        assert state.get(keys).null_count == len(keys)

    def test_value_of_current_key_is_last_update(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(ValueStateDescriptor("v", str))
        self.select_key(backend)
        assert state.value() is None
        state.update("x")
        assert state.value() == "x"
        self.select_key(backend, "b")
        assert state.value() is None
        state.update("y")
        self.select_key(backend)
        assert state.value() == "x"
        state.update(None)
        assert state.value() is None
        self.select_key(backend)
        assert state.value() is None
        self.select_key(backend, "b")
        state.clear()
        assert state.value() is None

    def test_missing_value_returns_copy_of_default(self, backend: KeyedStateBackend) -> None:
        lists = backend.get_state(ValueStateDescriptor("v", pa.list_(pa.int64()), default=[1]))
        self.select_key(backend)
        lists.value().append(2)
        assert lists.value() == [1]
        keys = self.keys(backend, "a", "b")
        assert lists.columns.get(keys).to_pylist() == [[1], [1]]
        number = backend.get_state(ValueStateDescriptor("n", int, default=10**15))
        self.select_key(backend)
        assert number.value() == 10**15
        assert number.value() is number.value()  # immutable, so it is not copied
        alive = backend.get_state(ValueStateDescriptor("w", int, default=5, ttl=TTL))
        self.select_key(backend)
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
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints, type: Any, value: Any
    ) -> None:
        descriptor = ValueStateDescriptor("v", type)
        state = backend.get_state(descriptor)
        self.select_key(backend)
        state.update(value)
        self.select_key(backend)
        assert state.value() == value
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        other = self.restore_backend(handles)
        self.select_key(other)
        assert other.get_state(descriptor).value() == value
        self.select_key(other, "b")
        assert other.get_state(descriptor).value() is None

    def test_texts_in_views_are_values_elements_and_entries(
        self, backend: KeyedStateBackend
    ) -> None:
        type = pa.string_view()
        keys = self.keys(backend, "a", "b", "a")
        value = backend.get_state(ValueStateDescriptor("v", type, default="none")).columns
        value.put(keys, pa.array(["x", None], type))
        assert sorted(value.get(keys).to_pylist()) == ["none", "x"]
        elements = backend.get_list_state(ListStateDescriptor("l", type, ttl=TTL)).columns
        elements.append(keys, pa.array(["x", "y", "z"], type))
        assert values_by_user(keys, elements.get(keys)) == {"a": ["x", "z"], "b": ["y"]}
        entries = backend.get_map_state(MapStateDescriptor("m", str, type)).columns
        entries.put(keys, ["k", "k", "l"], pa.array(["x", "y", "z"], type))
        assert entries.get(keys, ["l", "l", "k"]).to_pylist() == ["z", None, "x"]

    def test_writes_by_key_and_by_arrays_are_mutually_visible(
        self, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        keys = self.keys(backend, "a", "b")
        backend.begin_batch(keys)
        backend.set_current_key(0)
        state.update(1)
        assert state.columns.get(keys).to_pylist() == [1, None]
        assert state.value() == 1
        state.columns.put(keys, [5, 6])
        assert state.value() == 5
        backend.set_current_key(1)
        assert state.value() == 6
