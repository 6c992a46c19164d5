"""What keyed states must do over any backend of tables, written once."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend, Keys, StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.serializers import Pickled
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing.contracts.keyed_checkpoints import KeyedCheckpoints

GROUPS = 16
ALL = KeyGroupRange(0, GROUPS - 1)
KEY = pa.schema([("user", pa.string())])
WINDOW = pa.schema([("window", pa.int64())])
ROW = pa.schema([("n", pa.int64()), ("total", pa.float64())])
TTL = StateTtlConfig(timedelta(milliseconds=100))
READ_TTL = StateTtlConfig(timedelta(milliseconds=100), UpdateType.ON_READ_AND_WRITE)
SHOWN_TTL = StateTtlConfig(
    timedelta(milliseconds=100), visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
)


@dataclass(frozen=True)
class Place:
    """A class that values can be of."""

    name: str
    size: int


class Words(AggregateFunction):
    """Counts the words of texts; the accumulator is changed where it is."""

    @property
    def accumulator_type(self) -> Any:
        return pa.map_(pa.string(), pa.int64())

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[:] = (Counter(dict(accumulator)) + Counter(value.split())).items()
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return dict(accumulator)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return list((Counter(dict(accumulator)) + Counter(dict(other))).items())


def by_user(keys: Keys, column: Any) -> dict[Any, Any]:
    """A column of values by key, as Python objects."""
    rows = column.to_pylist() if isinstance(column, pa.Array) else column
    return dict(zip(keys.columns[0].to_pylist(), rows, strict=True))


class KeyedStatesContract:
    """What keyed states must do over any `StateTables`.

    Subclass it in a test file, under a name that pytest collects, and provide `tables_of`.
    """

    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        """New tables of the key groups, restored from handles."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self) -> Iterator[KeyedStateBackend]:
        backend = self.restored(())
        yield backend
        backend.close()
        backend.close()

    @pytest.fixture
    def checkpoints(self) -> Iterator[KeyedCheckpoints]:
        checkpoints = KeyedCheckpoints()
        yield checkpoints
        checkpoints.delete()

    def restored(
        self, handles: Sequence[SegmentsStateHandle], now_ms: int = 1000
    ) -> KeyedStateBackend:
        backend = KeyedStateBackend(self.tables_of(ALL, handles), KEY, GROUPS)
        backend.advance_time(now_ms)
        return backend

    def keys(self, backend: KeyedStateBackend, *users: str | None) -> Keys:
        return backend.keys([pa.array(users, pa.string())])

    def current(self, backend: KeyedStateBackend, user: str | None = "a") -> None:
        """Begin a batch whose current key is that of a user, among others."""
        users = list(dict.fromkeys([user, "b", None]))
        keys = self.keys(backend, *users)
        backend.begin_batch(keys)
        backend.set_current_key(int(keys.codes[0]))

    # Value

    def test_values_are_put_read_and_removed_by_arrays(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int)).columns
        keys = self.keys(backend, "a", "b", "a", None)
        assert by_user(keys, state.get(keys)) == {"a": None, "b": None, None: None}
        users = keys.columns[0].to_pylist()
        values = {"a": 1, "b": None, None: 3}
        state.put(keys, pa.array([values[user] for user in users]))
        assert by_user(keys, state.get(keys)) == values
        state.put(keys, [4 if user == "b" else None for user in users])
        assert by_user(keys, state.get(keys)) == {"a": None, "b": 4, None: None}
        state.clear(keys)
        assert state.get(keys).null_count == len(keys)

    def test_a_value_of_the_current_key_is_what_was_set_last(
        self, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("v", str))
        self.current(backend)
        assert state.value() is None
        state.update("x")
        assert state.value() == "x"
        self.current(backend, "b")
        assert state.value() is None
        state.update("y")
        self.current(backend)
        assert state.value() == "x"
        state.update(None)
        assert state.value() is None
        self.current(backend)
        assert state.value() is None
        self.current(backend, "b")
        state.clear()
        assert state.value() is None

    def test_a_default_is_given_as_a_copy_where_there_is_no_value(
        self, backend: KeyedStateBackend
    ) -> None:
        lists = backend.get_state(ValueStateDescriptor("v", pa.list_(pa.int64()), default=[1]))
        self.current(backend)
        lists.value().append(2)
        assert lists.value() == [1]
        keys = self.keys(backend, "a", "b")
        assert lists.columns.get(keys).to_pylist() == [[1], [1]]
        alive = backend.get_state(ValueStateDescriptor("w", int, default=5, ttl=TTL))
        self.current(backend)
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
        ],
        ids=str,
    )
    def test_values_of_every_kind_of_type_come_back(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints, type: Any, value: Any
    ) -> None:
        descriptor = ValueStateDescriptor("v", type)
        state = backend.get_state(descriptor)
        self.current(backend)
        state.update(value)
        self.current(backend)
        assert state.value() == value
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        other = self.restored(handles)
        self.current(other)
        assert other.get_state(descriptor).value() == value
        self.current(other, "b")
        assert other.get_state(descriptor).value() is None

    def test_what_is_written_by_key_shows_by_arrays_and_the_other_way_round(
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

    # List

    def test_elements_are_appended_in_the_order_of_rows(self, backend: KeyedStateBackend) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str)).columns
        keys = self.keys(backend, "a", "b", "a", "a")
        state.append(keys, ["1", "2", "3", "4"])
        state.append(keys, pa.array(["5", "6", "7", "8"]))
        expected = {"a": ["1", "3", "4", "5", "7", "8"], "b": ["2", "6"]}
        assert by_user(keys, state.get(keys)) == expected
        b = self.keys(backend, "b")
        state.put(b, [[]])
        assert by_user(keys, state.get(keys)) == {"a": expected["a"], "b": None}
        state.append(b, ["9"])
        state.put(self.keys(backend, "a"), pa.array([["x", "y"]]))
        assert by_user(keys, state.get(keys)) == {"a": ["x", "y"], "b": ["9"]}
        state.clear(keys)
        assert state.get(keys).null_count == 2

    def test_a_list_of_the_current_key_does_what_flink_s_does(
        self, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        self.current(backend)
        assert state.get() == []
        state.add("1")
        state.add_all([])
        state.add_all(["2", "3"])
        self.current(backend)
        state.add("4")
        assert state.get() == ["1", "2", "3", "4"]
        state.get().append("lost")
        state.add("5")
        self.current(backend)
        assert state.get() == ["1", "2", "3", "4", "5"]
        state.update(["x"])
        state.add("y")
        self.current(backend)
        assert state.get() == ["x", "y"]
        state.update([])
        assert state.get() == []
        state.add("z")
        self.current(backend)
        assert state.get() == ["z"]
        state.clear()
        self.current(backend)
        assert state.get() == []

    def test_none_is_no_element_of_a_list(self, backend: KeyedStateBackend) -> None:
        state = backend.get_list_state(ListStateDescriptor("l", str))
        keys = self.keys(backend, "a", "b")
        self.current(backend)
        calls: list[Callable[[], None]] = [
            lambda: state.add(None),
            lambda: state.add_all(["a", None]),
            lambda: state.update(["a", None]),
            lambda: state.columns.append(keys, ["a", None]),
            lambda: state.columns.put(keys, [["a"], ["b", None]]),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match=r"'l'.*None|None.*'l'"):
                call()
        assert state.get() == []

    # Map

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
        with pytest.raises(InvalidRequestError, match="list can't be looked up"):
            state.get([])

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

    # Reducing and aggregating

    def test_columns_are_folded_by_known_functions(self, backend: KeyedStateBackend) -> None:
        keys = self.keys(backend, "a", "b", "a", "a")
        functions: dict[Any, tuple[Any, Any, Any]] = {
            "sum": (int, [1, 2, 3, 4], {"a": 16, "b": 4}),
            "count": (int, [9, 9, 9, 9], {"a": 6, "b": 2}),
            "min": (float, [3.0, 2.0, 1.0, 5.0], {"a": 1.0, "b": 2.0}),
            "max": (str, ["x", "y", "z", ""], {"a": "z", "b": "y"}),
            "any": (bool, [False, False, True, False], {"a": True, "b": False}),
            "all": (bool, [True, True, False, True], {"a": False, "b": True}),
            "concatenate": (
                pa.list_(pa.int64()),
                [[1], [2], [], [3, 4]],
                {"a": [1, 3, 4, 1, 3, 4], "b": [2, 2]},
            ),
        }
        for function, (type, values, expected) in functions.items():
            for ttl in (None, TTL):
                name = f"{function} {ttl}"
                state = backend.get_reducing_state(
                    ReducingStateDescriptor(name, function, type, ttl=ttl)
                )
                assert by_user(keys, state.columns.get(keys)) == {"a": None, "b": None}
                for _ in range(2):
                    state.columns.add(keys, values)
                assert by_user(keys, state.columns.get(keys)) == expected, name
                one_by_one = backend.get_reducing_state(
                    ReducingStateDescriptor(f"{name} by key", function, type, ttl=ttl)
                )
                for reads in (False, True):
                    backend.begin_batch(keys)
                    for code, value in zip(keys.codes.tolist(), values, strict=True):
                        backend.set_current_key(code)
                        one_by_one.add(value)
                        assert not reads or one_by_one.get() is not None
                assert by_user(keys, one_by_one.columns.get(keys)) == expected, name
                state.columns.clear(keys)
                assert state.columns.get(keys).null_count == 2

    def test_fields_of_a_struct_are_folded_each_by_its_function(
        self, backend: KeyedStateBackend
    ) -> None:
        descriptor = ReducingStateDescriptor("r", {"n": "count", "total": "sum"}, ROW)
        state = backend.get_reducing_state(descriptor)
        keys = self.keys(backend, "a", "b", "a")
        state.columns.add(keys, {"total": pa.array([1.0, 2.0, 3.0])})
        batch = pa.record_batch({"n": [7, 7, 7], "total": [1.0, 2.0, 3.0]}, ROW)
        state.columns.add(keys, batch)
        self.current(backend)
        state.add({"n": 0, "total": 0.5})
        assert state.get() == {"n": 5, "total": 8.5}
        assert by_user(keys, state.columns.get(keys)) == {
            "a": {"n": 5, "total": 8.5},
            "b": {"n": 2, "total": 4.0},
        }
        for wrong in ({"n": [1, 2, 3]}, {"total": [1.0, 2.0, 3.0], "more": [1, 2, 3]}):
            with pytest.raises(InvalidRequestError, match="state 'r' adds columns"):
                state.columns.add(keys, wrong)

    @pytest.mark.parametrize("function", ["sum", lambda a, b: a + b], ids=["known", "python"])
    def test_reduced_values_are_those_that_were_added_since_the_state_was_cleared(
        self, backend: KeyedStateBackend, function: Any
    ) -> None:
        state = backend.get_reducing_state(ReducingStateDescriptor("r", function, int))
        self.current(backend)
        assert state.get() is None
        state.add(1)
        state.add(2)
        self.current(backend)
        state.add(3)
        assert state.get() == 6
        state.add(None)
        assert state.get() is None
        state.add(4)
        self.current(backend)
        assert state.get() == 4
        state.clear()
        self.current(backend)
        assert state.get() is None
        keys = self.keys(backend, "a", "b", "a")
        state.columns.add(keys, [1, 2, 3])
        assert by_user(keys, state.columns.get(keys)) == {"a": 4, "b": 2}
        with pytest.raises(InvalidRequestError, match=r"'r'.*None is no element"):
            state.columns.add(keys, [1, None, 3])

    def test_means_and_functions_of_users_aggregate(self, backend: KeyedStateBackend) -> None:
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("mean", "avg"))
        words = backend.get_aggregating_state(AggregatingStateDescriptor("words", Words()))
        keys = self.keys(backend, "a", "b", "a")
        assert by_user(keys, mean.columns.get(keys)) == {"a": None, "b": None}
        assert words.columns.get(keys) == [None, None]
        mean.columns.add(keys, [1, 2, 3])
        words.columns.add(keys, pa.array(["x y", "z", "x"]))
        self.current(backend)
        mean.add(8)
        words.add("x w")
        assert mean.get() == 4.0
        assert words.get() == {"x": 3, "y": 1, "w": 1}
        assert by_user(keys, mean.columns.get(keys)) == {"a": 4.0, "b": 2.0}
        assert by_user(keys, words.columns.get(keys))["b"] == {"z": 1}
        self.current(backend)
        mean.add(None)
        words.clear()
        assert mean.get() is words.get() is None
        self.current(backend)
        assert mean.get() is words.get() is None

    # Namespaces

    def test_each_namespace_has_state_of_its_own(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int), WINDOW)
        entries = backend.get_map_state(MapStateDescriptor("m", str, int), WINDOW)
        plain = backend.get_state(ValueStateDescriptor("p", int))
        self.current(backend)
        with pytest.raises(InvalidRequestError, match="set_current_namespace"):
            value.value()
        for window in (1, 2, None):
            backend.set_current_namespace(window)
            value.update(window or 0)
            entries.put("x", window or 0)
            plain.update(window)
        backend.set_current_namespace(1)
        assert (value.value(), entries.items(), plain.value()) == (1, {"x": 1}, None)
        self.current(backend)
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
        self.current(backend)
        for wrong in (("x",), (1, 2)):
            backend.set_current_namespace(*wrong)
            with pytest.raises(InvalidRequestError, match="'v'"):
                value.value()

    def test_namespaces_are_merged_into_another(self, backend: KeyedStateBackend) -> None:
        lists = backend.get_list_state(ListStateDescriptor("l", int), WINDOW)
        sums = backend.get_reducing_state(ReducingStateDescriptor("s", "sum", int), WINDOW)
        means = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg"), WINDOW)
        self.current(backend)
        for window in (1, 2, 3):
            backend.set_current_namespace(window)
            lists.add(window)
            sums.add(window)
            means.add(window)
        self.current(backend)
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
            self.current(backend)

    # Timers

    def test_timers_fire_once_in_order_of_time(self, backend: KeyedStateBackend) -> None:
        timers = backend.event_time_timers()
        other = backend.processing_time_timers()
        keys = self.keys(backend, "a", "b", "a")
        timers.columns.register(keys, [5000, 2000, 5000])
        self.current(backend, None)
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
        with pytest.raises(InvalidRequestError, match="whole milliseconds"):
            timers.columns.register(keys, [0.5, 1, 2])

    def test_timers_are_of_a_namespace_and_survive(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        timers = backend.processing_time_timers("windows", WINDOW)
        self.current(backend)
        for window in (1, 2):
            backend.set_current_namespace(window)
            timers.register(10)
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restored(handles)
        fired = restored.processing_time_timers("windows", WINDOW).fire(10)
        assert sorted(fired.namespace[0].to_pylist()) == [1, 2]
        assert restored.state_names() == frozenset()

    # Time to live

    def test_values_and_entries_expire_one_by_one(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=TTL))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int, ttl=TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=TTL))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int, ttl=TTL))
        self.current(backend)
        value.update(1)
        entries.put("x", 1)
        elements.add("x")
        total.add(1)
        backend.advance_time(1050)
        self.current(backend)
        entries.put("y", 2)
        elements.add("y")
        total.add(2)
        backend.advance_time(1099)
        self.current(backend)
        assert (value.value(), entries.items()) == (1, {"x": 1, "y": 2})
        assert (elements.get(), total.get()) == (["x", "y"], 3)
        keys = self.keys(backend, "a")
        assert elements.columns.get(keys).to_pylist() == [["x", "y"]]
        backend.advance_time(1100)
        self.current(backend)
        assert (value.value(), entries.items(), entries.get("x")) == (None, {"y": 2}, None)
        assert (elements.get(), total.get()) == (["y"], 3)
        assert elements.columns.get(keys).to_pylist() == [["y"]]
        backend.advance_time(1150)
        self.current(backend)
        assert (value.value(), entries.items(), elements.get(), total.get()) == (None, {}, [], None)
        total.add(5)
        assert total.get() == 5
        assert elements.columns.get(keys).to_pylist() == [None]

    @pytest.mark.parametrize("by_arrays", [False, True])
    @pytest.mark.parametrize("ttl", [TTL, READ_TTL], ids=["writing", "reading"])
    def test_reading_starts_the_time_anew_only_if_it_should(
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
            self.current(backend)
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

    def test_what_is_over_may_be_shown_while_it_is_there(self, backend: KeyedStateBackend) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int, ttl=SHOWN_TTL))
        elements = backend.get_list_state(ListStateDescriptor("l", str, ttl=SHOWN_TTL))
        keys = self.keys(backend, "a")
        value.columns.put(keys, [1])
        elements.columns.append(keys, ["x"])
        backend.advance_time(5000)
        assert value.columns.get(keys).to_pylist()[0] in {1, None}
        assert elements.columns.get(keys).to_pylist()[0] in (["x"], None)
        self.current(backend)
        assert value.value() in {1, None}
        assert elements.get() in (["x"], [])
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
        restored = self.restored(handles, 1110)
        longer = StateTtlConfig(timedelta(milliseconds=105))
        state = restored.get_list_state(ListStateDescriptor("l", str, ttl=longer)).columns
        assert state.get(keys).to_pylist() == [["y"]]

    # Descriptors

    def test_a_state_is_the_same_object_each_time_and_of_the_same_type(
        self, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("s", int))
        assert backend.get_state(ValueStateDescriptor("s", pa.int64())) is state
        calls: list[Callable[[], object]] = [
            lambda: backend.get_state(ValueStateDescriptor("s", str)),
            lambda: backend.get_state(ValueStateDescriptor("s", int, ttl=TTL)),
            lambda: backend.get_state(ValueStateDescriptor("s", int), WINDOW),
            lambda: backend.get_list_state(ListStateDescriptor("s", int)),
            lambda: backend.get_map_state(MapStateDescriptor("s", int, int)),
            lambda: backend.get_reducing_state(ReducingStateDescriptor("s", "sum", int)),
            lambda: backend.get_aggregating_state(AggregatingStateDescriptor("s", "avg")),
        ]
        for call in calls:
            with pytest.raises(StateMigrationError, match="state 's' was asked for as value"):
                call()
        with pytest.raises(InvalidRequestError, match="timers"):
            backend.get_state(ValueStateDescriptor("_timers/event/timers", int))

    def test_values_are_migrated_and_what_cannot_be_is_refused_when_it_is_asked_for(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        keys = self.keys(backend, "a", "b")
        backend.get_state(ValueStateDescriptor("v", pa.int32())).columns.put(keys, [1, None])
        backend.get_state(ValueStateDescriptor("row", ROW)).columns.put(
            keys, [{"n": 1, "total": 2.0}, {"n": 2, "total": None}]
        )
        backend.get_list_state(ListStateDescriptor("l", pa.int32())).columns.append(keys, [1, 2])
        backend.get_list_state(ListStateDescriptor("t", pa.int32(), ttl=TTL)).columns.append(
            keys, [1, 2]
        )
        backend.get_map_state(MapStateDescriptor("m", str, pa.int32())).columns.put(
            keys, ["x", "x"], [1, 2]
        )
        backend.get_reducing_state(ReducingStateDescriptor("r", "sum", pa.int32())).columns.add(
            keys, [1, 2]
        )
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        other = self.restored(handles)
        assert other.state_names() == {"v", "row", "l", "t", "m", "r"}
        refused: list[Callable[[], object]] = [
            lambda: other.get_state(ValueStateDescriptor("v", pa.int16())),
            lambda: other.get_state(ValueStateDescriptor("row", int)),
            lambda: other.get_list_state(ListStateDescriptor("v", pa.int32())),
            lambda: other.get_list_state(ListStateDescriptor("l", str)),
            lambda: other.get_map_state(MapStateDescriptor("m", int, pa.int32())),
            lambda: other.get_map_state(MapStateDescriptor("m", str, str)),
            lambda: other.get_reducing_state(ReducingStateDescriptor("r", "min", pa.int32())),
            lambda: other.get_state(ValueStateDescriptor("v", pa.int32()), WINDOW),
        ]
        for call in refused:
            with pytest.raises(StateMigrationError, match=r"state '\w+' (is|was) stored"):
                call()
        more = pa.schema([*ROW, ("more", pa.string())])
        migrated: list[Any] = [
            other.get_state(ValueStateDescriptor("v", int)).columns,
            other.get_state(ValueStateDescriptor("row", more, defaults={"more": "x"})).columns,
            other.get_list_state(ListStateDescriptor("l", int)).columns,
            other.get_list_state(ListStateDescriptor("t", int, ttl=TTL)).columns,
            other.get_reducing_state(ReducingStateDescriptor("r", "sum", int)).columns,
        ]
        entries = other.get_map_state(MapStateDescriptor("m", str, int)).columns
        expected = [
            [1, None],
            [{"n": 1, "total": 2.0, "more": "x"}, {"n": 2, "total": None, "more": "x"}],
            None,
            None,
            None,
        ]
        for _ in range(2):
            for state, values in zip(migrated, expected, strict=True):
                rows = state.get(keys).to_pylist()
                codes = keys.codes.tolist()
                lists = [[1], [2]] if isinstance(rows[0], list) else [1, 2]
                assert rows == (values or [lists[codes.index(index)] for index in range(2)])
            assert entries.get(keys, ["x", "x"]).to_pylist() == [1, 2]
            checkpoints.run(other.snapshot(2, checkpoints.location(2)))

    def test_other_keys_are_refused(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        keys = self.keys(backend, "a")
        backend.get_state(ValueStateDescriptor("v", int)).columns.put(keys, [1])
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        for key in (pa.schema([("user", pa.large_string())]), pa.schema([("other", pa.string())])):
            with pytest.raises(StateMigrationError, match="keys can't be migrated"):
                KeyedStateBackend(self.tables_of(ALL, handles), key, GROUPS)
        for wrong in (pa.schema([]), pa.schema([("k", pa.uint64())])):
            with pytest.raises(InvalidRequestError, match="key"):
                KeyedStateBackend(self.tables_of(ALL), wrong, GROUPS)

    # Bad input

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

    # Snapshots

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
