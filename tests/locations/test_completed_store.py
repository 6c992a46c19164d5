"""The checkpoints that a job retains, and the deletion of the others."""

import dataclasses
from collections.abc import Sequence

import pytest
from contracts.checkpointed_jobs import assert_complete, files_of, job_in, write_checkpoint

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import CompletedCheckpoint, load_checkpoint
from holdfast.locations.adapters import CheckpointStorageAccess, FileStateHandle, file_system_for
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
)
from holdfast.testing import ANY_CALL, Faults, metadata_of


def exists(checkpoint: CompletedCheckpoint) -> bool:
    directory = checkpoint.location.external_pointer
    return bool(list(file_system_for(directory).list(directory)))


def is_there(handle: FileStateHandle) -> bool:
    directory = handle.uri.rpartition("/")[0]
    return any(entry.uri == handle.uri for entry in file_system_for(directory).list(directory))


@pytest.fixture
def access(memory_directory: str) -> CheckpointStorageAccess:
    return job_in(memory_directory)


@pytest.fixture
def cleaner() -> CheckpointsCleaner:
    """A cleaner that deletes at once."""
    cleaner = CheckpointsCleaner()
    cleaner.close()
    return cleaner


def ids(store: CompletedCheckpointStore) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in store.checkpoints]


@pytest.mark.parametrize(("num_retained", "kept"), [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_newest_are_kept(
    access: CheckpointStorageAccess,
    cleaner: CheckpointsCleaner,
    num_retained: int,
    kept: list[int],
) -> None:
    store = CompletedCheckpointStore(num_retained, cleaner)
    made = [write_checkpoint(access, number) for number in range(1, 6)]
    for checkpoint in made:
        store.add(checkpoint)
        assert store.latest is checkpoint
    assert ids(store) == kept
    assert [checkpoint.checkpoint_id for checkpoint in made if exists(checkpoint)] == kept


def test_postponed_deletions_follow_a_later_checkpoint(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    first, second, third = (write_checkpoint(access, number) for number in (1, 2, 3))
    store.add(first)
    store.add(second, subsume=False)
    assert ids(store) == [1, 2]
    assert_complete(first)
    store.add(third)
    assert ids(store) == [3]
    assert [exists(checkpoint) for checkpoint in (first, second)] == [False, False]


def test_undeletable_checkpoint_keeps_no_other_one(
    faults: Faults, cleaner: CheckpointsCleaner
) -> None:
    """They are deleted together, and one by one if that fails."""
    access = job_in(faults.directory)
    store = CompletedCheckpointStore(1, cleaner)
    made = [write_checkpoint(access, number) for number in (1, 2, 3)]
    store.add(made[0])
    store.add(made[1], subsume=False)
    failures = [StorageUnavailableError("as planned")] * 2

    def fail_twice() -> None:
        if failures:
            raise failures.pop()

    faults.before("delete", fail_twice, nth="every")
    store.add(made[2])
    assert [exists(checkpoint) for checkpoint in made] == [True, False, True]
    assert_complete(made[0])
    store.add(write_checkpoint(access, 4))
    assert [exists(checkpoint) for checkpoint in made] == [False, False, False]


@pytest.mark.parametrize("num_retained", [0, -1])
def test_to_keep_none_is_refused(cleaner: CheckpointsCleaner, num_retained: int) -> None:
    with pytest.raises(InvalidRequestError, match="must be >= 1"):
        CompletedCheckpointStore(num_retained, cleaner)


@pytest.mark.parametrize("checkpoint_id", [1, 2])
def test_older_checkpoint_is_refused(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner, checkpoint_id: int
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    old = write_checkpoint(access, 2)
    store.add(old)
    other = write_checkpoint(access, checkpoint_id + 10)
    again = load_checkpoint(other.location)
    metadata = metadata_of(checkpoint_id=checkpoint_id)
    stale = CompletedCheckpoint(metadata, again.location, again.metadata_bytes)
    with pytest.raises(InvalidRequestError, match="not newer"):
        store.add(stale)
    assert store.checkpoints == (old,)
    assert_complete(old)


def test_checkpoint_with_another_length_of_a_shared_file_is_refused(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    old = write_checkpoint(access, 1, shared=1)
    store.add(old)
    damaged = FileStateHandle(files_of(old)[1].uri, 99)
    with pytest.raises(InvalidRequestError, match="another length"):
        store.add(write_checkpoint(access, 2, damaged))
    assert store.checkpoints == (old,)
    assert_complete(old)


def test_restored_checkpoints_are_kept_until_newer_ones_replace_them(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    checkpoints = [write_checkpoint(access, number, shared=1) for number in (1, 2, 3)]
    store = CompletedCheckpointStore(2, cleaner, checkpoints)
    assert ids(store) == [1, 2, 3]
    store.add(write_checkpoint(access, 4, files_of(checkpoints[0])[1]))
    assert ids(store) == [3, 4]
    assert [exists(checkpoint) for checkpoint in checkpoints] == [False, False, True]
    assert [is_there(files_of(checkpoint)[1]) for checkpoint in checkpoints] == [True, False, True]


class TestSharedFiles:
    def test_shared_file_is_deleted_with_its_last_checkpoint(
        self, access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner)
        first = write_checkpoint(access, 1, shared=2)
        kept, dropped = files_of(first)[1:]
        store.add(first)
        second = write_checkpoint(access, 2, kept)
        store.add(second)
        assert (is_there(kept), is_there(dropped)) == (True, False)
        assert_complete(second)
        store.add(write_checkpoint(access, 3))
        assert not is_there(kept)

    def test_failed_deletion_keeps_the_shared_files(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        """Otherwise it would be found without some of its files."""
        access = job_in(faults.directory)
        store = CompletedCheckpointStore(1, cleaner)
        first, second = write_checkpoint(access, 1, shared=1), write_checkpoint(access, 2)
        store.add(first)
        faults.before("delete", StorageUnavailableError("as planned"))
        store.add(second)
        assert exists(first)
        assert_complete(first)

    def test_newer_checkpoint_keeps_the_shared_files(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        """The deletion of the first one fails; the file is unused after the second one."""
        access = job_in(faults.directory)
        store = CompletedCheckpointStore(1, cleaner)
        first = write_checkpoint(access, 1, shared=1)
        second = write_checkpoint(access, 2, files_of(first)[1])
        third = write_checkpoint(access, 3)
        store.add(first)
        faults.before("delete", StorageUnavailableError("as planned"))
        store.add(second)
        store.add(third)
        assert not exists(second)
        if exists(first):
            assert_complete(first)

    def test_killed_process_leaves_no_checkpoint_with_missing_files(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        access = job_in(faults.directory)
        steps = 0
        for number in range(1, 7):
            first = write_checkpoint(access, 10 * number + 1, shared=1)
            second = write_checkpoint(access, 10 * number + 2)
            store = CompletedCheckpointStore(1, cleaner, [first])
            faults.calls.clear()
            faults.before(ANY_CALL, _Death(), nth=number)
            try:
                store.add(second)
            except _Death:
                steps += 1
            faults.clear()
            metadata = f"{first.location.external_pointer}/_metadata"
            if metadata in {
                entry.uri
                for entry in file_system_for(metadata).list(first.location.external_pointer)
            }:
                assert_complete(first)
        assert steps


class _Death(BaseException):
    """No handler in the code under test may run."""


def test_files_of_another_job_are_never_deleted(
    access: CheckpointStorageAccess, memory_directory: str, cleaner: CheckpointsCleaner
) -> None:
    savepoint = write_checkpoint(job_in(memory_directory, "old"), 5, savepoint=True, job_id="old")
    first = write_checkpoint(access, 6)
    streams = (*first.metadata.streams(), *savepoint.metadata.streams())
    leads_elsewhere = metadata_of(*streams, checkpoint_id=6)
    restored = dataclasses.replace(first, metadata=leads_elsewhere)
    store = CompletedCheckpointStore(1, cleaner, [restored])
    for number in (7, 8, 9):
        store.add(write_checkpoint(access, number))
    assert_complete(savepoint)


def test_third_checkpoint_discards_only_the_first_of_two_kept(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    """Flink's vector of cleanSubsumedCheckpoints: (2, {}) discards 1 and keeps 2 and 3."""
    store = CompletedCheckpointStore(2, cleaner)
    made: Sequence[CompletedCheckpoint] = [write_checkpoint(access, number) for number in (1, 2, 3)]
    for checkpoint in made:
        store.add(checkpoint)
    assert [exists(checkpoint) for checkpoint in made] == [False, True, True]
