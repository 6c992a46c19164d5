import gc
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pyarrow as pa
import pytest
from contracts.elements import (
    backend_with,
    broadcast_state,
    list_state,
    memory_factory,
    snapshot_of,
)
from contracts.files import files_below
from contracts.patience import HANGS_S

from holdfast.backends import AsyncSnapshot, OperatorStateBackend, SnapshotResult
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.errors import InvalidRequestError, StorageFullError, StorageUnavailableError
from holdfast.locations import CheckpointStorageLocation, checkpoint_storage
from holdfast.locations.adapters import CheckpointedStateScope, CheckpointStreamFactory
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode, StatePartitions
from holdfast.locations.metadata import StoredSubtask
from holdfast.testing import Faults

LARGE = (pa.int64(), range(100_000))


@pytest.fixture
def location(faults: Faults) -> CheckpointStorageLocation:
    access = checkpoint_storage(faults.directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    faults.calls.clear()
    return location


def files_in(faults: Faults) -> list[str]:
    return sorted(files_below(faults.inner_directory))


def test_no_state_makes_an_empty_result_and_no_file(
    faults: Faults, location: CheckpointStorageLocation
) -> None:
    faults.calls.clear()
    result = OperatorStateBackend().snapshot(location).run()
    assert result == SnapshotResult()
    assert result.state == StoredSubtask()
    assert faults.calls == []


def test_snapshot_does_not_show_later_changes() -> None:
    backend = backend_with(s=(pa.int64(), [1, 2]), t=(pa.int64(), [3]))
    list_state(backend).add(9)
    pending = backend.snapshot(memory_factory())
    list_state(backend).add(4)
    list_state(backend).add_all([5])
    list_state(backend, "t").update([6])
    list_state(backend, "late").add(7)
    result = pending.run()
    restored = OperatorStateBackend.restore(result.state.managed_operator)
    assert restored.registered_state_names() == {"s", "t"}
    assert list_state(restored).get() == [1, 2, 9]
    assert list_state(restored, "t").get() == [3]
    assert list_state(backend).get() == [1, 2, 9, 4, 5]


def test_snapshot_runs_once(location: CheckpointStorageLocation, faults: Faults) -> None:
    snapshot = backend_with(s=LARGE).snapshot(location)
    snapshot.run()
    files = files_in(faults)
    with pytest.raises(InvalidRequestError):
        snapshot.run()
    snapshot.cancel()
    assert files_in(faults) == files
    assert len(files) == 1


def test_snapshot_cancelled_before_it_ran_writes_nothing(
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
def test_snapshot_cancelled_while_it_runs_leaves_nothing(
    faults: Faults, location: CheckpointStorageLocation, call: str
) -> None:
    snapshot = backend_with(s=LARGE).snapshot(location)
    reached, resume = faults.blocking(call)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(snapshot.run)
        assert reached.wait(HANGS_S)
        cancelling = pool.submit(snapshot.cancel)
        if call != "create":
            cancelling.result(HANGS_S)  # does not wait for the write
        resume.set()
        cancelling.result(HANGS_S)
        with pytest.raises(CancelledError):
            running.result(HANGS_S)
    assert files_in(faults) == []


@pytest.mark.parametrize("call", ["create", "write", "commit"])
@pytest.mark.parametrize(
    "error", [StorageUnavailableError("out of reach"), OSError(5, "Input/output error")]
)
def test_failing_stream_raises_and_leaves_nothing(
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


def test_finished_snapshot_releases_its_capture() -> None:
    backend = backend_with(s=LARGE)
    chunk = weakref.ref(list_state(backend).chunks()[0])
    snapshot = backend.snapshot(memory_factory())
    snapshot.run()
    list_state(backend).clear()
    gc.collect()
    assert chunk() is None


def test_no_bytes_of_state_show_in_a_repr() -> None:
    handle = snapshot_of(backend_with(s=(pa.string(), ["a private text"])))
    assert "secret" not in repr(handle)
    assert "secret" not in repr(SnapshotResult(StoredSubtask((handle,))))


class Resources:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Strategy:
    """Writes one stream, then another one; the result has a handle to each."""

    def __init__(
        self,
        between: Callable[[], object] = lambda: None,
        scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
    ) -> None:
        self.between = between
        self.scope = scope
        self.resources = Resources()

    def sync_prepare_resources(self, checkpoint_id: int) -> Resources:
        return self.resources

    def async_snapshot(self, resources: Resources, streams: SnapshotStreams) -> SnapshotResult:
        assert resources.released == 0
        handles = []
        for act in (self.between, lambda: None):
            with streams.open(self.scope) as stream:
                stream.write(bytes(100_000))
                handles.append(streams.finish(stream))
            act()
        partitions = {"s": StatePartitions(OperatorStateMode.UNION, 0, 1, 0, 0)}
        written = tuple(OperatorStateHandle(partitions, file) for file in handles if file)
        return SnapshotResult(StoredSubtask(written))


def asynchronous(strategy: Strategy, factory: CheckpointStreamFactory) -> AsyncSnapshot:
    return AsyncSnapshot.of(strategy, strategy.sync_prepare_resources(1), factory)


class TestAsyncSnapshot:
    """Flink's AsyncSnapshotCallableTest, and what a failure after a finished stream leaves."""

    def test_normal_run_releases_once(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        strategy = Strategy()
        snapshot = asynchronous(strategy, location)
        assert [handle.size for handle in snapshot.run().state.managed_operator] == [100_000] * 2
        snapshot.cancel()
        snapshot.cancel()
        assert strategy.resources.released == 1
        assert len(files_in(faults)) == 2

    @pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=repr)
    def test_error_after_a_finished_stream_discards_it(
        self, faults: Faults, location: CheckpointStorageLocation, error: BaseException
    ) -> None:
        seen = []

        def fail() -> None:
            seen.extend(files_in(faults))
            raise error

        strategy = Strategy(fail)
        snapshot = asynchronous(strategy, location)
        with pytest.raises(type(error)) as caught:
            snapshot.run()
        snapshot.cancel()
        assert caught.value is error
        assert len(seen) == 1
        assert files_in(faults) == []
        assert strategy.resources.released == 1

    @pytest.mark.parametrize("scope", CheckpointedStateScope)
    def test_streams_are_in_their_scope_and_deleted_on_failure(
        self, faults: Faults, location: CheckpointStorageLocation, scope: CheckpointedStateScope
    ) -> None:
        of_scope = {
            CheckpointedStateScope.EXCLUSIVE: "/job/chk-1/",
            CheckpointedStateScope.SHARED: "/job/shared/",
        }
        asynchronous(Strategy(scope=scope), location).run()
        kept = files_in(faults)
        assert [of_scope[scope] in uri for uri in kept] == [True, True]

        def fail() -> None:
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            asynchronous(Strategy(fail, scope), location).run()
        assert files_in(faults) == kept

    def test_failure_of_the_second_stream_deletes_the_first(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        strategy = Strategy(lambda: faults.before("create", StorageFullError("full")))
        with pytest.raises(StorageFullError):
            asynchronous(strategy, location).run()
        assert faults.calls.count("delete") == 1
        assert files_in(faults) == []

    def test_failure_to_discard_does_not_hide_the_first_error(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        def fail() -> None:
            faults.before("delete", StorageUnavailableError("out of reach"))
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            asynchronous(Strategy(fail), location).run()

    def test_cancel_between_two_streams_discards_the_first(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        strategy = Strategy()
        snapshot = asynchronous(strategy, location)
        strategy.between = snapshot.cancel
        with pytest.raises(CancelledError):
            snapshot.run()
        assert files_in(faults) == []
        assert strategy.resources.released == 1

    def test_cancel_before_the_run_releases_once(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        strategy = Strategy()
        snapshot = asynchronous(strategy, location)
        faults.calls.clear()
        snapshot.cancel()
        assert strategy.resources.released == 1
        for _ in range(2):
            with pytest.raises(CancelledError):
                snapshot.run()
        snapshot.cancel()
        assert strategy.resources.released == 1
        assert faults.calls == []

    @pytest.mark.parametrize("round_", range(20))
    def test_cancel_at_any_time_leaves_a_result_or_nothing(
        self, faults: Faults, location: CheckpointStorageLocation, round_: int
    ) -> None:
        strategy = Strategy()
        snapshot = asynchronous(strategy, location)
        with ThreadPoolExecutor(3) as pool:
            cancels = [pool.submit(snapshot.cancel)]
            running = pool.submit(snapshot.run)
            cancels.append(pool.submit(snapshot.cancel))
        assert [cancel.result() for cancel in cancels] == [None, None]
        error = running.exception()
        assert error is None or isinstance(error, CancelledError)
        assert len(files_in(faults)) == (0 if error else 2)
        assert strategy.resources.released == 1


class TestClose:
    def test_close_cancels_pending_snapshots(
        self, faults: Faults, location: CheckpointStorageLocation
    ) -> None:
        backend = backend_with(s=LARGE)
        snapshots = [backend.snapshot(location) for _ in range(3)]
        snapshots[0].run()
        for _ in range(2):
            backend.close()
        for snapshot in snapshots[1:]:
            with pytest.raises(CancelledError):
                snapshot.run()
        assert len(files_in(faults)) == 1

    @pytest.mark.parametrize("way", ["close", "dispose"])
    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    def test_close_cancels_running_snapshots(
        self, faults: Faults, location: CheckpointStorageLocation, call: str, way: str
    ) -> None:
        backend = backend_with(s=LARGE)
        broadcast_state(backend, entries={1: 2})
        snapshot = backend.snapshot(location)
        reached, resume = faults.blocking(call)
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(snapshot.run)
            assert reached.wait(HANGS_S)
            closing = pool.submit(getattr(backend, way))
            if call != "create":
                closing.result(HANGS_S)
            resume.set()
            closing.result(HANGS_S)
            with pytest.raises(CancelledError):
                running.result(HANGS_S)
        assert files_in(faults) == []
        backend.dispose()
