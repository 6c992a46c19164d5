"""Which checkpoints a job keeps, and what is deleted for those it doesn't."""

import uuid
from collections.abc import Sequence

import pytest
from contracts.values import EXCLUSIVE, read

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import CheckpointedStateScope, FileStateHandle, file_system_for
from holdfast.locations.coordination import (
    NEVER_RETAIN,
    RETAIN_ON_CANCELLATION,
    RETAIN_ON_FAILURE,
    SAVEPOINT,
    SYNCHRONOUS_SAVEPOINT,
    CheckpointProperties,
    CheckpointsCleaner,
    CompletedCheckpointStore,
    JobStatus,
    RestoreMode,
)
from holdfast.testing import ANY_CALL, Faults, metadata_of, streams_of

SHARED = CheckpointedStateScope.SHARED
KINDS = {"cp": RETAIN_ON_CANCELLATION, "sp": SAVEPOINT, "stop": SYNCHRONOUS_SAVEPOINT}


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, savepoint_directory=f"{directory}/savepoints"
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


def write(
    location: CheckpointStorageLocation, scope: CheckpointedStateScope = EXCLUSIVE
) -> FileStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(b"state")
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess,
    checkpoint_id: int,
    *reused: FileStateHandle,
    shared: int = 0,
    savepoint: bool = False,
    job_id: str = "job",
) -> CompletedCheckpoint:
    """A checkpoint with an exclusive file, new shared ones, and those of others."""
    begin = (
        access.initialize_location_for_savepoint
        if savepoint
        else access.initialize_location_for_checkpoint
    )
    location = begin(checkpoint_id)
    streams = (write(location), *(write(location, SHARED) for _ in range(shared)), *reused)
    metadata = metadata_of(
        *streams, checkpoint_id=checkpoint_id, commit_token=uuid.uuid4().hex, job_id=job_id
    )
    return complete_checkpoint(location, metadata)


def files_of(checkpoint: CompletedCheckpoint) -> list[FileStateHandle]:
    return [one for one in streams_of(checkpoint.metadata) if isinstance(one, FileStateHandle)]


def exists(checkpoint: CompletedCheckpoint) -> bool:
    directory = checkpoint.location.external_pointer
    return bool(list(file_system_for(directory).list(directory)))


def is_there(handle: FileStateHandle) -> bool:
    directory = handle.uri.rpartition("/")[0]
    return any(one.uri == handle.uri for one in file_system_for(directory).list(directory))


def assert_whole(checkpoint: CompletedCheckpoint) -> None:
    for one in files_of(load_checkpoint(checkpoint.location)):
        assert read(one) == b"state"


@pytest.fixture
def access(memory_directory: str) -> CheckpointStorageAccess:
    return job_in(memory_directory)


@pytest.fixture
def cleaner() -> CheckpointsCleaner:
    """Deletes at once."""
    cleaner = CheckpointsCleaner()
    cleaner.close()
    return cleaner


def ids(store: CompletedCheckpointStore) -> list[int]:
    return [one.checkpoint_id for one in store.checkpoints]


@pytest.mark.parametrize(
    ("num_retained", "added", "kept"),
    [
        (1, "cp cp sp sp sp", [2, 5]),
        (1, "cp sp cp", [3]),
        (1, "cp sp stop", [3]),
        (3, "cp cp cp", [1, 2, 3]),
        (3, "sp stop cp", [1, 2, 3]),
        (1, "cp", [1]),
        (1, "cp cp cp", [3]),
        (2, "cp cp cp", [2, 3]),
        (2, "cp sp sp", [1, 3]),
        (1, "sp sp", [2]),
        (1, "stop cp", [2]),
        (2, "cp cp stop", [2, 3]),
    ],
)
def test_the_newest_are_kept_and_the_newest_that_is_no_savepoint(
    access: CheckpointStorageAccess,
    cleaner: CheckpointsCleaner,
    num_retained: int,
    added: str,
    kept: list[int],
) -> None:
    store = CompletedCheckpointStore(num_retained, cleaner)
    kinds = added.split()
    made = [
        completed(access, number, savepoint=kind != "cp") for number, kind in enumerate(kinds, 1)
    ]
    for one, kind in zip(made, kinds, strict=True):
        store.add(one, KINDS[kind])
        assert store.latest is one
    assert ids(store) == kept
    for one, kind in zip(made, kinds, strict=True):
        assert exists(one) == (kind != "cp" or one.checkpoint_id in kept)


@pytest.mark.parametrize("num_retained", [0, -1])
def test_to_keep_none_is_refused(cleaner: CheckpointsCleaner, num_retained: int) -> None:
    with pytest.raises(InvalidRequestError, match="at least one"):
        CompletedCheckpointStore(num_retained, cleaner)


ENDS = {
    NEVER_RETAIN: {*JobStatus},
    RETAIN_ON_FAILURE: {JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.SUSPENDED},
    RETAIN_ON_CANCELLATION: {JobStatus.FINISHED},
    SAVEPOINT: set(),
    SYNCHRONOUS_SAVEPOINT: set(),
}


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("properties", ENDS, ids=range(len(ENDS)))
def test_what_outlives_the_job_depends_on_its_kind_and_on_the_end(
    access: CheckpointStorageAccess,
    cleaner: CheckpointsCleaner,
    properties: CheckpointProperties,
    status: JobStatus,
) -> None:
    store = CompletedCheckpointStore(3, cleaner)
    made = completed(access, 1, shared=1)
    store.add(made, properties)
    store.shutdown(status)
    discarded = status in ENDS[properties]
    assert exists(made) != discarded
    assert [is_there(one) for one in files_of(made)] == [not discarded] * 2
    assert ids(store) == []
    store.shutdown(JobStatus.FINISHED)  # the first one counts
    assert exists(made) != discarded


def test_the_end_deletes_what_is_newer_than_a_savepoint_too(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(3, cleaner)
    made = [completed(access, 1), completed(access, 2, savepoint=True), completed(access, 3)]
    for one, kind in zip(made, ("cp", "sp", "cp"), strict=True):
        store.add(one, KINDS[kind])
    store.shutdown(JobStatus.FINISHED)
    assert [exists(one) for one in made] == [False, True, False]


@pytest.mark.parametrize("properties", ENDS, ids=range(len(ENDS)))
def test_savepoints_are_not_deleted_when_they_are_superfluous_and_others_are(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner, properties: CheckpointProperties
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    made = completed(access, 1)
    store.add(made, properties)
    store.add(completed(access, 2))
    assert ids(store) == [2]
    assert exists(made) == properties.is_savepoint


def test_after_the_end_nothing_is_added(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    store.shutdown(JobStatus.SUSPENDED)
    late = completed(access, 1)
    with pytest.raises(InvalidRequestError, match="shut down"):
        store.add(late)
    assert_whole(late)


@pytest.mark.parametrize("checkpoint_id", [1, 2])
def test_one_that_is_not_newer_is_refused_and_the_old_ones_are_kept(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner, checkpoint_id: int
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    old = completed(access, 2)
    store.add(old)
    other = completed(access, checkpoint_id + 10)
    again = load_checkpoint(other.location)
    metadata = metadata_of(checkpoint_id=checkpoint_id)
    stale = CompletedCheckpoint(metadata, again.location, again.metadata_bytes)
    with pytest.raises(InvalidRequestError, match="not newer"):
        store.add(stale)
    assert store.checkpoints == (old,)
    assert_whole(old)


def test_one_whose_shared_file_is_known_with_another_length_is_refused_and_the_old_ones_are_kept(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    store = CompletedCheckpointStore(1, cleaner)
    old = completed(access, 1, shared=1)
    store.add(old)
    damaged = FileStateHandle(files_of(old)[1].uri, 99)
    with pytest.raises(InvalidRequestError, match="another length"):
        store.add(completed(access, 2, damaged))
    assert store.checkpoints == (old,)
    assert_whole(old)


def test_what_a_driver_finds_when_it_starts_is_kept_and_gives_way_to_newer_ones(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    found = [completed(access, number, shared=1) for number in (1, 2, 3)]
    store = CompletedCheckpointStore(2, cleaner, found)
    assert ids(store) == [1, 2, 3]
    store.add(completed(access, 4, files_of(found[0])[1]))
    assert ids(store) == [3, 4]
    assert [exists(one) for one in found] == [False, False, True]
    assert [is_there(files_of(one)[1]) for one in found] == [True, False, True]


class TestSharedFiles:
    def test_a_shared_file_goes_with_the_last_checkpoint_that_refers_to_it(
        self, access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner)
        first = completed(access, 1, shared=2)
        kept, dropped = files_of(first)[1:]
        store.add(first)
        second = completed(access, 2, kept)
        store.add(second)
        assert (is_there(kept), is_there(dropped)) == (True, False)
        assert_whole(second)
        store.add(completed(access, 3))
        assert not is_there(kept)

    def test_a_checkpoint_that_cannot_be_deleted_keeps_its_shared_files(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        """Else it would be found, and some of its files would be gone."""
        access = job_in(faults.directory)
        store = CompletedCheckpointStore(1, cleaner)
        first, second = completed(access, 1, shared=1), completed(access, 2)
        store.add(first)
        faults.before("delete", StorageUnavailableError("as planned"))
        store.add(second)
        assert exists(first)
        assert_whole(first)

    def test_nor_does_a_newer_one_take_them_away(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        """The deletion of the first fails; the file goes out of use with the second."""
        access = job_in(faults.directory)
        store = CompletedCheckpointStore(1, cleaner)
        first = completed(access, 1, shared=1)
        second = completed(access, 2, files_of(first)[1])
        third = completed(access, 3)
        store.add(first)
        faults.before("delete", StorageUnavailableError("as planned"))
        store.add(second)
        store.add(third)
        assert not exists(second)
        if exists(first):
            assert_whole(first)

    def test_a_process_that_dies_anywhere_leaves_no_checkpoint_with_missing_files(
        self, faults: Faults, cleaner: CheckpointsCleaner
    ) -> None:
        access = job_in(faults.directory)
        steps = 0
        for number in range(1, 7):
            first = completed(access, 10 * number + 1, shared=1)
            second = completed(access, 10 * number + 2)
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
                one.uri for one in file_system_for(metadata).list(first.location.external_pointer)
            }:
                assert_whole(first)
        assert steps


class _Death(BaseException):
    """No handler in the code under test may run."""


class TestRestoring:
    @pytest.fixture
    def savepoint(self, memory_directory: str) -> CompletedCheckpoint:
        """Of another job."""
        return completed(job_in(memory_directory, "old"), 5, savepoint=True, job_id="old")

    def test_what_was_claimed_goes_when_it_is_superfluous(
        self,
        access: CheckpointStorageAccess,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner)
        store.restore(savepoint, RestoreMode.CLAIM)
        assert store.latest is savepoint
        store.add(completed(access, 6))
        assert ids(store) == [6]
        assert not exists(savepoint)

    def test_what_was_claimed_stays_while_its_files_are_used(
        self,
        access: CheckpointStorageAccess,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner)
        store.restore(savepoint, RestoreMode.CLAIM)
        for number in (6, 7):
            made = completed(access, number, *files_of(savepoint))
            store.add(made)
            assert_whole(savepoint)
            assert_whole(made)
        store.add(completed(access, 8))
        assert not exists(savepoint)

    def test_what_was_not_claimed_is_never_deleted(
        self,
        access: CheckpointStorageAccess,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner)
        store.restore(savepoint, RestoreMode.NO_CLAIM)
        assert store.latest is None
        store.add(completed(access, 6, *files_of(savepoint)))
        for number in (7, 8):
            store.add(completed(access, number))
        store.shutdown(JobStatus.FINISHED)
        assert_whole(savepoint)

    def test_what_was_not_claimed_is_not_deleted_by_a_later_driver_either(
        self,
        access: CheckpointStorageAccess,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        """It finds a checkpoint that uses files of it, and knows of no claim."""
        found = completed(access, 6, *files_of(savepoint))
        store = CompletedCheckpointStore(1, cleaner, [found])
        for number in (7, 8):
            store.add(completed(access, number))
        store.shutdown(JobStatus.FINISHED)
        assert_whole(savepoint)

    def test_what_one_job_has_claimed_is_not_deleted_for_another_one(
        self,
        access: CheckpointStorageAccess,
        memory_directory: str,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        """Queries of one process share a cleaner, and their ids mean different checkpoints."""
        store = CompletedCheckpointStore(1, cleaner)
        store.restore(savepoint, RestoreMode.CLAIM)
        store.add(completed(access, 6, *files_of(savepoint)))
        other_access = job_in(memory_directory, "other")
        other = CompletedCheckpointStore(1, cleaner)
        for number in (8, 9):
            other.add(completed(other_access, number, job_id="other"))
        assert_whole(savepoint)

    def test_a_job_that_has_checkpoints_goes_on_from_them(
        self,
        access: CheckpointStorageAccess,
        cleaner: CheckpointsCleaner,
        savepoint: CompletedCheckpoint,
    ) -> None:
        store = CompletedCheckpointStore(1, cleaner, [completed(access, 1)])
        for mode in RestoreMode:
            with pytest.raises(InvalidRequestError, match="of its own"):
                store.restore(savepoint, mode)
        assert ids(store) == [1]


def test_ids_one_two_three_with_the_first_in_use_discard_the_second_only(
    access: CheckpointStorageAccess, memory_directory: str, cleaner: CheckpointsCleaner
) -> None:
    """Flink's vector of cleanSubsumedCheckpoints: (3, {1}) keeps 1 and discards 2."""
    first = completed(job_in(memory_directory, "old"), 1, job_id="old")
    store = CompletedCheckpointStore(1, cleaner)
    store.restore(first, RestoreMode.CLAIM)
    second = completed(access, 2, *files_of(first))
    third = completed(access, 3, *files_of(first))
    store.add(second)
    store.add(third)
    assert [exists(one) for one in (first, second, third)] == [True, False, True]


def test_ids_one_two_three_of_which_two_are_kept_discard_the_first_only(
    access: CheckpointStorageAccess, cleaner: CheckpointsCleaner
) -> None:
    """Flink's vector of cleanSubsumedCheckpoints: (2, {}) discards 1 and keeps 2 and 3."""
    store = CompletedCheckpointStore(2, cleaner)
    made: Sequence[CompletedCheckpoint] = [completed(access, number) for number in (1, 2, 3)]
    for one in made:
        store.add(one)
    assert [exists(one) for one in made] == [False, True, True]
