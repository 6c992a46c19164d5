import gc
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pyarrow as pa
import pytest
from contracts.elements import backend_with, list_state, memory_factory, snapshot_of

from holdfast.backends import OperatorStateBackend, SnapshotResult
from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import CheckpointStorageLocation, checkpoint_storage
from holdfast.locations.file_systems import _memory as store
from holdfast.testing import Faults

LARGE = (pa.int64(), range(100_000))


@pytest.fixture
def location(faults: Faults) -> CheckpointStorageLocation:
    access = checkpoint_storage(faults.directory).create_checkpoint_storage("job")
    return access.initialize_location_for_checkpoint(1)


def files_in(faults: Faults) -> list[str]:
    return [uri for uri in store._FILES if uri.startswith(f"{faults.behind}/")]


def test_no_state_makes_an_empty_result_and_no_file(
    faults: Faults, location: CheckpointStorageLocation
) -> None:
    faults.calls.clear()
    result = OperatorStateBackend().snapshot(location).run()
    assert result == SnapshotResult()
    assert (result.job_manager_owned, result.state_bytes) == (None, 0)
    assert faults.calls == []


def test_a_snapshot_does_not_show_later_changes() -> None:
    backend = backend_with(s=(pa.int64(), [1, 2]), t=(pa.int64(), [3]))
    list_state(backend).add(9)
    pending = backend.snapshot(memory_factory())
    list_state(backend).add(4)
    list_state(backend).add_all([5])
    list_state(backend, "t").update([6])
    list_state(backend, "late").add(7)
    result = pending.run()
    assert result.job_manager_owned is not None
    assert result.state_bytes == result.job_manager_owned.size
    restored = OperatorStateBackend.restore([result.job_manager_owned])
    assert restored.registered_state_names() == {"s", "t"}
    assert list_state(restored).get() == [1, 2, 9]
    assert list_state(restored, "t").get() == [3]
    assert list_state(backend).get() == [1, 2, 9, 4, 5]


def test_a_snapshot_runs_once(location: CheckpointStorageLocation, faults: Faults) -> None:
    snapshot = backend_with(s=LARGE).snapshot(location)
    snapshot.run()
    files = files_in(faults)
    with pytest.raises(InvalidRequestError):
        snapshot.run()
    snapshot.cancel()
    assert files_in(faults) == files
    assert len(files) == 1


def test_a_snapshot_cancelled_before_it_ran_writes_nothing_and_lets_go(
    faults: Faults, location: CheckpointStorageLocation
) -> None:
    backend = backend_with(s=LARGE)
    chunk = weakref.ref(list_state(backend).chunks()[0])
    snapshot = backend.snapshot(location)
    faults.calls.clear()
    for _ in range(2):
        snapshot.cancel()
    with pytest.raises(CancelledError):
        snapshot.run()
    list_state(backend).clear()
    gc.collect()
    assert chunk() is None
    assert faults.calls == []


@pytest.mark.parametrize("call", ["create", "write", "commit"])
def test_a_snapshot_cancelled_while_it_runs_leaves_nothing(
    faults: Faults, location: CheckpointStorageLocation, call: str
) -> None:
    snapshot = backend_with(s=LARGE).snapshot(location)
    reached, go_on = faults.blocking(call)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(snapshot.run)
        assert reached.wait(60)
        cancelling = pool.submit(snapshot.cancel)
        if call != "create":
            cancelling.result(60)  # does not wait for the write
        go_on.set()
        cancelling.result(60)
        with pytest.raises(CancelledError):
            running.result(60)
    assert files_in(faults) == []


@pytest.mark.parametrize("call", ["create", "write", "commit"])
@pytest.mark.parametrize(
    "error", [StorageUnavailableError("out of reach"), OSError(5, "Input/output error")]
)
def test_a_failing_stream_raises_and_leaves_nothing(
    faults: Faults, location: CheckpointStorageLocation, call: str, error: Exception
) -> None:
    snapshot = backend_with(s=LARGE, t=LARGE).snapshot(location)
    faults.before(call, error)
    with pytest.raises(type(error)) as caught:
        snapshot.run()
    assert caught.value is error
    assert files_in(faults) == []
    assert faults.calls.count("abort") == faults.calls.count("create") - (call == "create") or (
        "abort" in faults.calls
    )
    with pytest.raises(InvalidRequestError):
        snapshot.run()


def test_a_snapshot_that_ran_lets_go_of_what_it_captured() -> None:
    backend = backend_with(s=LARGE)
    chunk = weakref.ref(list_state(backend).chunks()[0])
    snapshot = backend.snapshot(memory_factory())
    snapshot.run()
    list_state(backend).clear()
    gc.collect()
    assert chunk() is None


def test_a_local_part_needs_the_coordinators_part() -> None:
    handle = snapshot_of(backend_with(s=(pa.int64(), [1])))
    with pytest.raises(InvalidRequestError):
        SnapshotResult(None, handle)
    assert SnapshotResult(handle, handle).state_bytes == handle.size


def test_no_bytes_of_state_show_in_a_repr() -> None:
    handle = snapshot_of(backend_with(s=(pa.string(), ["somebody's secret"])))
    assert "secret" not in repr(handle)
    assert "secret" not in repr(SnapshotResult(handle))
