"""States in namespaces."""

from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import InvalidRequestError
from holdfast.testing.contracts.keyed.state_suite import WINDOW, StateSuite


class NamespaceSuite(StateSuite):
    """Requirements of namespaces."""

    def test_namespaces_have_separate_state(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int), WINDOW)
        entries = backend.get_map_state(MapStateDescriptor("m", str, int), WINDOW)
        plain = backend.get_state(ValueStateDescriptor("p", int))
        self.select_key(backend)
        with pytest.raises(InvalidRequestError, match="set_current_namespace"):
            value.value()
        for window in (1, 2, None):
            backend.set_current_namespace(window)
            value.update(window or 0)
            entries.put("x", window or 0)
            plain.update(window)
        backend.set_current_namespace(1)
        assert (value.value(), entries.items(), plain.value()) == (1, {"x": 1}, None)
        self.select_key(backend)
        backend.set_current_namespace(2)
        assert (value.value(), entries.items()) == (2, {"x": 2})
        entries.clear()
        value.clear()
        keys = self.keys(backend, "a", "a", "b", "a")
        windows = backend.in_namespaces(keys, [pa.array([1, 2, 1, None])])
        named = dict(zip(windows.codes.tolist(), ["a1", "a2", "b1", "a0"], strict=True))
        values = value.columns.get(windows).to_pylist()
        assert {named[index]: number for index, number in enumerate(values)} == {
            "a1": 1,
            "a2": None,
            "b1": None,
            "a0": 0,
        }
        assert sorted(entries.columns.items(windows).values.to_pylist()) == [0, 1]
        with pytest.raises(InvalidRequestError, match="in_namespaces"):
            value.columns.get(keys)
        with pytest.raises(InvalidRequestError, match="namespaces"):
            plain.columns.get(windows)
        self.select_key(backend)
        for wrong in (("x",), (1, 2)):
            backend.set_current_namespace(*wrong)
            with pytest.raises(InvalidRequestError, match="'v'"):
                value.value()

    def test_nan_is_one_namespace_and_list_namespace_needs_arrays(
        self, backend: KeyedStateBackend
    ) -> None:
        floats, lists = (pa.schema([("n", type)]) for type in (pa.float64(), pa.list_(pa.int64())))
        total = backend.get_reducing_state(ReducingStateDescriptor("total", "sum", int), floats)
        self.select_key(backend)
        for _ in range(3):
            backend.set_current_namespace(float("nan"))
            total.add(1)
        assert total.get() == 3
        state = backend.get_reducing_state(ReducingStateDescriptor("by list", "sum", int), lists)
        self.select_key(backend)
        backend.set_current_namespace([1, 2])
        with pytest.raises(InvalidRequestError, match=r"'by list'.*in_namespaces"):
            state.get()
        keys = backend.in_namespaces(self.keys(backend, "a"), [pa.array([[1, 2]])])
        state.columns.add(keys, [5])
        assert state.columns.get(keys).to_pylist() == [5]

    def test_namespaces_are_merged_into_another(self, backend: KeyedStateBackend) -> None:
        lists = backend.get_list_state(ListStateDescriptor("l", int), WINDOW)
        sums = backend.get_reducing_state(ReducingStateDescriptor("s", "sum", int), WINDOW)
        means = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg"), WINDOW)
        self.select_key(backend)
        for window in (1, 2, 3):
            backend.set_current_namespace(window)
            lists.add(window)
            sums.add(window)
            means.add(window)
        self.select_key(backend)
        for state in (lists, sums, means):
            state.merge_namespaces((1,), [(2,), (3,), (4,)])
            state.merge_namespaces((7,), [(8,)])
        expected: dict[int, tuple[Any, ...]] = {
            1: ([1, 2, 3], 6, 2.0),
            2: ([], None, None),
            7: ([], None, None),
        }
        for _ in range(2):
            for window, values in expected.items():
                backend.set_current_namespace(window)
                assert (lists.get(), sums.get(), means.get()) == values
            self.select_key(backend)

    def test_a_state_without_namespaces_has_none_to_merge(self, backend: KeyedStateBackend) -> None:
        elements = backend.get_list_state(ListStateDescriptor("l", int))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int))
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg"))
        self.select_key(backend)
        elements.add(1)
        for merge in (elements.merge_namespaces, total.merge_namespaces, mean.merge_namespaces):
            with pytest.raises(InvalidRequestError, match="has no namespaces"):
                merge((1,), [(2,)])
        assert elements.get() == [1]
