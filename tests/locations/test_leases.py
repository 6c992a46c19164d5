"""Checkpoints that are being read are deleted later."""

import logging
import uuid
from collections.abc import Iterator

import pytest
from contracts.checkpointed_jobs import assert_complete, files_of, job_in, write_checkpoint
from contracts.files import files_below

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError, StorageUnavailableError
from holdfast.locations import CompletedCheckpoint, sweep
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    acquire_lease,
    hold_checkpoint,
    hold_found_checkpoint,
)
from holdfast.locations.coordination.leases import LEASE_S, CheckpointLease
from holdfast.testing import Faults, ManualClock, faulty_file_system


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """The clock of the store."""
    clock = ManualClock()
    register_file_system("memory", lambda: MemoryFileSystem(clock))
    yield clock
    unregister_file_system("memory")


@pytest.fixture
def faults(clock: ManualClock) -> Iterator[Faults]:
    assert clock
    root = f"memory:///{uuid.uuid4().hex}"
    file_system_for(root).prepare_directory(root)
    with faulty_file_system(root) as faults:
        yield faults
    file_system_for(root).delete_tree(root)


@pytest.fixture
def access(faults: Faults) -> CheckpointStorageAccess:
    return job_in(faults.directory)


@pytest.fixture
def cleaner() -> CheckpointsCleaner:
    """A cleaner that deletes at once."""
    cleaner = CheckpointsCleaner()
    cleaner.close()
    return cleaner


def pointer_of(checkpoint: CompletedCheckpoint) -> str:
    return checkpoint.location.external_pointer


def exists(checkpoint: CompletedCheckpoint) -> bool:
    return bool(files_below(pointer_of(checkpoint)))


def test_held_checkpoint_is_deleted_after_the_read(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1, shared=1)
    store.add(first)
    with hold_checkpoint(pointer_of(first)):
        for number in (2, 3):
            store.add(write_checkpoint(access, number))
            assert_complete(first)
    assert files_below(pointer_of(first)) == {
        f"{pointer_of(first)}/_metadata",
        files_of(first)[0].uri,
    }
    store.add(write_checkpoint(access, 4))
    assert not exists(first)
    assert files_of(first)[1].uri not in files_below(pointer_of(first).rpartition("/")[0])


def test_shared_files_of_other_checkpoints_are_not_kept(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1, shared=1)
    second = write_checkpoint(access, 2, files_of(first)[1], shared=1)
    store.add(first)
    with hold_checkpoint(pointer_of(first)):
        store.add(second)
        store.add(write_checkpoint(access, 3))
        assert_complete(first)
        left = files_below(f"{pointer_of(first).rpartition('/')[0]}/shared")
        assert left == {files_of(first)[1].uri}


def test_lease_of_a_killed_reader_ends(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner, clock: ManualClock
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1)
    store.add(first)
    acquire_lease(pointer_of(first))
    for number, seconds in ((2, 0), (3, LEASE_S - 1)):
        clock.advance(seconds)
        store.add(write_checkpoint(access, number))
        assert_complete(first)
    clock.advance(1)
    store.add(write_checkpoint(access, 4))
    assert not exists(first)


def test_renewed_lease_counts_from_its_renewal(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner, clock: ManualClock
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1)
    store.add(first)
    lease = CheckpointLease(pointer_of(first))
    for number in range(2, 5):
        lease.renew()
        clock.advance(LEASE_S - 1)
        store.add(write_checkpoint(access, number))
        assert_complete(first)
    job = pointer_of(first).rpartition("/")[0]
    assert sum("_lease-1-" in file for file in files_below(f"{job}/_epoch")) == 1


def test_restarted_driver_deletes_a_formerly_held_checkpoint(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1, shared=1)
    store.add(first)
    with hold_checkpoint(pointer_of(first)):
        store.add(write_checkpoint(access, 2))
        completed = access.claim_job().completed.values()
        restarted = CompletedCheckpointStore(1, cleaner, completed)
        restarted.add(write_checkpoint(access, 3))
        assert_complete(first)
    restarted.add(write_checkpoint(access, 4))
    assert sorted(access.completed_checkpoints()) == [4]


def test_sweep_deletes_only_old_leases(faults: Faults, clock: ManualClock) -> None:
    access = job_in(faults.directory)
    first = write_checkpoint(access, 1)
    acquire_lease(pointer_of(first))
    clock.advance(3600)
    acquire_lease(pointer_of(first))
    report = sweep(faults.directory, "job", grace_s=1800)
    assert (len(report.files), report.within_grace) == (1, 1)
    assert_complete(first)


@pytest.mark.parametrize("call", ["create", "commit"])
def test_reader_without_permission_to_write_warns_once(
    faults: Faults, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    access = job_in(faults.directory)
    first, second = write_checkpoint(access, 1), write_checkpoint(access, 2)
    faults.before(call, InvalidRequestError("no permission"), "every")
    with caplog.at_level(logging.WARNING):
        for checkpoint in (first, second):
            with hold_checkpoint(pointer_of(checkpoint)):
                assert_complete(checkpoint)
    [record] = caplog.records
    assert "without a lease" in record.getMessage()
    assert "no permission" in record.getMessage()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["create", "commit", "delete"])
def test_failure_of_the_store_leaves_no_endless_lease(
    faults: Faults, cleaner: CheckpointsCleaner, clock: ManualClock, call: str, moment: str
) -> None:
    access = job_in(faults.directory)
    store = CompletedCheckpointStore(1, cleaner)
    first = write_checkpoint(access, 1)
    store.add(first)
    plan = faults.before if moment == "before" else faults.after
    plan(call, StorageUnavailableError("as planned"))
    with hold_checkpoint(pointer_of(first)):
        assert_complete(first)
    faults.clear()
    clock.advance(LEASE_S)
    store.add(write_checkpoint(access, 2))
    assert not exists(first)


def test_deletion_under_a_reader_is_one_error(access: CheckpointStorageAccess) -> None:
    checkpoint = write_checkpoint(access, 1)
    pointer = pointer_of(checkpoint)
    with (
        pytest.raises(CheckpointNotFoundError, match=r"name the job's directory") as raised,
        hold_checkpoint(pointer),
    ):
        checkpoint.discard()
        assert_complete(checkpoint)
    assert (raised.value.code, raised.value.location) == ("HF-DELETED", pointer)
    with pytest.raises(CheckpointNotFoundError, match=r"HF-DELETED"), hold_checkpoint(pointer):
        pass
    assert not files_below(pointer)


def test_missing_file_of_a_held_checkpoint_is_named(access: CheckpointStorageAccess) -> None:
    checkpoint = write_checkpoint(access, 1)
    (file,) = files_of(checkpoint)
    file.discard_state()
    with (
        pytest.raises(CheckpointNotFoundError, match=r"HF-FILE-MISSING") as raised,
        hold_checkpoint(pointer_of(checkpoint)),
        file.open_input_stream() as stream,
    ):
        stream.read()
    assert file.uri in str(raised.value)


def test_reader_of_a_job_continues_with_a_newer_checkpoint(faults: Faults) -> None:
    access = job_in(faults.directory)
    first = write_checkpoint(access, 1)

    def complete_next() -> None:
        write_checkpoint(access, 2)
        first.discard()

    faults.calls.clear()
    faults.before("create", complete_next, 1)
    with hold_found_checkpoint(f"{faults.directory}/job") as checkpoint:
        assert checkpoint.checkpoint_id == 2


def test_savepoint_needs_no_lease(access: CheckpointStorageAccess) -> None:
    savepoint = write_checkpoint(access, 1, savepoint=True)
    before = files_below(pointer_of(savepoint))
    with hold_checkpoint(pointer_of(savepoint)):
        assert files_below(pointer_of(savepoint)) == before
