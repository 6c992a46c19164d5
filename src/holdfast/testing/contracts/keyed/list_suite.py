"""List states."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import ListStateDescriptor
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import InvalidRequestError
from holdfast.testing.contracts.keyed.state_suite import StateSuite, values_by_user


class ListSuite(StateSuite):
    """Requirements of list states."""

    def test_elements_are_appended_in_the_order_of_rows(self, backend: KeyedStateBackend) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str)).columns
        keys = self.keys(backend, "a", "b", "a", "a")
        state.append(keys, ["1", "2", "3", "4"])
        state.append(keys, pa.array(["5", "6", "7", "8"]))
        expected = {"a": ["1", "3", "4", "5", "7", "8"], "b": ["2", "6"]}
        assert values_by_user(keys, state.get(keys)) == expected
        b = self.keys(backend, "b")
        state.put(b, [[]])
        assert values_by_user(keys, state.get(keys)) == {"a": expected["a"], "b": None}
        state.append(b, ["9"])
        state.put(self.keys(backend, "a"), pa.array([["x", "y"]]))
        assert values_by_user(keys, state.get(keys)) == {"a": ["x", "y"], "b": ["9"]}
        state.clear(keys)
        assert state.get(keys).null_count == 2

    def test_list_of_current_key_matches_flink(self, backend: KeyedStateBackend) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        self.select_key(backend)
        assert state.get() == []
        state.add("1")
        state.add_all([])
        state.add_all(["2", "3"])
        self.select_key(backend)
        state.add("4")
        assert state.get() == ["1", "2", "3", "4"]
        state.get().append("lost")
        state.add("5")
        self.select_key(backend)
        assert state.get() == ["1", "2", "3", "4", "5"]
        state.update(["x"])
        state.add("y")
        self.select_key(backend)
        assert state.get() == ["x", "y"]
        state.update([])
        assert state.get() == []
        state.add("z")
        self.select_key(backend)
        assert state.get() == ["z"]
        state.clear()
        self.select_key(backend)
        assert state.get() == []

    def test_none_as_list_element_is_refused(self, backend: KeyedStateBackend) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        keys = self.keys(backend, "a", "b")
        self.select_key(backend)
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
