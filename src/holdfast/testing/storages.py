"""Requirements of every checkpoint storage."""

import pickle

import pytest

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.coordination import (
    complete_checkpoint,
    load_latest_checkpoint,
)
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CompletedCheckpoint,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.testing.checkpoint_streams import (
    CheckpointStreamSuite,
    read,
    store,
    stream_of,
)
from holdfast.testing.exclusive_file_systems import race
from holdfast.testing.values import metadata_of


def latest_checkpoint(access: CheckpointStorageAccess) -> CompletedCheckpoint:
    latest = load_latest_checkpoint(access)
    assert latest is not None
    return latest


class CheckpointStorageContract(CheckpointStreamSuite):
    """Requirements of every `CheckpointStorage`.

    Subclass it in a test file, under a name that pytest collects, and provide the fixture
    `storage` and the accessor `files`.
    """

    # The life of a checkpoint

    def test_a_checkpoint_exists_once_its_metadata_is_finalized(
        self, access: CheckpointStorageAccess
    ) -> None:
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(7)
        factory = access.resolve_checkpoint_storage_location(7, location.location_reference)
        metadata = metadata_of(store(factory, bytes(100_000)), checkpoint_id=7)
        assert access.completed_checkpoints() == {}
        assert load_latest_checkpoint(access) is None
        done = complete_checkpoint(location, metadata)
        assert list(access.completed_checkpoints()) == [7]
        latest = latest_checkpoint(access)
        assert latest.metadata == done.metadata == metadata
        assert (
            latest.metadata_bytes == done.metadata_bytes == len(read(done.location.metadata_handle))
        )
        assert done.location.external_pointer == location.external_pointer
        latest.discard()
        assert access.completed_checkpoints() == {}
        latest.discard()

    def test_completed_checkpoints_are_in_the_order_of_their_ids(
        self, access: CheckpointStorageAccess
    ) -> None:
        for checkpoint_id in (10, 9, 100, 0):
            location = access.initialize_location_for_checkpoint(checkpoint_id)
            complete_checkpoint(location, metadata_of(checkpoint_id=checkpoint_id))
        assert list(access.completed_checkpoints()) == [0, 9, 10, 100]
        assert latest_checkpoint(access).metadata.checkpoint_id == 100

    def test_second_completion_of_checkpoint_is_a_conflict(
        self, access: CheckpointStorageAccess
    ) -> None:
        first, second = (access.initialize_location_for_checkpoint(1) for _ in range(2))
        complete_checkpoint(first, metadata_of(commit_token="first"))
        with pytest.raises(CheckpointConflictError):
            complete_checkpoint(second, metadata_of(commit_token="second"))
        second.dispose_on_failure()
        assert latest_checkpoint(access).metadata.commit_token == "first"

    def test_one_of_eight_racing_drivers_completes(self, access: CheckpointStorageAccess) -> None:
        def attempt(racer: int) -> None:
            location = access.initialize_location_for_checkpoint(1)
            try:
                complete_checkpoint(location, metadata_of(commit_token=str(racer)))
            except CheckpointConflictError:
                location.dispose_on_failure()
                raise

        won = race(attempt)
        assert won.count(True) == 1
        assert latest_checkpoint(access).metadata.commit_token == str(won.index(True))

    @pytest.mark.parametrize("scope", CheckpointedStateScope)
    def test_failed_attempt_keeps_files_of_other_attempts(
        self,
        storage: CheckpointStorage,
        access: CheckpointStorageAccess,
        scope: CheckpointedStateScope,
    ) -> None:
        failed, other = (access.initialize_location_for_checkpoint(1) for _ in range(2))
        handles = []
        for location in (failed, other):
            factory = access.resolve_checkpoint_storage_location(1, location.location_reference)
            handles.append(store(factory, bytes(100_000), scope))
        done = complete_checkpoint(other, metadata_of(handles[1]))
        before = self.files(storage)
        failed.dispose_on_failure()
        assert before - self.files(storage) == {
            handle.uri for handle in handles[:1] if isinstance(handle, FileStateHandle)
        }
        assert load_checkpoint(done.location).metadata == done.metadata
        assert read(handles[1]) == bytes(100_000)

    def test_a_failed_attempt_takes_unfinished_streams_with_it(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation
    ) -> None:
        stream = stream_of(location, "state")
        stream.write(bytes(100_000))
        for _ in range(2):
            location.dispose_on_failure()
        assert self.files(storage) == set()
        stream.close()

    def test_two_jobs_in_one_storage_do_not_meet(self, storage: CheckpointStorage) -> None:
        accesses = {job: storage.create_checkpoint_storage(job) for job in ("a", "b")}
        for job, access in accesses.items():
            access.initialize_base_locations_for_checkpoint()
            location = access.initialize_location_for_checkpoint(1)
            complete_checkpoint(location, metadata_of(commit_token=job, job_id=job))
        for job, access in accesses.items():
            assert latest_checkpoint(access).metadata.commit_token == job
        accesses["a"].completed_checkpoints()[1].dispose_storage_location()
        assert accesses["a"].completed_checkpoints() == {}
        assert list(accesses["b"].completed_checkpoints()) == [1]

    def test_a_new_storage_has_no_checkpoints_and_no_files(
        self, storage: CheckpointStorage
    ) -> None:
        assert storage.create_checkpoint_storage("job").completed_checkpoints() == {}
        assert self.files(storage) == set()

    def test_a_negative_id_is_refused(self, access: CheckpointStorageAccess) -> None:
        with pytest.raises(InvalidRequestError):
            access.initialize_location_for_checkpoint(-1)
        with pytest.raises(InvalidRequestError):
            access.resolve_checkpoint_storage_location(-1, CheckpointStorageLocationReference())

    @pytest.mark.parametrize("encoded", [b"x", b"\x05\x5f\x3f\x18", b"\x05\x5f\x3f\x18\xff"])
    def test_a_garbled_reference_is_refused(
        self, access: CheckpointStorageAccess, encoded: bytes
    ) -> None:
        with pytest.raises(InvalidRequestError):
            access.resolve_checkpoint_storage_location(
                1, CheckpointStorageLocationReference(encoded)
            )

    @pytest.mark.usefixtures("location")
    def test_tasks_find_the_default_location(self, access: CheckpointStorageAccess) -> None:
        factory = access.resolve_checkpoint_storage_location(
            1, CheckpointStorageLocationReference()
        )
        assert read(store(factory, b"1")) == b"1"

    def test_pointer_resolves_once_the_checkpoint_is_completed(
        self, location: CheckpointStorageLocation
    ) -> None:
        pointer = location.external_pointer
        with pytest.raises(CheckpointNotFoundError):
            resolve_pointer(pointer)
        done = complete_checkpoint(location, metadata_of())
        assert load_checkpoint(resolve_pointer(pointer)).metadata == done.metadata

    def test_settings_and_handles_pickle(
        self, storage: CheckpointStorage, access: CheckpointStorageAccess
    ) -> None:
        location = access.initialize_location_for_checkpoint(1)
        factory = access.resolve_checkpoint_storage_location(1, location.location_reference)
        handle = store(factory, bytes(100_000))
        for value in (storage, location.location_reference, factory, handle):
            assert pickle.loads(pickle.dumps(value)) == value

    def test_a_completed_location_pickles(self, location: CheckpointStorageLocation) -> None:
        done = complete_checkpoint(location, metadata_of())
        copy = pickle.loads(pickle.dumps(done.location))
        assert load_checkpoint(copy).metadata == done.metadata

    # Owners of a job

    def test_last_claim_of_a_job_wins(self, access: CheckpointStorageAccess) -> None:
        first = access.claim_job()
        first.check()
        second = access.claim_job()
        assert second.epoch > first.epoch
        second.check()
        with pytest.raises(CheckpointConflictError):
            first.check()

    def test_one_of_two_owners_continues_from_a_late_checkpoint(
        self, access: CheckpointStorageAccess, location: CheckpointStorageLocation
    ) -> None:
        replaced = access.claim_job()
        owner = access.claim_job()
        with pytest.raises(CheckpointConflictError):
            complete_checkpoint(location, metadata_of(commit_token="late"), replaced)
        again = access.initialize_location_for_checkpoint(1)
        with pytest.raises(CheckpointConflictError):
            complete_checkpoint(again, metadata_of(commit_token="owner"), owner)
        (completed,) = access.claim_job().completed.values()
        assert completed.metadata.commit_token == "late"

    def test_owner_is_superseded_below_newest_checkpoint(
        self, access: CheckpointStorageAccess
    ) -> None:
        owner = access.claim_job()
        location = access.initialize_location_for_checkpoint(5)
        metadata = metadata_of(checkpoint_id=5, commit_token="token")
        complete_checkpoint(location, metadata, owner)
        assert owner.is_superseded(4, "token")
        assert not owner.is_superseded(5, "token")
        assert not owner.is_superseded(6, "token")

    # Savepoints and files owned by tasks

    def test_a_savepoint_needs_a_place(self, access: CheckpointStorageAccess) -> None:
        with pytest.raises(InvalidRequestError, match="savepoint"):
            access.initialize_location_for_savepoint(1)

    @pytest.mark.parametrize("size", [100, 100_000])
    def test_savepoint_resolves_but_is_not_a_job_checkpoint(
        self, access: CheckpointStorageAccess, target: str, size: int
    ) -> None:
        location = access.initialize_location_for_savepoint(3, target)
        factory = access.resolve_checkpoint_storage_location(3, location.location_reference)
        handles = [store(factory, bytes(size), scope) for scope in CheckpointedStateScope]
        done = complete_checkpoint(location, metadata_of(*handles, checkpoint_id=3))
        assert done.location.external_pointer.startswith(f"{target}/savepoint-")
        for handle in handles:
            if isinstance(handle, FileStateHandle):
                assert handle.uri.startswith(done.location.external_pointer)
        place = resolve_pointer(done.location.external_pointer)
        for loaded in load_checkpoint(place).metadata.streams():
            assert read(loaded) == bytes(size)
        assert access.completed_checkpoints() == {}
        done.discard()
        with pytest.raises(CheckpointNotFoundError):
            resolve_pointer(done.location.external_pointer)

    def test_two_savepoints_never_share_a_directory(
        self, access: CheckpointStorageAccess, target: str
    ) -> None:
        pointers = {
            access.initialize_location_for_savepoint(1, target).external_pointer for _ in range(5)
        }
        assert len(pointers) == 5

    def test_a_failed_savepoint_leaves_nothing(
        self, access: CheckpointStorageAccess, target: str
    ) -> None:
        location = access.initialize_location_for_savepoint(1, target)
        store(location, bytes(100_000))
        location.dispose_on_failure()
        assert list(file_system_for(target).list(target)) == []

    def test_completed_savepoint_survives_disposal(
        self, access: CheckpointStorageAccess, target: str
    ) -> None:
        location = access.initialize_location_for_savepoint(1, target)
        done = complete_checkpoint(location, metadata_of())
        location.dispose_on_failure()
        place = resolve_pointer(done.location.external_pointer)
        assert load_checkpoint(place).metadata == done.metadata
