"""Types that change between two runs of a job: what becomes of states, by their kind.

Source:
    Flink, StateBackendMigrationTestBase: the cases of operator state.
"""

from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    Plain,
    backend_with,
    broadcast_state,
    list_state,
    memory_factory,
    restore_from,
    snapshot_of,
    union_state,
)
from contracts.migrations import V1, message, required_field, struct

from holdfast.backends import (
    CheckpointedFunction,
    ListState,
    MapStateDescriptor,
    OperatorStateBackend,
    Pickled,
)
from holdfast.backends.assignment import redistribute
from holdfast.backends.subtask import OperatorStateHandler
from holdfast.errors import StateMigrationError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import files_of

V2 = message(("a", int), ("b", str), ("c", int, 7))
MODES = {"list": list_state, "union": union_state}


class TestBackend:
    """Flink's cases: each state kind, when its serializer changes."""

    @pytest.mark.parametrize("get", MODES.values(), ids=MODES)
    @pytest.mark.parametrize(
        ("stored", "wanted", "value", "expected"),
        [
            (pa.int32(), pa.int64(), 1, 1),
            (V1, V2, V1(1, "x"), {"a": 1, "b": "x", "c": 7}),
        ],
        ids=["Arrow", "MessagePack"],
    )
    def test_elements_of_lists_migrate(
        self, get: Any, stored: Any, wanted: Any, value: Any, expected: Any
    ) -> None:
        backend = OperatorStateBackend()
        get(backend, "s", stored).add(value)
        backend = restore_from(backend, backend)
        state: ListState = get(backend, "s", wanted)
        assert msgspec.to_builtins(state.get()) == [expected] * 2
        state.add_all(state.get())
        assert msgspec.to_builtins(get(restore_from(backend), "s", wanted).get()) == [expected] * 4
        with pytest.raises(StateMigrationError):
            get(backend, "s", stored)

    @pytest.mark.parametrize(
        ("stored", "wanted"),
        [
            ((pa.int32(), pa.int32()), (pa.int64(), pa.int32())),
            ((pa.int32(), pa.int32()), (pa.int32(), pa.int64())),
            ((pa.int32(), pa.int32()), (pa.int64(), pa.float64())),
        ],
        ids=["keys", "values", "both"],
    )
    def test_keys_and_values_of_maps_migrate(self, stored: Any, wanted: Any) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", stored, {1: 2, 3: 4})
        backend = restore_from(backend)
        state = broadcast_state(backend, "b", wanted)
        assert dict(state.entries()) == {1: 2, 3: 4}
        state.put(2**20, 2)
        again = broadcast_state(restore_from(backend), "b", wanted)
        assert dict(again.entries()) == {1: 2, 3: 4, 2**20: 2}

    @pytest.mark.parametrize("place", ["key", "value"])
    def test_incompatible_map_keys_and_values_are_refused(self, place: str) -> None:
        wanted = (str, int) if place == "key" else (int, str)
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (int, int), {1: 2})
        backend = restore_from(backend)
        with pytest.raises(StateMigrationError, match=r"'b'.*int64.*string"):
            broadcast_state(backend, "b", wanted)
        assert dict(broadcast_state(backend, "b", (int, int)).entries()) == {1: 2}

    def test_values_of_maps_get_defaults(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (int, struct(a=pa.int64())), {1: {"a": 1}})
        wanted = pa.struct([("a", pa.int64()), required_field("b", pa.int64())])
        descriptor = MapStateDescriptor("b", int, wanted, defaults={"b": 7})
        state = restore_from(backend).get_broadcast_state(descriptor)
        assert state.get(1) == {"a": 1, "b": 7}

    def test_state_not_requested_stays_as_stored(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add(V1(1, "x"))
        for _ in range(3):
            backend = restore_from(backend)
        assert list_state(backend, "s", V1).get() == [V1(1, "x")]

    def test_refused_type_leaves_the_state_for_the_next_snapshot(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", V1).add(V1(1, "x"))
        broadcast_state(backend, "b", (str, V1), {"k": V1(2, "y")})
        backend = restore_from(backend)
        with pytest.raises(StateMigrationError):
            list_state(backend, "s", str)
        with pytest.raises(StateMigrationError):
            broadcast_state(backend, "b", (str, int))
        again = restore_from(backend)
        assert list_state(again, "s", V1).get() == [V1(1, "x")]
        assert broadcast_state(again, "b", (str, V1)).get("k") == V1(2, "y")


MOVED = [msgspec.defstruct("Moved", [("x", int)], module=module) for module in ("before", "now")]


class TestRequestsAtDifferentTimes:
    """A type that is new to the job, but that not every subtask has asked for in each run."""

    TYPES = (
        pytest.param((struct(a=pa.int32()), struct(a=pa.int64()), {"a": 1}, {"a": 1}), id="Arrow"),
        pytest.param(
            (V1, V2, V1(1, "x"), {"a": 1, "b": "x", "c": 7}),
            id="MessagePack",
        ),
        pytest.param((*MOVED, MOVED[0](1), {"x": 1}), id="only moved"),
    )

    @staticmethod
    def half_migrated(get: Any, stored: Any, wanted: Any, value: Any) -> list[list[Any]]:
        """Handles of two subtasks; the second one requested the new type."""
        handles = []
        for number in range(2):
            backend = OperatorStateBackend()
            get(backend, "s", stored).add_all([value] * 2)
            backend = restore_from(backend)
            if number:
                get(backend, "s", wanted)
            handles.append([snapshot_of(backend)])
        return handles

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("parallelism", [1, 2, 3])
    @pytest.mark.parametrize("idle_runs", [0, 1, 2])
    @pytest.mark.parametrize("types", TYPES)
    def test_each_part_is_migrated_by_its_own_type(
        self, mode: str, parallelism: int, idle_runs: int, types: tuple[Any, Any, Any, Any]
    ) -> None:
        get = MODES[mode]
        stored, wanted, value, expected = types
        handles = self.half_migrated(get, stored, wanted, value)
        for _ in range(idle_runs):  # without a request
            parts = redistribute(handles, parallelism)
            results = [
                OperatorStateBackend.restore(part).snapshot(memory_factory()).run()
                for part in parts
            ]
            handles = [list(result.state.managed_operator) for result in results]
        backends = [OperatorStateBackend.restore(p) for p in redistribute(handles, parallelism)]
        values = [
            msgspec.to_builtins(get(restored_backend, "s", wanted).get())
            for restored_backend in backends
        ]
        if mode == "list":
            assert list(chain.from_iterable(values)) == [expected] * 4
        else:
            assert values == [[expected] * 4] * parallelism

    def test_elements_keep_their_order(self) -> None:
        old, new = struct(a=pa.int32()), struct(a=pa.int64())
        types = (old, new, old, old, new)
        handles = [
            snapshot_of(backend_with(s=(element_type, [{"a": number}])))
            for number, element_type in enumerate(types)
        ]
        state = list_state(OperatorStateBackend.restore(handles), "s", new)
        assert [element["a"] for element in state.get()] == [0, 1, 2, 3, 4]

    def test_remaining_rows_are_in_separate_files(self, local_directory: str) -> None:
        backends = [
            backend_with(s=(arrow_type, [1]), t=(int, [2]))
            for arrow_type in (pa.int32(), pa.int64())
        ]
        backend = restore_from(*backends)
        access = FileSystemCheckpointStorage(local_directory, inline_threshold=0)
        storage = access.create_checkpoint_storage("job")
        storage.initialize_base_locations_for_checkpoint()
        location = storage.initialize_location_for_checkpoint(1)
        result = backend.snapshot(location).run()
        assert [sorted(handle.states) for handle in result.state.managed_operator] == [
            ["s", "t"],
            ["s"],
        ]
        assert result.task_local is None
        again = OperatorStateBackend.restore(result.state.managed_operator)
        assert (list_state(again, "s").get(), list_state(again, "t").get()) == ([1, 1], [2, 2])
        uris = [
            stream.uri
            for stream in files_of([handle.stream for handle in result.state.managed_operator])
        ]
        files = [Path(uri.removeprefix("file://")) for uri in uris]
        assert len(files) == 2
        assert all(file.exists() for file in files)

    def test_subtask_stores_all_of_it(self) -> None:
        backend = restore_from(
            *(backend_with(s=(arrow_type, [1])) for arrow_type in (pa.int32(), pa.int64()))
        )
        handler = OperatorStateHandler(uid="op", function=_Stateless(), backend=backend)
        state = handler.snapshot_state(1, memory_factory()).run().state
        again = OperatorStateBackend.restore(state.managed_operator)
        assert list_state(again, "s").get() == [1, 1]

    def test_pickles_of_a_moved_class_stay_apart(self) -> None:
        backends = [
            backend_with(s=(Pickled(cls), [value]))
            for cls, value in ((Plain, Plain(1)), (dict, {1: 2}))
        ]
        backend = restore_from(*backends)
        assert len(backend.snapshot(memory_factory()).run().state.managed_operator) == 2
        with pytest.raises(StateMigrationError, match="another class"):
            list_state(backend, "s", Pickled(Plain))
        assert list_state(backend, "s", Pickled()).get() == [Plain(1), {1: 2}]


class _Stateless(CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        pass


class TestKeys:
    STORED = msgspec.defstruct("K", [("x", int)], frozen=True)
    WITH_Y = msgspec.defstruct("K", [("x", int), ("y", int, 0)], frozen=True)

    def restore(self, *keys: Any) -> OperatorStateBackend:
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (type(keys[0]), str), {key: str(key.x) for key in keys})
        return restore_from(backend)

    def test_map_keys_equal_after_migration_are_refused(self) -> None:
        keys = [(1, 2), (2, 1)]
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (tuple[int, ...], str), {key: str(key) for key in keys})
        backend = restore_from(backend)
        for _ in range(2):
            with pytest.raises(StateMigrationError, match=r"'b'.*keys that were different"):
                broadcast_state(backend, "b", (frozenset[int], str))
        state = broadcast_state(restore_from(backend), "b", (tuple[int, ...], str))
        assert dict(state.entries()) == {(1, 2): "(1, 2)", (2, 1): "(2, 1)"}

    def test_map_keys_losing_a_field_are_refused(self) -> None:
        backend = self.restore(self.WITH_Y(1, 1), self.WITH_Y(2, 2))
        for wanted in (self.STORED, pa.struct([("x", pa.int64()), ("z", pa.int64())])):
            with pytest.raises(
                StateMigrationError, match=r"'y'\] are gone.*keys of a map keep all"
            ):
                broadcast_state(backend, "b", (wanted, str))

    def test_map_keys_still_distinct_migrate(self) -> None:
        backend = self.restore(self.STORED(1), self.STORED(2))
        state = broadcast_state(backend, "b", (self.WITH_Y, str))
        assert dict(state.entries()) == {self.WITH_Y(1): "1", self.WITH_Y(2): "2"}

    def test_map_keys_shared_by_handles_migrate(self) -> None:
        backends = [self.restore(self.STORED(1), self.STORED(2)) for _ in range(2)]
        state = broadcast_state(restore_from(*backends), "b", (self.WITH_Y, str))
        assert dict(state.entries()) == {self.WITH_Y(1): "1", self.WITH_Y(2): "2"}

    def test_map_keys_unhashable_after_migration_are_refused(self) -> None:
        wanted = message(("x", int), ("y", int, 0))
        with pytest.raises(StateMigrationError, match="looked up"):
            broadcast_state(self.restore(self.STORED(1)), "b", (wanted, str))
