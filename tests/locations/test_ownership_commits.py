"""The owner of a job: commits by drivers that were thought dead."""

import os
import uuid
from typing import cast

import pytest
from contracts.checkpointed_jobs import job_in
from contracts.claims import (
    begin_checkpoint,
    commit,
    discard,
    files_in_checkpoint,
    overwrite_claim,
    owns,
    run,
)
from contracts.errors import of_kind

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint
from holdfast.locations.adapters import METADATA_FILE, CheckpointStorageAccess, LocalFileSystem
from holdfast.locations.coordination import load_latest_checkpoint, revoke_late_checkpoint
from holdfast.testing import Faults, metadata_of


class TestCommits:
    def test_owner_completes_a_checkpoint(self, memory_directory: str) -> None:
        access = job_in(memory_directory)
        run(access, access.claim_job(), 1)
        latest = load_latest_checkpoint(access)
        assert latest is not None
        assert latest.checkpoint_id == 1

    def test_commit_looks_for_the_owner_once_after_publishing(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        owner = access.claim_job()
        location = begin_checkpoint(access, 1)
        faults.calls.clear()
        complete_checkpoint(location, metadata_of(checkpoint_id=1), owner)
        assert faults.calls == ["publish", "list"]

    def test_late_commit_of_a_superseded_id_is_revoked(self, faults: Faults) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie, location = access.claim_job(), begin_checkpoint(access, 1)

        def take_over() -> None:
            owner = other.claim_job()
            run(other, owner, 1, 2, 3)
            discard(other, 1)
            begin_checkpoint(other, 1)  # as on a store without directories

        faults.before("publish", take_over)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(location, zombie, 1, "the zombie's")
        assert sorted(other.completed_checkpoints()) == [2, 3]
        assert METADATA_FILE not in files_in_checkpoint(faults.inner_directory, 1)

    def test_late_commit_of_a_cleaned_up_id_is_revoked(self, faults: Faults) -> None:
        """The owner found another one's checkpoint of that id, so no driver knows this one."""
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie, location = access.claim_job(), begin_checkpoint(access, 1)

        def take_over() -> None:
            run(other, other.claim_job(), 1)
            run(other, other.claim_job(), 2, 3)
            discard(other, 1)
            begin_checkpoint(other, 1)

        faults.before("publish", take_over)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(location, zombie, 1, "the zombie's")
        assert sorted(other.completed_checkpoints()) == [2, 3]

    @pytest.mark.parametrize("checkpoints", [(), (1,), (1, 2)])
    def test_late_commit_the_job_resumes_from_stays(
        self, faults: Faults, checkpoints: tuple[int, ...]
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie = access.claim_job()
        run(access, zombie, *checkpoints)
        checkpoint_id = len(checkpoints) + 1
        faults.before("publish", other.claim_job)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begin_checkpoint(access, checkpoint_id), zombie, checkpoint_id)
        assert sorted(other.completed_checkpoints()) == [*checkpoints, checkpoint_id]

    def test_commit_found_by_a_newer_driver_stays(self, faults: Faults) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie = access.claim_job()

        def take_over() -> None:
            owner = other.claim_job()  # finds checkpoint 1
            run(other, owner, 2, 3)

        faults.after("publish", take_over)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begin_checkpoint(access, 1), zombie, 1)
        assert sorted(other.completed_checkpoints()) == [1, 2, 3]

    def test_store_failing_after_the_commit_leaves_it_unknown(self, faults: Faults) -> None:
        access = job_in(faults.directory)
        owner = access.claim_job()
        location = begin_checkpoint(access, 1)
        faults.after(
            "publish", lambda: faults.before("list", StorageUnavailableError("as planned"))
        )
        with pytest.raises(OutcomeUnknownError) as caught:
            commit(location, owner, 1)
        assert caught.value.location == f"{faults.directory}/job/chk-1"
        assert sorted(access.completed_checkpoints()) == [1]
        location.dispose_on_failure()
        assert len(files_in_checkpoint(faults.inner_directory, 1)) == 2

    def test_permission_lost_after_the_commit_leaves_it_unknown(self, faults: Faults) -> None:
        """The store reports that nothing was done, and the checkpoint exists."""
        access = job_in(faults.directory)
        owner = access.claim_job()
        faults.after("publish", lambda: faults.before("list", InvalidRequestError("as planned")))
        with pytest.raises((OutcomeUnknownError, CheckpointConflictError)):
            commit(begin_checkpoint(access, 1), owner, 1)
        assert sorted(access.completed_checkpoints()) == [1]

    @pytest.mark.parametrize("call", ["list", "open", "delete", "delete_tree"])
    @pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
    def test_fenced_driver_never_reports_a_clean_failure(
        self, faults: Faults, call: str, *, lands: bool
    ) -> None:
        """StorageUnavailableError would mean that it never existed."""
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie = access.claim_job()
        location = begin_checkpoint(access, 1)

        def take_over() -> None:
            run(other, other.claim_job(), 1, 2)
            discard(other, 1)
            begin_checkpoint(other, 1)
            faults.calls.clear()  # the first one checks the owner, the others list checkpoints
            plan = faults.after if lands else faults.before
            plan(call, StorageUnavailableError("as planned"), nth=2 if call == "list" else 1)

        faults.before("publish", take_over)
        with pytest.raises((CheckpointConflictError, OutcomeUnknownError)):
            commit(location, zombie, 1)

    def test_driver_is_fenced_although_claims_are_deleted_concurrently(
        self, faults: Faults
    ) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie = access.claim_job()

        def take_over() -> None:
            other.claim_job()
            faults.before("open", other.claim_job)  # the claim is deleted just before it is read

        faults.before("publish", take_over)
        with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
            commit(begin_checkpoint(access, 1), zombie, 1)

    def test_driver_is_fenced_by_a_damaged_claim(self, faults: Faults) -> None:
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        zombie = access.claim_job()

        def take_over() -> None:
            other.claim_job()
            overwrite_claim(faults.inner_directory, 2, b"{")

        faults.before("publish", take_over)
        with pytest.raises(CheckpointError) as caught:
            commit(begin_checkpoint(access, 1), zombie, 1)
        assert isinstance(
            caught.value, CheckpointConflictError | CheckpointCorruptedError | OutcomeUnknownError
        )
        assert sorted(other.completed_checkpoints()) == [1]  # not known to be superseded: it stays

    def test_failing_driver_leaves_the_directory_of_another_one(self, local_directory: str) -> None:
        """Tasks make no directories: without this one all their writes fail."""
        access = job_in(local_directory)
        access.claim_job()
        failed = begin_checkpoint(access, 1)
        owner = access.claim_job()
        pending = begin_checkpoint(access, 1)
        failed.dispose_on_failure()
        commit(pending, owner, 1)

    def test_latest_is_found_while_the_job_runs(self, faults: Faults) -> None:
        """A newer one was completed after the listing, and the listed one deleted."""
        access, other = job_in(faults.directory), job_in(faults.inner_directory)
        owner = other.claim_job()
        run(other, owner, 1)

        def take_over() -> None:
            run(other, owner, 2)
            discard(other, 1)

        faults.before("open", take_over)
        try:
            latest = load_latest_checkpoint(access)
        except CheckpointNotFoundError:
            pytest.fail("the job had a completed checkpoint at every moment")
        assert latest is not None
        assert latest.checkpoint_id == 2


class _Overwriting(LocalFileSystem):
    """A store without exclusive creation."""

    def publish(self, uri: str, data: bytes, /) -> None:
        path = "/" + uri.partition("://")[2].lstrip("/")
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)


def test_single_writer_claims_and_commits_without_exclusive_creation(
    local_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.locations import FileSystemCheckpointStorage
    from holdfast.locations.adapters import register_file_system, unregister_file_system

    register_file_system("overwriting", _Overwriting)
    try:
        directory = local_directory.replace("file:", "overwriting:")
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = cast("CheckpointStorageAccess", storage.create_checkpoint_storage("job"))
        access.initialize_base_locations_for_checkpoint()
        first = access.claim_job()
        run(access, first, 1, 2)
        second = access.claim_job()
        assert (first.epoch, second.epoch) == (1, 2)
        assert not owns(first)
        with pytest.raises(CheckpointConflictError, check=of_kind("exists")):
            commit(begin_checkpoint(access, 2), second, 2, token="another")
        run(access, second, 3)
    finally:
        unregister_file_system("overwriting")


def test_late_checkpoint_of_a_promised_single_writer_is_revoked() -> None:
    directory = f"fsspec+memory:///{uuid.uuid4().hex}"
    storage = FileSystemCheckpointStorage(directory, inline_threshold=0, single_writer=True)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    late = complete_checkpoint(
        access.initialize_location_for_checkpoint(1), metadata_of(checkpoint_id=1)
    )
    revoke_late_checkpoint(late.metadata, late.location, lambda: True)
    assert load_latest_checkpoint(access) is None
