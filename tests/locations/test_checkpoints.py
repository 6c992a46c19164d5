"""Finding checkpoints: the latest, all of them, and those that were moved."""

import shutil
from collections import deque
from pathlib import Path

import pytest
from contracts.checkpointed_jobs import job_in, write_checkpoint
from contracts.values import read

from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import complete_checkpoint, latest_checkpoint, load_checkpoint
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    CheckpointStorageLocation,
    StreamStateHandle,
)
from holdfast.locations.coordination import load_checkpoints, load_latest_checkpoint
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import Faults, metadata_of


def state(location: CheckpointStorageLocation, scope: CheckpointedStateScope) -> StreamStateHandle:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


class TestLatest:
    def test_latest_is_the_checkpoint_with_the_highest_id(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        access = job_in(local_directory)
        for checkpoint_id in (9, 10, 2):
            write_checkpoint(access, checkpoint_id)
        for directory in (local_directory, tmp_path):
            latest = latest_checkpoint(directory)
            assert latest is not None
            assert latest.checkpoint_id == 10

    def test_nothing_has_none(self, local_directory: str) -> None:
        assert latest_checkpoint(local_directory) is None
        job_in(local_directory)
        assert latest_checkpoint(local_directory) is None
        assert latest_checkpoint(local_directory, "other") is None

    def test_one_of_several_jobs_must_be_named(self, local_directory: str) -> None:
        for number, job in enumerate(("a", "b")):
            write_checkpoint(job_in(local_directory, job), number, job_id=job)
        with pytest.raises(InvalidRequestError, match="a, b"):
            latest_checkpoint(local_directory)
        latest = latest_checkpoint(local_directory, "b")
        assert latest is not None
        assert latest.checkpoint_id == 1

    def test_damaged_checkpoint_is_not_skipped(self, local_directory: str, tmp_path: Path) -> None:
        access = job_in(local_directory)
        write_checkpoint(access, 1)
        write_checkpoint(access, 2)
        file = tmp_path / "job" / "chk-2" / "_metadata"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(CheckpointCorruptedError):
            latest_checkpoint(local_directory)


class TestRunningJob:
    """The job completes a checkpoint and deletes the one before, while another process reads."""

    @pytest.mark.parametrize("call", ["list", "open"])
    @pytest.mark.parametrize("nth", [1, 2, 3])
    def test_latest_is_found(self, faults: Faults, call: str, nth: int) -> None:
        job = job_in(faults.inner_directory)
        old = write_checkpoint(job, 1)

        def commit_next() -> None:
            write_checkpoint(job, 2)
            old.discard()

        looking = job_in(faults.directory)
        faults.calls.clear()
        faults.before(call, commit_next, nth=nth)
        latest = load_latest_checkpoint(looking)
        assert latest is not None
        assert latest.checkpoint_id in (1, 2)
        if latest.checkpoint_id == 1:  # loaded before it was deleted
            assert looking.completed_checkpoints().keys() <= {1, 2}

    @pytest.mark.parametrize("call", ["list", "open"])
    @pytest.mark.parametrize("nth", [1, 2, 3, 4])
    def test_checkpoints_existing_together_are_all_found(
        self, faults: Faults, call: str, nth: int
    ) -> None:
        job = job_in(faults.inner_directory)
        kept = [write_checkpoint(job, 1), write_checkpoint(job, 2)]

        def commit_next() -> None:
            kept.append(write_checkpoint(job, 3))
            kept[0].discard()

        looking = job_in(faults.directory)
        faults.calls.clear()
        faults.before(call, commit_next, nth=nth)
        ids = [checkpoint.checkpoint_id for checkpoint in load_checkpoints(looking)]
        assert ids in ([1, 2], [1, 2, 3], [2, 3])

    @pytest.mark.parametrize(("retained", "pace"), [(2, 12), (5, 5), (40, 4)])
    def test_search_ends_however_fast_the_job_commits(
        self, faults: Faults, retained: int, pace: int
    ) -> None:
        """It completes a checkpoint, and deletes another one, with every few of our requests."""
        job = job_in(faults.inner_directory)
        kept = deque(write_checkpoint(job, number) for number in range(retained))

        def requests() -> int:
            return faults.calls.count("list") + faults.calls.count("open")

        def commit_next() -> None:
            if requests() % pace == 0:
                kept.append(write_checkpoint(job, kept[-1].checkpoint_id + 1))
                kept.popleft().discard()

        looking = job_in(faults.directory)
        faults.calls.clear()
        for call in ("list", "open"):
            faults.before(call, commit_next, nth="every")
        newest = kept[-1].checkpoint_id
        assert max(looking.completed_checkpoints()) >= newest
        assert requests() < 2 * retained + 20
        newest = kept[-1].checkpoint_id
        latest = load_latest_checkpoint(looking)
        assert latest is not None
        assert latest.checkpoint_id >= newest
        newest = kept[-1].checkpoint_id
        faults.calls.clear()
        assert load_checkpoints(looking)[-1].checkpoint_id >= newest
        assert requests() < 6 * retained + 60

    def test_job_faster_than_a_listing_is_an_error(self, faults: Faults) -> None:
        job = job_in(faults.inner_directory)
        kept = deque([write_checkpoint(job, 1)])

        def commit_next() -> None:
            kept.append(write_checkpoint(job, kept[-1].checkpoint_id + 1))
            kept.popleft().discard()

        looking = job_in(faults.directory)
        faults.before("list", commit_next, nth="every")
        with pytest.raises(StorageUnavailableError, match="faster than they are listed"):
            looking.completed_checkpoints()

    def test_store_listing_missing_files_is_an_error(self, faults: Faults) -> None:
        write_checkpoint(job_in(faults.inner_directory), 1)
        looking = job_in(faults.directory)
        faults.before("open", CheckpointNotFoundError("as planned"), nth="every")
        with pytest.raises(CheckpointNotFoundError, match="faster than they are read"):
            load_latest_checkpoint(looking)
        with pytest.raises(CheckpointNotFoundError, match="faster than they are read"):
            load_checkpoints(looking)


class TestMoved:
    def test_savepoint_can_be_moved(self, local_directory: str, tmp_path: Path) -> None:
        access = job_in(f"{local_directory}/job")
        location = access.initialize_location_for_savepoint(7, f"{local_directory}/savepoints")
        handles = [state(location, scope) for scope in CheckpointedStateScope]
        done = complete_checkpoint(location, metadata_of(*handles, checkpoint_id=7))
        shutil.move(done.location.external_pointer.removeprefix("file://"), tmp_path / "moved")
        moved = load_checkpoint(resolve_pointer(tmp_path / "moved"))
        for stream in moved.metadata.streams():
            assert read(stream) == bytes(100_000)

    def test_checkpoint_with_shared_state_reports_missing_files(
        self, local_directory: str, tmp_path: Path
    ) -> None:
        location = job_in(local_directory).initialize_location_for_checkpoint(1)
        handles = [state(location, scope) for scope in CheckpointedStateScope]
        complete_checkpoint(location, metadata_of(*handles))
        shutil.move(tmp_path / "job" / "chk-1", tmp_path / "moved")
        shutil.rmtree(tmp_path / "job")
        moved = load_checkpoint(resolve_pointer(tmp_path / "moved"))
        exclusive, shared = moved.metadata.streams()
        assert read(exclusive) == bytes(100_000)
        with pytest.raises(CheckpointNotFoundError, match="/job/shared/"):
            read(shared)


class TestAfterPublishing:
    @pytest.mark.parametrize("error", [StorageUnavailableError, InvalidRequestError])
    def test_failed_ownership_check_leaves_the_outcome_unknown(
        self, faults: Faults, error: type[Exception]
    ) -> None:
        access = job_in(faults.directory)
        ownership = access.claim_job()
        location = access.initialize_location_for_checkpoint(1)
        faults.after("publish", lambda: faults.before("list", error("as planned"), nth="every"))
        with pytest.raises(OutcomeUnknownError):
            complete_checkpoint(location, metadata_of(), ownership)
        assert list(job_in(faults.inner_directory).completed_checkpoints()) == [1]
