"""The results of `check` for a checkpoint's states, which a restore confirms."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    Order,
    Plain,
    Point,
    broadcast_state,
    list_state,
    restore_from,
    union_state,
)

from holdfast.backends import (
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    Pickled,
    RestoreOutcome,
    check_restore,
)
from holdfast.backends.inspection import StateCheck
from holdfast.backends.snapshot import Compression
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, StateMigrationError
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.testing import counting_file_system

Backends = dict[str, Sequence[OperatorStateBackend | None]]


def checkpoint(
    directory: str,
    backends: Backends,
    *,
    inline_threshold: int = 0,
    compression: Compression | None = None,
) -> CheckpointMetadata:
    """Complete the first checkpoint of a job; returns what it holds."""
    storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    operators = {}
    for uid, of_operator in backends.items():
        subtasks = {}
        for index, backend in enumerate(of_operator):
            if backend is not None:
                result = backend.snapshot(location, compression=compression).run()
                subtasks[index] = result.state
        operators[uid] = StoredOperator(len(of_operator), 128, subtasks)
    metadata = CheckpointMetadata(
        job_id="job",
        checkpoint_id=1,
        created_ms=0,
        duration_ms=0.0,
        writer="test",
        operators=operators,
    )
    complete_checkpoint(location, metadata)
    return metadata


def with_states(*fills: Callable[[OperatorStateBackend], Any]) -> OperatorStateBackend:
    backend = OperatorStateBackend()
    for fill in fills:
        fill(backend)
    return backend


def raise_missing_class() -> Any:
    return msgspec.defstruct("Gone", [("a", int)])


def full() -> OperatorStateBackend:
    return with_states(
        lambda backend: list_state(backend, "longs", pa.int32()).add_all(range(100)),
        lambda backend: list_state(backend, "points", Point).add(Point(1)),
        lambda backend: union_state(backend, "union", pa.string()).add("a"),
        lambda backend: broadcast_state(backend, "rules", (str, pa.int16()), {"a": 1}),
        lambda backend: list_state(backend, "gone", raise_missing_class()),
        lambda backend: list_state(backend, "pickled", Pickled()).add(Plain(1)),
        lambda backend: list_state(backend, "empty", pa.int64()),
    )


@pytest.fixture(params=["local_directory", "memory_directory"])
def directory(request: pytest.FixtureRequest) -> str:
    uri: str = request.getfixturevalue(request.param)
    return uri


@pytest.mark.parametrize("inline_threshold", [0, 100_000], ids=["files", "inline"])
@pytest.mark.parametrize("compression", [None, "zstd"])
class TestFates:
    @pytest.fixture
    def pointer(
        self, directory: str, inline_threshold: int, compression: Compression | None
    ) -> str:
        checkpoint(
            directory,
            {"kept": [None, full(), full()], "removed": [full()], "stateless": [None]},
            inline_threshold=inline_threshold,
            compression=compression,
        )
        return f"{directory}/job/chk-1"

    def outcomes(self, pointer: str, *descriptors: Any) -> dict[str, StateCheck]:
        checks = check_restore(pointer, {"kept": descriptors})
        return {state.state: state for state in checks if state.operator == "kept"}

    def test_state_requested_as_stored_is_restored(self, pointer: str) -> None:
        states = self.outcomes(
            pointer,
            ListStateDescriptor("longs", pa.int32()),
            ListStateDescriptor("points", Point),
            ListStateDescriptor("union", str),
            MapStateDescriptor("rules", str, pa.int16()),
            ListStateDescriptor("gone", raise_missing_class()),
            ListStateDescriptor("pickled", Pickled()),
            ListStateDescriptor("empty", int),
        )
        assert {state.outcome for state in states.values()} == {RestoreOutcome.RESTORED}
        assert len(states) == 7
        rules = states["rules"]
        assert (rules.stored, rules.wanted, rules.reason) == ("string to int16",) * 2 + ("",)
        assert "Point" in states["points"].stored

    def test_state_not_requested_is_carried_over(self, pointer: str) -> None:
        states = self.outcomes(pointer)
        assert len(states) == 7
        assert {(state.outcome, state.wanted) for state in states.values()} == {
            (RestoreOutcome.RESTORED, "")
        }

    def test_changed_state_is_migrated(self, pointer: str) -> None:
        point = msgspec.defstruct("Point", [("x", int), ("y", float), ("z", int, 0)])
        states = self.outcomes(
            pointer,
            ListStateDescriptor("longs", pa.int64()),
            ListStateDescriptor("points", point),
            MapStateDescriptor("rules", str, pa.int64()),
        )
        for name in ("longs", "points", "rules"):
            assert states[name].outcome is RestoreOutcome.MIGRATED
        assert (states["longs"].stored, states["longs"].wanted) == ("int32", "int64")

    def test_unsupported_change_is_incompatible(self, pointer: str) -> None:
        states = self.outcomes(
            pointer,
            ListStateDescriptor("longs", pa.int16()),
            ListStateDescriptor("points", Order),
            MapStateDescriptor("rules", int, pa.int16()),
            MapStateDescriptor("union", str, str),
            ListStateDescriptor("pickled", Point),
        )
        for name in ("longs", "points", "rules", "union", "pickled"):
            assert states[name].outcome is RestoreOutcome.INCOMPATIBLE, name
            assert states[name].reason
            assert states[name].stored
            assert states[name].wanted

    def test_state_not_stored_is_new(self, pointer: str) -> None:
        descriptors: dict[str, list[Any]] = {
            "kept": [ListStateDescriptor("more", Point)],
            "later": [MapStateDescriptor("b", int, str), ListStateDescriptor("c", int)],
            "stateless": [ListStateDescriptor("d", int)],
            "last": [ListStateDescriptor("e", int)],
        }
        new = [
            state
            for state in check_restore(pointer, descriptors)
            if state.outcome is RestoreOutcome.NEW
        ]
        assert [(state.operator, state.state) for state in new] == [
            ("kept", "more"),
            ("stateless", "d"),
            ("later", "b"),
            ("later", "c"),
            ("last", "e"),
        ]
        assert new[2] == StateCheck("later", "b", RestoreOutcome.NEW, wanted="int64 to string")

    def test_state_of_a_removed_operator_is_dropped(self, pointer: str) -> None:
        states = check_restore(pointer, {"kept": []})
        dropped = [state for state in states if state.outcome is RestoreOutcome.DROPPED]
        assert {state.operator for state in dropped} == {"removed"}
        assert len(dropped) == 7
        assert {state.wanted for state in dropped} == {""}

    def test_restore_matches_the_check(self, pointer: str) -> None:
        point = msgspec.defstruct("Point", [("x", int)])
        descriptors: list[Any] = [
            ListStateDescriptor(name, type)
            for name in ("longs", "points", "union", "pickled", "empty")
            for type in (pa.int32(), int, float, str, Point, point, Order, Pickled())
        ]
        for descriptor in descriptors:
            checked = self.outcomes(pointer, descriptor)[descriptor.name].outcome
            backend = restore_from(full())
            get = backend.get_list_state
            if descriptor.name == "union":
                get = backend.get_union_list_state
            if checked is RestoreOutcome.INCOMPATIBLE:
                with pytest.raises(StateMigrationError):
                    get(descriptor)
            else:
                get(descriptor).get()


class TestMixedForms:
    TYPES = (pa.int32(), pa.int64(), pa.int32())

    @pytest.fixture
    def pointer(self, memory_directory: str) -> str:
        backends = [
            with_states(partial(list_state, name="s", element_type=element_type))
            for element_type in self.TYPES
        ]
        checkpoint(memory_directory, {"op": backends})
        return f"{memory_directory}/job/chk-1"

    @pytest.mark.parametrize(
        ("wanted", "outcome", "stored"),
        [
            (pa.int64(), RestoreOutcome.MIGRATED, "int32 or int64"),
            (pa.int32(), RestoreOutcome.INCOMPATIBLE, "int32 or int64"),
            (None, RestoreOutcome.RESTORED, "int32"),
        ],
        ids=str,
    )
    def test_all_of_them_count(
        self, pointer: str, wanted: pa.DataType | None, outcome: RestoreOutcome, stored: str
    ) -> None:
        descriptors = [] if wanted is None else [ListStateDescriptor("s", wanted)]
        (state,) = check_restore(pointer, {"op": descriptors})
        assert (state.outcome, state.stored) == (outcome, stored)


def large() -> OperatorStateBackend:
    return with_states(
        lambda backend: list_state(backend, "longs").add_all(pa.array(range(1_000_000))),
        lambda backend: list_state(backend, "kinds", pa.dictionary(pa.int32(), pa.string())).add(
            "a"
        ),
    )


class TestReading:
    def test_no_elements_are_read(self, directory: str) -> None:
        with counting_file_system(directory) as counts:
            metadata = checkpoint(counts.directory, {"op": [large(), large()]})
            counts.clear()
            states = check_restore(f"{counts.directory}/job/chk-1", {})
            assert [state.outcome for state in states] == [RestoreOutcome.DROPPED] * 2
            # Whole blocks, because each has a checksum: those of one subtask's footers.
            assert counts.bytes_read <= 3 << 20
            assert metadata.state_bytes > 16_000_000

    def test_damage_among_the_elements_is_not_noticed(self, local_directory: str) -> None:
        metadata = checkpoint(local_directory, {"op": [large()]})
        (stream,) = metadata.streams()
        assert isinstance(stream, FileStateHandle)
        with open(stream.uri.removeprefix("file://"), "r+b") as file:
            file.seek(3_000_000)
            file.write(bytes(1000))
        (longs, _) = check_restore(f"{local_directory}/job/chk-1", {"op": []})
        assert (longs.state, longs.outcome, longs.stored) == (
            "longs",
            RestoreOutcome.RESTORED,
            "int64",
        )
        with pytest.raises(CheckpointCorruptedError):
            OperatorStateBackend.restore(metadata.operators["op"].subtasks[0].managed_operator)

    def test_damage_of_the_footer_is(self, local_directory: str) -> None:
        metadata = checkpoint(local_directory, {"op": [large()]})
        (stream,) = metadata.streams()
        assert isinstance(stream, FileStateHandle)
        with open(stream.uri.removeprefix("file://"), "r+b") as file:
            file.seek(stream.size - 10)
            file.write(b"damage")
        with pytest.raises(CheckpointCorruptedError):
            check_restore(f"{local_directory}/job/chk-1", {"op": []})

    def test_missing_state_file_is_not_found(self, directory: str) -> None:
        (stream,) = checkpoint(directory, {"op": [full()]}).streams()
        assert isinstance(stream, FileStateHandle)
        file_system_for(stream.uri).delete([stream.uri])
        with pytest.raises(CheckpointNotFoundError):
            check_restore(f"{directory}/job/chk-1", {})

    def test_missing_checkpoint_is_not_found(self, directory: str) -> None:
        with pytest.raises(CheckpointNotFoundError):
            check_restore(f"{directory}/job/chk-1", {})

    @pytest.mark.parametrize("cut", ["offset", "length"])
    def test_invalid_section_is_corrupt(self, memory_directory: str, cut: str) -> None:
        backend = full()
        storage = FileSystemCheckpointStorage(memory_directory)
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        (handle,) = backend.snapshot(location).run().state.managed_operator
        for amount in (1, 8, 10**6):
            states = {
                name: msgspec.structs.replace(
                    partitions, **{cut: getattr(partitions, cut) + amount}
                )
                for name, partitions in handle.states.items()
            }
            damaged = msgspec.structs.replace(handle, states=states)
            operators = {
                "op": StoredOperator(1, 1, {0: StoredSubtask(managed_operator=(damaged,))})
            }
            metadata = CheckpointMetadata(
                job_id="job",
                checkpoint_id=1,
                created_ms=0,
                duration_ms=0.0,
                writer="test",
                operators=operators,
            )
            complete_checkpoint(location, metadata)
            with pytest.raises(CheckpointCorruptedError):
                check_restore(f"{memory_directory}/job/chk-1", {})
            location = access.initialize_location_for_checkpoint(1)
            file_system_for(memory_directory).delete([f"{memory_directory}/job/chk-1/_metadata"])

    def test_elements_are_not_unpickled(self, memory_directory: str) -> None:
        backend = with_states(lambda fresh: list_state(fresh, "s", Pickled()).add(Trap()))
        checkpoint(memory_directory, {"op": [backend]})
        descriptors = {"op": [ListStateDescriptor("s", Pickled())]}
        (state,) = check_restore(f"{memory_directory}/job/chk-1", descriptors)
        assert state.outcome is RestoreOutcome.RESTORED

    def test_metadata_file_is_a_pointer_too(self, local_directory: str) -> None:
        checkpoint(local_directory, {"op": [full()]})
        expected = check_restore(f"{local_directory}/job/chk-1", {})
        assert check_restore(f"{local_directory}/job/chk-1/_metadata", {}) == expected
        assert (
            check_restore(Path(local_directory.removeprefix("file://"), "job", "chk-1"), {})
            == expected
        )


class Trap:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise AssertionError("it was unpickled")
