"""Claims of checkpoints and savepoints: references, deletion, refusals."""

import pytest
from contracts.files import files_below, write
from jobs.coordinator import begin_checkpoint, coordinator, progress
from jobs.segments import (
    UID,
    add_segment,
    change_nothing,
    contents,
    latest_checkpoint,
    merge_segments,
    run_batch,
    run_subtasks,
    shared_files,
    shared_in,
)

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations import (
    CompletedCheckpoint,
    copy_checkpoint,
    load_checkpoint,
    sweep,
    verify_files,
)
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import CLAIMED, load_checkpoints, read_claim
from holdfast.locations.storages import JobDirectory, resolve_pointer
from holdfast.spark.query import CLEANER, CheckpointCoordinator
from holdfast.testing import Faults

pytestmark = pytest.mark.usefixtures("memory_clock")


def pointer_of(driver: CheckpointCoordinator) -> str:
    return latest_checkpoint(driver).location.external_pointer


def is_whole(checkpoint: CompletedCheckpoint) -> bool:
    return all(file.failure is None for file in verify_files(checkpoint.metadata.streams()))


def state_of(driver: CheckpointCoordinator) -> list[list[bytes]]:
    subtasks = latest_checkpoint(driver).metadata.operators[UID].subtasks
    return [sorted(segments.values()) for segments in contents([subtasks[0], subtasks[1]])]


def claim(
    directory: str, start: str, *, job_id: str = "job", num_retained: int = 1
) -> CheckpointCoordinator:
    return coordinator(
        directory, job_id=job_id, start=start, claims_start=True, num_retained=num_retained
    )


def end_job(directory: str) -> None:
    """End a job, as a claimant of its checkpoint does first."""
    JobDirectory(directory, single_writer=False).claim(ends=True)


@pytest.fixture
def former(memory_directory: str) -> CheckpointCoordinator:
    """The job `other`, which has run two batches and keeps both checkpoints."""
    driver = coordinator(memory_directory, job_id="other")
    run_batch(driver, 0, add_segment(b"old"))
    run_batch(driver, 1, add_segment(b"newer"))
    return driver


@pytest.fixture
def savepoint(memory_directory: str, former: CheckpointCoordinator) -> str:
    copy = copy_checkpoint(latest_checkpoint(former), f"{memory_directory}/savepoints")
    return copy.location.external_pointer


class TestSavepointClaim:
    def test_first_checkpoint_writes_only_changed_segments(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        assert len(shared_files(memory_directory)) == 2
        assert state_of(driver) == [
            [b"%s of %d" % (name, index) for name in (b"new", b"newer", b"old")] for index in (0, 1)
        ]
        claimed = [claim.pointer for claim in latest_checkpoint(driver).metadata.claimed]
        assert claimed == [savepoint]

    def test_claimed_savepoint_is_deleted_when_unreferenced(
        self, memory_directory: str, savepoint: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = files_below(savepoint)
        driver = claim(memory_directory, savepoint, num_retained=2)
        run_batch(driver, 0, add_segment(b"new"))
        run_batch(driver, 1, merge_segments)
        CLEANER.wait()
        assert before < files_below(savepoint)
        run_batch(driver, 2, change_nothing)
        CLEANER.wait()
        assert files_below(savepoint) == set()
        assert not list(file_system_for(savepoint).list(f"{memory_directory}/savepoints"))
        run_batch(driver, 3, change_nothing)
        assert latest_checkpoint(driver).metadata.claimed == ()
        assert "could not clean up" not in caplog.text

    def test_restarted_driver_deletes_the_savepoint(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_batch(claim(memory_directory, savepoint), 0, add_segment(b"new"))
        driver = coordinator(memory_directory, num_retained=1)
        assert begin_checkpoint(driver, 1).may_refer == {UID: True}
        run_batch(driver, 1, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_deleted_savepoint_is_not_claimed_by_the_next_driver(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_batch(claim(memory_directory, savepoint), 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()
        driver = coordinator(memory_directory, num_retained=1)
        run_batch(driver, 1, change_nothing)
        assert latest_checkpoint(driver).metadata.claimed == ()
        run_batch(
            claim(memory_directory, pointer_of(driver), job_id="third"), 0, add_segment(b"new")
        )

    def test_restarted_job_keeps_its_claim_without_a_checkpoint(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_subtasks(begin_checkpoint(claim(memory_directory, savepoint), 0), add_segment())
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed") as error:
            begin_checkpoint(claim(memory_directory, savepoint, job_id="third"), 0)
        assert error.value.kind == "claimed"
        assert not files_below(f"{memory_directory}/third")
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_restart_without_claiming_releases_an_unused_claim(
        self, memory_directory: str, savepoint: str
    ) -> None:
        begin_checkpoint(claim(memory_directory, savepoint), 0)
        assert read_claim(savepoint) is not None
        driver = coordinator(memory_directory, start=savepoint, num_retained=1)
        for batch_id in range(3):
            run_batch(driver, batch_id, merge_segments)
        CLEANER.wait()
        assert read_claim(savepoint) is None
        assert is_whole(latest_checkpoint(driver))
        run_batch(claim(memory_directory, savepoint, job_id="third"), 0, merge_segments)

    def test_copy_of_a_claiming_checkpoint_has_its_own_files(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        copy = copy_checkpoint(latest_checkpoint(driver), f"{memory_directory}/copies")
        assert copy.metadata.claimed == ()
        assert all(
            file.uri.startswith(copy.location.external_pointer)
            for file in verify_files(copy.metadata.streams())
        )

    def test_claiming_checkpoint_can_not_be_claimed(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        with pytest.raises(InvalidRequestError, match="belongs to another checkpoint or savepoint"):
            begin_checkpoint(claim(memory_directory, pointer_of(driver), job_id="third"), 0)

    def test_files_of_the_user_stay(self, memory_directory: str, savepoint: str) -> None:
        write(file_system_for(savepoint), f"{savepoint}/README", b"mine")
        run_batch(claim(memory_directory, savepoint), 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == {f"{savepoint}/README"}

    def test_unreadable_neighbour_prevents_the_deletion(
        self, memory_directory: str, savepoint: str
    ) -> None:
        before = files_below(savepoint)
        neighbour = f"{memory_directory}/savepoints/damaged"
        file_system_for(neighbour).prepare_directory(neighbour)
        write(file_system_for(neighbour), f"{neighbour}/_metadata", b"?")
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, merge_segments)
        CLEANER.wait()
        assert before < files_below(savepoint)
        file_system_for(neighbour).delete([f"{neighbour}/_metadata"])
        run_batch(driver, 1, change_nothing)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_deleting_the_record_revokes_the_claim(
        self, memory_directory: str, savepoint: str
    ) -> None:
        before = files_below(savepoint)
        driver = claim(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        file_system_for(savepoint).delete([f"{savepoint}/{CLAIMED}"])
        driver = coordinator(memory_directory, num_retained=1)
        pending = begin_checkpoint(driver, 1)
        assert pending.may_refer == {UID: False}
        driver.complete(pending, run_subtasks(pending, change_nothing), progress(1))
        CLEANER.wait()
        assert files_below(savepoint) == before
        assert shared_in(latest_checkpoint(driver).metadata) <= shared_files(memory_directory)

    def test_unreadable_record_is_an_error(self, memory_directory: str, savepoint: str) -> None:
        write(file_system_for(savepoint), f"{savepoint}/{CLAIMED}", b"{")
        with pytest.raises(CheckpointCorruptedError, match="record of the claim"):
            begin_checkpoint(claim(memory_directory, savepoint), 0)


class TestCheckpointClaim:
    def test_files_are_deleted_unless_older_checkpoints_need_them(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        older, newest = load_checkpoints(former.job.access)
        driver = claim(memory_directory, pointer_of(former))
        run_batch(driver, 0, add_segment(b"new"))
        assert len(shared_files(memory_directory)) == 2
        run_batch(driver, 1, merge_segments)
        CLEANER.wait()
        assert load_checkpoints(former.job.access) == [older]
        assert is_whole(older)
        assert shared_files(memory_directory, "other") == shared_in(older.metadata)
        assert not files_below(newest.location.external_pointer)

    def test_former_driver_can_not_commit(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        pending = begin_checkpoint(former, 2)
        begin_checkpoint(claim(memory_directory, pointer_of(former)), 0)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            former.complete(pending, run_subtasks(pending, merge_segments), progress(2))

    def test_late_commit_of_the_former_driver_is_revoked(self, faults: Faults) -> None:
        """It checked for other drivers before the claim, and refers to files that were deleted since."""
        driver = coordinator(faults.directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        pending = begin_checkpoint(driver, 1)
        late = run_subtasks(pending, change_nothing)

        def claim_now() -> None:
            faults.clear()
            run_batch(claim(faults.directory, f"{faults.directory}/other/chk-1"), 0, merge_segments)
            CLEANER.wait()

        faults.before("publish", claim_now)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        assert load_checkpoints(driver.job.access) == []
        assert files_below(f"{faults.directory}/other/shared") == set()

    def test_late_commit_stays_if_a_driver_resumes_from_it(self, faults: Faults) -> None:
        """The claimant ended the job, and was killed before it had claimed the checkpoint."""
        driver = coordinator(faults.directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        pending = begin_checkpoint(driver, 1)
        late = run_subtasks(pending, add_segment(b"late"))
        started = coordinator(faults.inner_directory, job_id="other")
        faults.calls.clear()
        faults.before("publish", lambda: end_job(f"{faults.inner_directory}/other"), nth=1)
        # It checks before the record is written.
        faults.before("publish", lambda: begin_checkpoint(started, 2), nth=2)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        faults.clear()
        run_batch(started, 2, change_nothing)
        CLEANER.wait()
        checkpoints = load_checkpoints(driver.job.access)
        assert [each.checkpoint_id for each in checkpoints] == [2, 3]
        claims = [read_claim(each.location.external_pointer) for each in checkpoints]
        assert claims == [None, None]

    def test_start_while_a_late_commit_is_revoked_is_refused(self, faults: Faults) -> None:
        driver = coordinator(faults.directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        pending = begin_checkpoint(driver, 1)
        late = run_subtasks(pending, add_segment(b"late"))
        refused: list[str] = []

        def start() -> None:
            faults.clear()
            with pytest.raises(CheckpointConflictError) as error:
                begin_checkpoint(coordinator(faults.directory, job_id="other"), 2)
            refused.append(str(error.value))

        faults.before("publish", lambda: end_job(f"{faults.inner_directory}/other"))
        faults.before("delete", start)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        assert "is being withdrawn" in refused[0]
        faults.clear()
        run_batch(coordinator(faults.directory, job_id="other"), 1, change_nothing)

    def test_claimed_job_can_not_be_restarted(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        begin_checkpoint(claim(memory_directory, pointer_of(former)), 0)
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed") as error:
            begin_checkpoint(coordinator(memory_directory, job_id="other"), 2)
        assert error.value.kind == "claimed"

    def test_sweep_of_the_former_job_keeps_claimed_files(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        driver = claim(memory_directory, pointer_of(former))
        run_batch(driver, 0, add_segment(b"new"))
        assert sweep(memory_directory, "other", grace_s=0).files == ()
        assert state_of(driver)

    def test_only_the_newest_checkpoint_can_be_claimed(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        older, _ = load_checkpoints(former.job.access)
        before = files_below(f"{memory_directory}/other")
        with pytest.raises(InvalidRequestError, match="not its job's newest, which is 2"):
            begin_checkpoint(claim(memory_directory, older.location.external_pointer), 0)
        assert files_below(f"{memory_directory}/other") == before

    def test_job_started_during_the_claim_keeps_its_checkpoint(self, faults: Faults) -> None:
        """The former job's driver checks before the record is written, and the claimant after."""
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        started: list[CheckpointCoordinator] = []

        def start() -> None:
            driver = coordinator(faults.inner_directory, job_id="other")
            begin_checkpoint(driver, 1)
            started.append(driver)

        pointer = f"{faults.directory}/other/chk-1"
        driver = claim(faults.directory, pointer)
        faults.calls.clear()
        faults.before(
            "publish", start, nth=4
        )  # after the claims to both jobs, and the end of the former
        with pytest.raises(CheckpointConflictError, match="started while it was being claimed"):
            begin_checkpoint(driver, 0)
        faults.clear()
        assert read_claim(pointer) is None
        run_batch(started[0], 1, change_nothing)

    def test_start_during_a_claim_is_refused(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        driver = coordinator(faults.directory, job_id="other")

        def claim_now() -> None:
            faults.clear()
            begin_checkpoint(claim(faults.directory, pointer), 0)

        faults.before("publish", claim_now)  # of the claim to its own job
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed"):
            begin_checkpoint(driver, 1)

    def test_one_of_two_concurrent_claimants_is_refused(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        checkpoint = load_checkpoint(resolve_pointer(pointer))
        rehearsed, copy = (
            copy_checkpoint(checkpoint, f"{faults.directory}/savepoints").location.external_pointer
            for _ in range(2)
        )
        driver = claim(faults.directory, rehearsed, job_id="rehearsal")
        faults.calls.clear()
        begin_checkpoint(driver, 0)
        last = faults.calls.count("publish")
        driver = claim(faults.directory, copy)
        faults.calls.clear()

        def claim_now() -> None:
            faults.clear()
            begin_checkpoint(claim(faults.directory, copy, job_id="third"), 0)

        faults.before("publish", claim_now, nth=last)  # of the record
        with pytest.raises(CheckpointConflictError, match=r"job 'third' in .* has claimed"):
            begin_checkpoint(driver, 0)
        holder = read_claim(copy)
        assert holder is not None
        assert holder.job_id == "third"

    def test_claim_of_a_deleted_checkpoint_is_an_error(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        driver = claim(faults.directory, pointer)
        metadata = f"{faults.inner_directory}/other/chk-1/_metadata"
        faults.calls.clear()
        faults.before("publish", lambda: file_system_for(metadata).delete([metadata]), nth=3)
        with pytest.raises(CheckpointNotFoundError):
            begin_checkpoint(driver, 0)
        faults.clear()
        assert read_claim(pointer) is None
