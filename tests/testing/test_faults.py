import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from contracts.files import write
from contracts.patience import HANGS_S

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import checkpoint_storage, complete_checkpoint
from holdfast.locations.adapters import ExclusiveFileSystem, RetryPolicy, file_system_for
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.testing import ANY_CALL, Faults, faulty_file_system, metadata_of

BROKEN = StorageUnavailableError("as planned")

QUICK = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.001, max_wait_s=0.001)


def store_of(directory: str) -> ExclusiveFileSystem:
    file_system = file_system_for(directory)
    assert isinstance(file_system, ExclusiveFileSystem)
    return file_system


@pytest.fixture
def store(faults: Faults) -> ExclusiveFileSystem:
    return store_of(faults.directory)


def read(directory: str, name: str = "x") -> bytes | None:
    try:
        with file_system_for(directory).open(f"{directory}/{name}") as stream:
            return stream.read()
    except CheckpointNotFoundError:
        return None


@pytest.mark.parametrize("call", ["publish", "create", "write", "sync", "commit"])
def test_a_failure_before_the_effect_prevents_it(
    faults: Faults, store: ExclusiveFileSystem, call: str
) -> None:
    faults.before(call, BROKEN)
    with pytest.raises(StorageUnavailableError, match="as planned"):
        if call == "publish":
            store.publish(f"{faults.directory}/x", b"1")
        else:
            stream = store.create(f"{faults.directory}/x")
            stream.write(b"1")
            stream.sync()
            stream.commit()
    assert faults.calls[-1] == call
    assert read(faults.inner_directory) is None


@pytest.mark.parametrize("call", ["publish", "commit"])
def test_a_lost_answer_leaves_the_effect(
    faults: Faults, store: ExclusiveFileSystem, call: str
) -> None:
    faults.lose_answer(call)
    with pytest.raises(OutcomeUnknownError):
        if call == "publish":
            store.publish(f"{faults.directory}/x", b"1")
        else:
            write(store, f"{faults.directory}/x", b"1")
    assert read(faults.inner_directory) == b"1"


def test_lost_answer_of_other_calls_is_unavailable(
    faults: Faults, store: ExclusiveFileSystem
) -> None:
    store.publish(f"{faults.directory}/x", b"1")
    faults.lose_answer("delete")
    with pytest.raises(StorageUnavailableError):
        store.delete([f"{faults.directory}/x"])
    assert read(faults.inner_directory) is None
    faults.after("prepare_directory", OutcomeUnknownError("another one"))
    with pytest.raises(OutcomeUnknownError, match="another one"):
        store.prepare_directory(f"{faults.directory}/a")


def test_file_without_caller_is_aborted_at_the_end(local_directory: str) -> None:
    def names() -> list[str]:
        return [entry.uri for entry in file_system_for(local_directory).list(local_directory)]

    with faulty_file_system(local_directory) as faults:
        faults.lose_answer("create")
        with pytest.raises(StorageUnavailableError):
            store_of(faults.directory).create(f"{faults.directory}/x")
        assert len(names()) == 1
    assert names() == []


def outcomes_of(store: ExclusiveFileSystem, directory: str, count: int) -> list[bool]:
    """Return whether each of several calls of `delete` succeeded."""
    outcomes = []
    for _ in range(count):
        try:
            store.delete([f"{directory}/missing"])
        except StorageUnavailableError:
            outcomes.append(False)
        else:
            outcomes.append(True)
    return outcomes


def test_fault_applies_to_the_named_call(faults: Faults, store: ExclusiveFileSystem) -> None:
    faults.before("delete", BROKEN, nth=3)
    list(store.list(faults.directory))
    assert outcomes_of(store, faults.directory, 4) == [True, True, False, True]
    assert faults.calls == ["list", "delete", "delete", "delete", "delete"]
    faults.before("delete", BROKEN)
    assert outcomes_of(store, faults.directory, 2) == [False, True]
    faults.calls.clear()
    faults.before("delete", BROKEN, nth=2)
    assert outcomes_of(store, faults.directory, 3) == [True, False, True]


def test_fault_applies_to_every_call_until_cleared(
    faults: Faults, store: ExclusiveFileSystem
) -> None:
    faults.after("delete", BROKEN, nth="every")
    assert outcomes_of(store, faults.directory, 3) == [False, False, False]
    faults.clear()
    assert outcomes_of(store, faults.directory, 2) == [True, True]


def test_any_call_fails_except_abort(faults: Faults, store: ExclusiveFileSystem) -> None:
    stream = store.create(f"{faults.directory}/x")
    faults.before(ANY_CALL, BROKEN, nth=3)
    faults.before(ANY_CALL, BROKEN, nth=4)
    stream.write(b"1")
    stream.abort()
    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            store.list(faults.directory)
    store.list(faults.directory)


def test_action_runs_just_before_the_call(faults: Faults, store: ExclusiveFileSystem) -> None:
    # Another writer takes the name just before.
    other = store_of(faults.inner_directory)
    faults.before("publish", lambda: other.publish(f"{faults.inner_directory}/x", b"theirs"))
    with pytest.raises(CheckpointConflictError) as caught:
        store.publish(f"{faults.directory}/x", b"ours")
    assert caught.value.location == f"{faults.directory}/x"
    assert read(faults.inner_directory) == b"theirs"


def test_plans_of_one_call_add_up(faults: Faults, store: ExclusiveFileSystem) -> None:
    seen: list[str] = []
    faults.before("delete", lambda: seen.append("any"), nth="every")
    faults.before("delete", lambda: seen.append("one"))
    faults.after("delete", lambda: seen.append("after"))
    outcomes_of(store, faults.directory, 2)
    assert seen == ["one", "any", "after", "any"]


def test_unknown_call_is_refused(faults: Faults) -> None:
    with pytest.raises(InvalidRequestError, match="got 'rename'"):
        faults.before("rename", BROKEN)
    with pytest.raises(InvalidRequestError):
        faults.truncate("delete", 1)


@pytest.mark.parametrize(
    ("call", "kept"), [("write", b"abcefg"), ("commit", b"abc"), ("publish", b"abc")]
)
def test_truncated_file_is_stored_without_an_error(
    faults: Faults, store: ExclusiveFileSystem, call: str, kept: bytes
) -> None:
    faults.truncate(call, 3)
    if call == "publish":
        store.publish(f"{faults.directory}/x", b"abcdefg")
    else:
        write(store, f"{faults.directory}/x", b"abcd", b"efg")
    assert read(faults.inner_directory) == kept
    assert [entry.size for entry in store.list(faults.directory)] == [len(kept)]


def test_truncation_and_flipped_bit_affect_one_read(
    faults: Faults, store: ExclusiveFileSystem
) -> None:
    store.publish(f"{faults.directory}/x", b"abcdefg")
    faults.truncate("open", 3)
    faults.flip_bit(1, bit=5)
    with store.open(f"{faults.directory}/x") as stream:
        assert stream.seek(0, 2) == 3
        assert stream.seek(0) == 0
        assert stream.read() == b"aBc"
    assert read(faults.directory) == read(faults.inner_directory) == b"abcdefg"


def test_full_store_refuses_writes_and_keeps_files(
    faults: Faults, store: ExclusiveFileSystem
) -> None:
    faults.run_out_of_space(10)
    store.publish(f"{faults.directory}/x", b"1234")
    stream = store.create(f"{faults.directory}/y")
    stream.write(b"123456")
    with pytest.raises(StorageFullError):
        stream.write(b"7")
    with pytest.raises(StreamClosedError):
        stream.commit()
    with pytest.raises(StorageFullError):
        store.publish(f"{faults.directory}/z", b"")
    assert [entry.uri for entry in store.list(faults.directory)] == [f"{faults.directory}/x"]
    faults.make_room()
    store.publish(f"{faults.directory}/z", b"12345678901")
    assert read(faults.inner_directory, "z") == b"12345678901"


def test_full_local_disk_keeps_no_hidden_file(local_directory: str) -> None:
    with faulty_file_system(local_directory) as faults:
        faults.run_out_of_space(1)
        stream = store_of(faults.directory).create(f"{faults.directory}/x")
        with pytest.raises(StorageFullError):
            stream.write(b"12")
        assert list(file_system_for(local_directory).list(local_directory)) == []


def test_a_delayed_call_waits_for_the_event(faults: Faults, store: ExclusiveFileSystem) -> None:
    now = threading.Event()
    faults.delay("publish", now)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(store.publish, f"{faults.directory}/x", b"1")
        assert not publishing.done()
        assert read(faults.inner_directory) is None
        now.set()
        publishing.result()
    assert read(faults.inner_directory) == b"1"


def test_delay_by_a_callable_advances_a_clock_of_the_test(
    faults: Faults, store: ExclusiveFileSystem
) -> None:
    clock = [0.0]

    def pass_ten_seconds() -> None:
        clock[0] += 10

    faults.delay("list", pass_ten_seconds, nth="every")
    for _ in range(3):
        store.list(faults.directory)
    assert clock == [30.0]


def test_blocked_call_resumes_when_released(faults: Faults, store: ExclusiveFileSystem) -> None:
    reached, released = faults.blocking("publish")
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(store.publish, f"{faults.directory}/x", b"ours")
        assert reached.wait(HANGS_S)
        store_of(faults.inner_directory).publish(f"{faults.inner_directory}/x", b"theirs")
        released.set()
        with pytest.raises(CheckpointConflictError):
            publishing.result()


def test_blocked_call_is_released_at_the_end(memory_directory: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with faulty_file_system(memory_directory) as faults:
            reached, _ = faults.blocking("publish")
            store = store_of(faults.directory)
            publishing = pool.submit(store.publish, f"{faults.directory}/x", b"1")
            assert reached.wait(HANGS_S)
        publishing.result(HANGS_S)


def test_retries_apply_to_faults_if_requested(memory_directory: str) -> None:
    with faulty_file_system(memory_directory, retries=QUICK) as faults:
        store = store_of(faults.directory)
        for number in (1, 2):
            faults.before("publish", BROKEN, nth=number)
        store.publish(f"{faults.directory}/x", b"0123456789")
        assert faults.calls == ["publish"] * 3
        faults.calls.clear()
        with store.open(f"{faults.directory}/x") as stream:
            assert stream.read(4) == b"0123"
            faults.before("read", BROKEN)
            assert stream.read(4) == b"4567"  # opened again, at the same position
        assert faults.calls == ["open", "read", "read", "open", "read"]


def test_each_call_raises_a_new_error(faults: Faults, store: ExclusiveFileSystem) -> None:
    faults.before("list", BROKEN, nth="every")
    caught = []
    for _ in range(2):
        with pytest.raises(StorageUnavailableError) as info:
            store.list(faults.directory)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert str(caught[0]) == str(caught[1]) == str(BROKEN)


@pytest.mark.parametrize("lands", [False, True])
def test_failure_at_any_call_leaves_whole_checkpoint_or_none(
    memory_directory: str,
    lands: bool,  # noqa: FBT001
) -> None:
    for step in range(1, 1000):
        with faulty_file_system(memory_directory) as faults:
            plan = faults.after if lands else faults.before
            plan(ANY_CALL, OutcomeUnknownError("as planned"), nth=step)
            try:
                access = checkpoint_storage(faults.directory).create_checkpoint_storage("job")
                access.initialize_base_locations_for_checkpoint()
                location = access.initialize_location_for_checkpoint(step)
                complete_checkpoint(location, metadata_of(checkpoint_id=step))
            except CheckpointError:
                completed = False
            else:
                completed = True
            reached = len(faults.calls) >= step
        access = checkpoint_storage(memory_directory).create_checkpoint_storage("job")
        latest = load_latest_checkpoint(access)
        if completed:
            assert latest is not None
            assert latest.metadata.checkpoint_id == step
        if not reached:
            assert completed
            return
    pytest.fail("it never succeeded")
