"""Lookup of states: requested descriptors compared with stored ones."""

import math
from collections.abc import Callable
from functools import partial
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
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing.contracts.keyed.folding_suite import WordCount
from holdfast.testing.contracts.keyed.keyed_checkpoints import ALL, GROUPS, KeyedCheckpoints
from holdfast.testing.contracts.keyed.state_suite import (
    KEY,
    ROW,
    TTL,
    WINDOW,
    StateSuite,
)


class _OtherWordCount(WordCount):
    pass


class LookupSuite(StateSuite):
    """Requirements of the lookup of states."""

    def test_a_state_is_the_same_object_each_time_and_of_the_same_type(
        self, backend: KeyedStateBackend
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
        self, backend: KeyedStateBackend
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

    def test_closed_backend_refuses_every_call(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        keys = self.keys(backend, "a")
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
            lambda: backend.snapshot(1, checkpoints.location(1)),
            backend.state_names,
            backend.specs,
            backend.next_timers,
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="the backend is closed"):
                call()

    def test_values_are_migrated_or_refused_on_request(
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
        other = self.restore_backend(handles)
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

    def test_fields_are_renamed_and_dropped_only_on_request(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        """A stored rename need not be repeated, and the name of a dropped field is free."""
        keys, late = self.keys(backend, "a", "b"), self.keys(backend, "c")
        value = {"n": 1, "total": 2.0}

        def states(of: KeyedStateBackend, type: pa.Schema, **options: Any) -> list[Any]:
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

        def next_run(of: KeyedStateBackend) -> KeyedStateBackend:
            return self.restore_backend(checkpoints.run(of.snapshot(1, checkpoints.location(1))))

        write(states(backend, ROW), keys, value)
        backend = next_run(backend)  # two runs of rows, where there are runs
        write(states(backend, ROW), late, value)
        backend = next_run(backend)
        orders = pa.schema([("amount", pa.float64()), ("orders", pa.int64())])
        for type in (orders, pa.schema([("n", pa.int64())])):
            for get in (KeyedStateBackend.get_state, KeyedStateBackend.get_map_state):
                descriptor: Any = ValueStateDescriptor("v", type)
                if get is KeyedStateBackend.get_map_state:
                    descriptor = MapStateDescriptor("m", str, type)
                with pytest.raises(StateMigrationError, match=r"'total'\] are gone"):
                    get(backend, descriptor)
        now = states(backend, orders, renamed={"orders": "n", "amount": "total"})
        check(now, keys, {"amount": 2.0, "orders": 1})
        backend = next_run(backend)
        check(states(backend, orders), late, {"amount": 2.0, "orders": 1})
        backend = next_run(backend)
        states(backend, pa.schema([("orders", pa.int64())]), dropped=["amount"])
        backend = next_run(backend)
        check(states(backend, orders), keys, {"amount": None, "orders": 1})

    def test_struct_of_one_field_and_its_field_are_incompatible(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        number, struct = pa.int64(), pa.struct([("value", pa.int64())])
        keys = self.keys(backend, "a")
        backend.get_state(ValueStateDescriptor("n", number)).columns.put(keys, [1])
        backend.get_state(ValueStateDescriptor("s", struct)).columns.put(keys, [{"value": 1}])
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        restored = self.restore_backend(handles)
        for name, type in (("n", struct), ("s", number)):
            with pytest.raises(StateMigrationError, match=f"'{name}' is stored with type"):
                restored.get_state(ValueStateDescriptor(name, type))
        assert restored.get_state(ValueStateDescriptor("n", number)).columns.get(keys)[0].as_py()

    def test_dropped_state_is_empty_when_requested_again(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        state = backend.get_state(ValueStateDescriptor("v", int))
        keys = self.keys(backend, "a", "b")
        state.columns.put(keys, [1, 2])
        self.select_key(backend)
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
        restored = self.restore_backend(
            checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        )
        restored.drop_state("v")
        self.select_key(restored)
        assert restored.get_state(ValueStateDescriptor("v", int)).value() is None

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

    def test_nullability_and_metadata_of_schema_keep_the_key(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        value = ValueStateDescriptor("v", int)
        users = self.keys(backend, "a")
        keys = backend.in_namespaces(users, [pa.array([1])])
        backend.get_state(value, WINDOW).columns.put(keys, [5])
        backend.event_time_timers("t", WINDOW).columns.register(keys, [7])
        key, window = (
            pa.schema([schema.field(0).with_nullable(False).with_metadata({"file": "other"})])
            for schema in (KEY, WINDOW)
        )
        for number in range(1, 4):
            assert backend.get_state(value, window).columns.get(keys).to_pylist() == [5]
            assert backend.get_state(value, WINDOW).columns.get(keys).to_pylist() == [5]
            assert backend.event_time_timers("t", window).earliest() == 7
            handles = checkpoints.run(backend.snapshot(number, checkpoints.location(number)))
            tables = self.tables_of(ALL, handles)
            backend = KeyedStateBackend(tables, (KEY, key)[number % 2], GROUPS)

    def test_key_is_the_same_for_any_nullability_inside(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        """Spark infers nullability for each query."""
        value = ValueStateDescriptor("v", int)
        inner = [pa.field("x", pa.int64(), nullable=False), ("n", pa.list_(pa.null()))]
        never = pa.schema([("user", pa.list_(pa.field("item", pa.struct(inner), nullable=False)))])
        may_be = pa.schema([("user", pa.list_(pa.struct([("x", pa.int64()), inner[1]])))])
        handles: tuple[SegmentsStateHandle, ...] = ()
        for number, schema in enumerate((never, may_be, never, may_be)):
            backend = KeyedStateBackend(self.tables_of(ALL, handles), schema, GROUPS)
            rows = [[], [{"x": 1, "n": [None]}], [{"x": 2, "n": None}]]
            keys = backend.keys([pa.array(rows, schema.field(0).type)[1:]])
            state = backend.get_state(value).columns
            assert state.get(keys).to_pylist() == [number or None] * 2
            state.put(keys, [number + 1] * 2)
            handles = checkpoints.run(backend.snapshot(number, checkpoints.location(number)))

    def test_handles_with_overlapping_key_groups_are_refused(
        self, backend: KeyedStateBackend, checkpoints: KeyedCheckpoints
    ) -> None:
        backend.get_state(ValueStateDescriptor("v", int)).columns.put(self.keys(backend, "a"), [1])
        handles = checkpoints.run(backend.snapshot(1, checkpoints.location(1)))
        with pytest.raises(InvalidRequestError, match="two handles have rows of key group 0"):
            self.tables_of(ALL, [*handles, *handles])
