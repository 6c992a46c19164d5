"""Lookup of states: by descriptors, which are compared with stored ones, and by namespaces."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import (
    ALL,
    GROUPS,
    ROW,
    TTL,
    USER,
    WINDOW,
    StateSuite,
    UserStates,
)
from contracts.keyed.folding_suite import WordCount

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.errors import InvalidRequestError, StateMigrationError


class _OtherWordCount(WordCount):
    pass


class LookupSuite(StateSuite):
    """Requirements of the lookup of states."""

    def test_a_state_is_the_same_object_each_time_and_of_the_same_type(
        self, backend: UserStates
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("s", int))
        assert backend.get_state(ValueStateDescriptor("s", pa.int64())) is state
        calls: list[Callable[[], object]] = [
            lambda: backend.get_state(ValueStateDescriptor("s", str)),
            lambda: backend.get_state(ValueStateDescriptor("s", int, ttl=TTL)),
            lambda: backend.get_state(ValueStateDescriptor("s", int, default=1)),
            lambda: backend.get_state(ValueStateDescriptor("s", int), WINDOW),
            lambda: backend.get_list_state(ListStateDescriptor("s", int)),
            lambda: backend.get_map_state(MapStateDescriptor("s", int, int)),
            lambda: backend.get_reducing_state(ReducingStateDescriptor("s", "sum", int)),
            lambda: backend.get_aggregating_state(AggregatingStateDescriptor("s", "avg")),
        ]
        for call in calls:
            with pytest.raises(StateMigrationError, match="state 's' was first requested as value"):
                call()
        for default in (math.nan, float("nan")):
            backend.get_state(ValueStateDescriptor("d", float, default=default))
        with pytest.raises(StateMigrationError, match=r"default nan, and .* default 2\.5;"):
            backend.get_state(ValueStateDescriptor("d", float, default=2.5))
        with pytest.raises(InvalidRequestError, match="timers"):
            backend.get_state(ValueStateDescriptor("_timers/event/timers", int))

    def test_two_functions_for_a_state_are_refused_and_the_same_one_is_not(
        self, backend: UserStates
    ) -> None:
        def adding() -> Callable[[int, int], int]:
            return lambda a, b: a + b

        def reducing(function: Callable[[int, int], int]) -> object:
            return backend.get_reducing_state(ReducingStateDescriptor("r", function, int))

        state = reducing(adding())
        assert reducing(adding()) is state
        for other in (max, partial(max), lambda a, b: a * b):
            with pytest.raises(StateMigrationError, match=r"function <lambda> of line \d+, int64,"):
                reducing(other)
        for _ in range(2):
            backend.get_aggregating_state(AggregatingStateDescriptor("a", WordCount()))
        with pytest.raises(StateMigrationError, match=r"function WordCount, .* and now as"):
            backend.get_aggregating_state(AggregatingStateDescriptor("a", _OtherWordCount()))

    def test_closed_backend_refuses_every_call(self, backend: UserStates) -> None:
        keys = backend.users("a")
        value = backend.get_state(ValueStateDescriptor("v", int))
        entries = backend.get_map_state(MapStateDescriptor("m", str, int))
        timers = backend.event_time_timers()
        backend.begin_batch(keys)
        backend.set_current_key(0)
        value.update(1)
        for _ in range(2):
            backend.close()
        calls: list[Callable[[], object]] = [
            value.value,
            lambda: value.update(2),
            lambda: value.columns.get(keys),
            lambda: value.columns.put(keys, [1]),
            lambda: entries.columns.items(keys),
            lambda: timers.fire(1),
            lambda: backend.get_state(ValueStateDescriptor("v", int)),
            lambda: backend.begin_batch(keys),
            lambda: backend.advance_time(1),
            backend.checkpoint,
            backend.state_names,
            backend.specs,
            backend.next_timers,
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="the backend is closed"):
                call()

    def test_values_are_migrated_or_refused_on_request(self, backend: UserStates) -> None:
        keys = backend.users("a", "b")
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
        other = backend.restart()
        assert other.state_names() == {"v", "row", "l", "t", "m", "r"}
        refused: list[Callable[[], object]] = [
            lambda: other.get_state(ValueStateDescriptor("v", pa.int16())),
            lambda: other.get_state(ValueStateDescriptor("row", int)),
            lambda: other.get_list_state(ListStateDescriptor("v", pa.int32())),
            lambda: other.get_list_state(ListStateDescriptor("l", str)),
            lambda: other.get_map_state(MapStateDescriptor("m", int, pa.int32())),
            lambda: other.get_map_state(MapStateDescriptor("m", str, str)),
            lambda: other.get_reducing_state(ReducingStateDescriptor("r", "min", pa.int32())),
            lambda: other.get_reducing_state(ReducingStateDescriptor("r", "count", pa.int64())),
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
        numbers = [1 + keys.codes.tolist().index(code) for code in range(2)]
        lists = [[number] for number in numbers]
        rows = [{"n": 1, "total": 2.0, "more": "x"}, {"n": 2, "total": None, "more": "x"}]
        expected: list[Any] = [[1, None], rows, lists, lists, numbers]
        for _ in range(2):
            assert [state.get(keys).to_pylist() for state in migrated] == expected
            assert entries.get(keys, ["x", "x"]).to_pylist() == [1, 2]
            other.checkpoint()

    def test_fields_are_renamed_and_dropped_only_on_request(self, backend: UserStates) -> None:
        """A stored rename need not be repeated, and the name of a dropped field is free."""
        keys, late = backend.users("a", "b"), backend.users("c")
        value = {"n": 1, "total": 2.0}

        def states(of: UserStates, type: pa.Schema, **options: Any) -> list[Any]:
            sums: Any = dict.fromkeys(type.names, "sum")
            return [
                of.get_state(ValueStateDescriptor("v", type, **options)).columns,
                of.get_list_state(ListStateDescriptor("l", type, **options)).columns,
                of.get_list_state(ListStateDescriptor("t", type, ttl=TTL, **options)).columns,
                of.get_reducing_state(ReducingStateDescriptor("r", sums, type, **options)).columns,
                of.get_map_state(MapStateDescriptor("m", str, type, **options)).columns,
            ]

        def write(to: list[Any], keys: Any, value: Any) -> None:
            values = [value] * len(keys)
            to[0].put(keys, values)
            to[1].append(keys, values)
            to[2].append(keys, values)
            to[3].add(keys, values)
            to[4].put(keys, ["x"] * len(keys), values)

        def check(of: list[Any], keys: Any, value: Any) -> None:
            values = [value] * len(keys)
            lists = [[value]] * len(keys)
            for state, expected in zip(of, [values, lists, lists, values], strict=False):
                assert state.get(keys).to_pylist() == expected
            assert of[4].get(keys, ["x"] * len(keys)).to_pylist() == values

        write(states(backend, ROW), keys, value)
        backend = backend.restart()  # two runs of rows, where there are runs
        write(states(backend, ROW), late, value)
        backend = backend.restart()
        orders = pa.schema([("amount", pa.float64()), ("orders", pa.int64())])
        for type in (orders, pa.schema([("n", pa.int64())])):
            with pytest.raises(StateMigrationError, match=r"'total'\] are gone"):
                backend.get_state(ValueStateDescriptor("v", type))
            with pytest.raises(StateMigrationError, match=r"'total'\] are gone"):
                backend.get_map_state(MapStateDescriptor("m", str, type))
        now = states(backend, orders, renamed={"orders": "n", "amount": "total"})
        check(now, keys, {"amount": 2.0, "orders": 1})
        backend = backend.restart()
        check(states(backend, orders), late, {"amount": 2.0, "orders": 1})
        backend = backend.restart()
        states(backend, pa.schema([("orders", pa.int64())]), dropped=["amount"])
        backend = backend.restart()
        check(states(backend, orders), keys, {"amount": None, "orders": 1})

    def test_struct_of_one_field_and_its_field_are_incompatible(self, backend: UserStates) -> None:
        number, struct = pa.int64(), pa.struct([("value", pa.int64())])
        keys = backend.users("a")
        backend.get_state(ValueStateDescriptor("n", number)).columns.put(keys, [1])
        backend.get_state(ValueStateDescriptor("s", struct)).columns.put(keys, [{"value": 1}])
        restored = backend.restart()
        for name, type in (("n", struct), ("s", number)):
            with pytest.raises(StateMigrationError, match=f"'{name}' is stored with type"):
                restored.get_state(ValueStateDescriptor(name, type))
        assert restored.get_state(ValueStateDescriptor("n", number)).columns.get(keys)[0].as_py()

    def test_dropped_state_is_empty_when_requested_again(self, backend: UserStates) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        keys = backend.users("a", "b")
        state.columns.put(keys, [1, 2])
        backend.select()
        state.update(5)
        backend.drop_state("v")
        backend.drop_state("unknown")
        assert backend.state_names() == frozenset()
        calls: list[Callable[[], object]] = [
            state.value,
            lambda: state.update(1),
            lambda: state.columns.get(keys),
            lambda: state.columns.put(keys, [1, 2]),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="state 'v' was dropped"):
                call()
        texts = backend.get_list_state(ListStateDescriptor("v", str))
        assert texts.get() == []
        texts.add("x")
        restored = backend.restart()
        restored.drop_state("v")
        restored.select()
        assert restored.get_state(ValueStateDescriptor("v", int)).value() is None

    def test_other_keys_are_refused(self, backend: UserStates) -> None:
        keys = backend.users("a")
        backend.get_state(ValueStateDescriptor("v", int)).columns.put(keys, [1])
        handles = backend.checkpoint()
        for key in (pa.schema([("user", pa.large_string())]), pa.schema([("other", pa.string())])):
            with pytest.raises(StateMigrationError, match="keys can't be migrated"):
                KeyedStateBackend(self.tables_of(ALL, handles), key, GROUPS)
        for wrong in (pa.schema([]), pa.schema([("k", pa.uint64())])):
            with pytest.raises(InvalidRequestError, match="key"):
                KeyedStateBackend(self.tables_of(ALL), wrong, GROUPS)

    def test_nullability_and_metadata_of_schema_keep_the_key(self, backend: UserStates) -> None:
        value = ValueStateDescriptor("v", int)
        users = backend.users("a")
        keys = backend.in_namespaces(users, [pa.array([1])])
        backend.get_state(value, WINDOW).columns.put(keys, [5])
        backend.event_time_timers("t", WINDOW).columns.register(keys, [7])
        key, window = (
            pa.schema([schema.field(0).with_nullable(False).with_metadata({"file": "other"})])
            for schema in (USER, WINDOW)
        )
        for number in range(1, 4):
            assert backend.get_state(value, window).columns.get(keys).to_pylist() == [5]
            assert backend.get_state(value, WINDOW).columns.get(keys).to_pylist() == [5]
            assert backend.event_time_timers("t", window).earliest() == 7
            backend = backend.restart(key=(USER, key)[number % 2])

    def test_key_is_the_same_for_any_nullability_inside(self, backend: UserStates) -> None:
        """Spark infers nullability for each query."""
        value = ValueStateDescriptor("v", int)
        inner = [pa.field("x", pa.int64(), nullable=False), ("n", pa.list_(pa.null()))]
        never = pa.schema([("user", pa.list_(pa.field("item", pa.struct(inner), nullable=False)))])
        may_be = pa.schema([("user", pa.list_(pa.struct([("x", pa.int64()), inner[1]])))])
        for number, schema in enumerate((never, may_be, never, may_be)):
            backend = backend.restart(key=schema)
            rows = [[], [{"x": 1, "n": [None]}], [{"x": 2, "n": None}]]
            keys = backend.keys([pa.array(rows, schema.field(0).type)[1:]])
            state = backend.get_state(value).columns
            assert state.get(keys).to_pylist() == [number or None] * 2
            state.put(keys, [number + 1] * 2)

    def test_handles_with_overlapping_key_groups_are_refused(self, backend: UserStates) -> None:
        backend.get_state(ValueStateDescriptor("v", int)).columns.put(backend.users("a"), [1])
        handles = backend.checkpoint()
        with pytest.raises(InvalidRequestError, match="two handles have rows of key group 0"):
            self.tables_of(ALL, [*handles, *handles])


class NamespaceSuite(StateSuite):
    """Requirements of namespaces."""

    def test_namespaces_have_separate_state(self, backend: UserStates) -> None:
        value = backend.get_state(ValueStateDescriptor("v", int), WINDOW)
        entries = backend.get_map_state(MapStateDescriptor("m", str, int), WINDOW)
        plain = backend.get_state(ValueStateDescriptor("p", int))
        backend.select()
        with pytest.raises(InvalidRequestError, match="set_current_namespace"):
            value.value()
        for window in (1, 2, None):
            backend.set_current_namespace(window)
            value.update(window or 0)
            entries.put("x", window or 0)
            plain.update(window)
        backend.set_current_namespace(1)
        assert (value.value(), entries.items(), plain.value()) == (1, {"x": 1}, None)
        backend.select()
        backend.set_current_namespace(2)
        assert (value.value(), entries.items()) == (2, {"x": 2})
        entries.clear()
        value.clear()
        keys = backend.users("a", "a", "b", "a")
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
        backend.select()
        for wrong in (("x",), (1, 2)):
            backend.set_current_namespace(*wrong)
            with pytest.raises(InvalidRequestError, match="'v'"):
                value.value()

    def test_nan_is_one_namespace_and_list_namespace_needs_arrays(
        self, backend: UserStates
    ) -> None:
        floats, lists = (pa.schema([("n", type)]) for type in (pa.float64(), pa.list_(pa.int64())))
        total = backend.get_reducing_state(ReducingStateDescriptor("total", "sum", int), floats)
        backend.select()
        for _ in range(3):
            backend.set_current_namespace(float("nan"))
            total.add(1)
        assert total.get() == 3
        state = backend.get_reducing_state(ReducingStateDescriptor("by list", "sum", int), lists)
        backend.select()
        backend.set_current_namespace([1, 2])
        with pytest.raises(InvalidRequestError, match=r"'by list'.*in_namespaces"):
            state.get()
        keys = backend.in_namespaces(backend.users("a"), [pa.array([[1, 2]])])
        state.columns.add(keys, [5])
        assert state.columns.get(keys).to_pylist() == [5]

    def test_namespaces_are_merged_into_another(self, backend: UserStates) -> None:
        lists = backend.get_list_state(ListStateDescriptor("l", int), WINDOW)
        sums = backend.get_reducing_state(ReducingStateDescriptor("s", "sum", int), WINDOW)
        means = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg"), WINDOW)
        backend.select()
        for window in (1, 2, 3):
            backend.set_current_namespace(window)
            lists.add(window)
            sums.add(window)
            means.add(window)
        backend.select()
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
            backend.select()

    def test_a_state_without_namespaces_has_none_to_merge(self, backend: UserStates) -> None:
        elements = backend.get_list_state(ListStateDescriptor("l", int))
        total = backend.get_reducing_state(ReducingStateDescriptor("r", "sum", int))
        mean = backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg"))
        backend.select()
        elements.add(1)
        for merge in (elements.merge_namespaces, total.merge_namespaces, mean.merge_namespaces):
            with pytest.raises(InvalidRequestError, match="has no namespaces"):
                merge((1,), [(2,)])
        assert elements.get() == [1]
