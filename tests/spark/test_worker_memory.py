"""State in a worker's memory: it is taken once, and only for its handle."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend
from holdfast.backends.snapshot import WrittenStates
from holdfast.errors import StateMigrationError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import CheckpointStreamFactory
from holdfast.locations.handles import OperatorStateHandle
from holdfast.spark.subtask import WorkerMemory

LONGS = ListStateDescriptor("longs", pa.int64())
RULES = MapStateDescriptor("rules", str, pa.int64())
NAMES = ListStateDescriptor("names", str)

Written = tuple[OperatorStateHandle, WrittenStates]


@pytest.fixture
def factory(memory_directory: str) -> CheckpointStreamFactory:
    storage = FileSystemCheckpointStorage(memory_directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return access.initialize_location_for_checkpoint(1)


def backend_of(values: object) -> OperatorStateBackend:
    backend = OperatorStateBackend()
    backend.get_list_state(LONGS).add_all(values)
    backend.get_union_list_state(NAMES).add_all(["a", "b"])
    backend.get_broadcast_state(RULES).put_all({"x": 1, "y": 2})
    return backend


def snapshot(backend: OperatorStateBackend, factory: CheckpointStreamFactory) -> Written:
    result = backend.snapshot(factory).run()
    (handle,) = result.state.managed_operator
    assert result.task_local is not None
    return handle, result.task_local


def contents(backend: OperatorStateBackend) -> tuple[object, ...]:
    return (
        backend.get_list_state(LONGS).get(),
        backend.get_union_list_state(NAMES).get(),
        dict(backend.get_broadcast_state(RULES).entries()),
    )


def test_states_from_memory_are_those_from_storage(factory: CheckpointStreamFactory) -> None:
    handle, written = snapshot(backend_of(range(1000)), factory)
    from_memory = OperatorStateBackend.from_written(written)
    assert written.matches(handle)
    again, _ = snapshot(from_memory, factory)  # also without access to them
    assert again.states == handle.states
    from_storage = OperatorStateBackend.restore([handle])
    assert contents(from_memory) == contents(from_storage) == contents(backend_of(range(1000)))


def test_states_from_memory_are_migrated_like_those_from_storage(
    factory: CheckpointStreamFactory,
) -> None:
    backend = OperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("longs", pa.int32())).add_all([1, 2])
    _, written = snapshot(backend, factory)
    with pytest.raises(StateMigrationError):
        OperatorStateBackend.from_written(written).get_list_state(
            ListStateDescriptor("longs", pa.string())
        )
    wider = OperatorStateBackend.from_written(written).get_list_state(LONGS)
    assert wider.to_arrow().type == pa.int64()
    assert wider.get() == [1, 2]


def test_later_changes_of_a_task_are_not_in_memory(factory: CheckpointStreamFactory) -> None:
    backend = backend_of([1, 2])
    handle, written = snapshot(backend, factory)
    before = contents(OperatorStateBackend.from_written(written))
    for other in (backend, OperatorStateBackend.from_written(written)):
        other.get_list_state(LONGS).add(3)
        other.get_union_list_state(NAMES).clear()
        other.get_broadcast_state(RULES).put("x", 7)
    assert contents(OperatorStateBackend.from_written(written)) == before
    assert written.matches(handle)


def test_changed_memory_is_not_used(factory: CheckpointStreamFactory) -> None:
    numbers = np.arange(1000)
    handle, written = snapshot(backend_of(pa.array(numbers)), factory)
    memory = WorkerMemory()
    memory.keep("owner", handle, written, max_bytes=1 << 20)
    numbers[:] = 0  # Arrow shares the memory
    assert memory.take("owner", [handle]) is None


def test_state_is_taken_once(factory: CheckpointStreamFactory) -> None:
    handle, written = snapshot(backend_of([1]), factory)
    memory = WorkerMemory()
    memory.keep("owner", handle, written, max_bytes=1 << 20)
    assert memory.take("owner", [handle]) is written
    assert memory.take("owner", [handle]) is None, "a failed attempt might have changed it"


def test_state_is_only_returned_for_its_own_handle(factory: CheckpointStreamFactory) -> None:
    handle, written = snapshot(backend_of([1]), factory)
    twin, _ = snapshot(backend_of([1]), factory)  # the same bytes in another file
    other, _ = snapshot(backend_of([2]), factory)
    cut = OperatorStateHandle({"longs": handle.states["longs"]}, handle.stream)
    for assigned in ([], [twin], [other], [cut], [handle, other]):
        memory = WorkerMemory()
        memory.keep("owner", handle, written, max_bytes=1 << 20)
        assert memory.take("owner", assigned) is None
    memory.keep("owner", handle, written, max_bytes=1 << 20)
    assert memory.take("another owner", [handle]) is None


def test_state_with_a_wrong_handle_is_not_used(factory: CheckpointStreamFactory) -> None:
    handle, _ = snapshot(backend_of([1]), factory)
    _, written = snapshot(backend_of([2]), factory)
    memory = WorkerMemory()
    memory.keep("owner", handle, written, max_bytes=1 << 20)
    assert memory.take("owner", [handle]) is None


def test_oldest_states_are_dropped_when_memory_is_full(factory: CheckpointStreamFactory) -> None:
    states = [snapshot(backend_of(range(1000)), factory) for _ in range(4)]
    max_bytes = 2 * states[0][1].memory_bytes
    memory = WorkerMemory()
    for number, (handle, written) in enumerate(states):
        memory.keep(str(number), handle, written, max_bytes=max_bytes)
    states_left = [memory.take(str(number), [handle]) for number, (handle, _) in enumerate(states)]
    assert [state is not None for state in states_left] == [False, False, True, True]


def test_slice_counts_with_its_whole_buffers(factory: CheckpointStreamFactory) -> None:
    handle, written = snapshot(backend_of(pa.array(range(100_000)).slice(0, 1)), factory)
    memory = WorkerMemory()
    memory.keep("owner", handle, written, max_bytes=8 * 50_000)
    assert memory.take("owner", [handle]) is None


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_state_is_not_kept(factory: CheckpointStreamFactory, compression: str) -> None:
    result = backend_of([1]).snapshot(factory, compression=compression).run()  # type: ignore[arg-type]
    assert result.task_local is None
