"""A job that claims what it begins with: what it refers to, what is deleted and when, who is refused."""

import pytest
from contracts.files import files_below, write
from contracts.sweeps import clock
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
from holdfast.locations import copy_checkpoint, load_checkpoint, sweep, verify_files
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import CLAIMED, load_checkpoints, read_claim
from holdfast.locations.storages import JobDirectory, resolve_pointer
from holdfast.spark.query import CLEANER, CheckpointCoordinator
from holdfast.testing import Faults

__all__ = ["clock"]  # the store's, which tells files of one moment from those of the next


def pointer_of(driver: CheckpointCoordinator) -> str:
    return latest_checkpoint(driver).location.external_pointer


def state_of(driver: CheckpointCoordinator) -> list[list[bytes]]:
    subtasks = latest_checkpoint(driver).metadata.operators[UID].subtasks
    return [sorted(segments.values()) for segments in contents([subtasks[0], subtasks[1]])]


def claiming(
    directory: str, start: str, *, job_id: str = "job", num_retained: int = 1
) -> CheckpointCoordinator:
    return coordinator(
        directory, job_id=job_id, start=start, claims_start=True, num_retained=num_retained
    )


def end_of_job(directory: str) -> None:
    """What a job that claims a checkpoint of this one does first."""
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


class TestOfASavepoint:
    def test_the_first_checkpoint_writes_only_what_changed(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        assert len(shared_files(memory_directory)) == 2
        assert state_of(driver) == [
            [b"%s of %d" % (what, index) for what in (b"new", b"newer", b"old")] for index in (0, 1)
        ]
        claimed = [claim.pointer for claim in latest_checkpoint(driver).metadata.claimed]
        assert claimed == [savepoint]

    def test_it_stays_whole_as_long_as_a_kept_checkpoint_needs_it_and_goes_then(
        self, memory_directory: str, savepoint: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = files_below(savepoint)
        driver = claiming(memory_directory, savepoint, num_retained=2)
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

    def test_a_driver_that_is_started_later_deletes_it(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_batch(claiming(memory_directory, savepoint), 0, add_segment(b"new"))
        driver = coordinator(memory_directory, num_retained=1)
        assert begin_checkpoint(driver, 1).may_refer == {UID: True}
        run_batch(driver, 1, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_what_is_deleted_is_no_claim_of_the_next_driver_if_each_does_a_single_batch(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_batch(claiming(memory_directory, savepoint), 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()
        driver = coordinator(memory_directory, num_retained=1)
        run_batch(driver, 1, change_nothing)
        assert latest_checkpoint(driver).metadata.claimed == ()
        run_batch(
            claiming(memory_directory, pointer_of(driver), job_id="third"), 0, add_segment(b"new")
        )

    def test_the_same_job_goes_on_with_its_claim_after_a_crash_before_its_first_checkpoint(
        self, memory_directory: str, savepoint: str
    ) -> None:
        run_subtasks(begin_checkpoint(claiming(memory_directory, savepoint), 0), add_segment())
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed") as error:
            begin_checkpoint(claiming(memory_directory, savepoint, job_id="third"), 0)
        assert error.value.kind == "claimed"
        assert not files_below(f"{memory_directory}/third")
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_a_job_that_claims_no_more_lets_go_of_it_unless_it_has_a_checkpoint(
        self, memory_directory: str, savepoint: str
    ) -> None:
        begin_checkpoint(claiming(memory_directory, savepoint), 0)
        assert read_claim(savepoint) is not None
        driver = coordinator(memory_directory, start=savepoint, num_retained=1)
        for batch_id in range(3):
            run_batch(driver, batch_id, merge_segments)
        CLEANER.wait()
        assert read_claim(savepoint) is None
        assert all(
            file.failure is None
            for file in verify_files(latest_checkpoint(driver).metadata.streams())
        )
        run_batch(claiming(memory_directory, savepoint, job_id="third"), 0, merge_segments)

    def test_a_copy_of_a_checkpoint_that_refers_to_it_holds_everything_itself(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        copy = copy_checkpoint(latest_checkpoint(driver), f"{memory_directory}/copies")
        assert copy.metadata.claimed == ()
        assert all(
            file.uri.startswith(copy.location.external_pointer)
            for file in verify_files(copy.metadata.streams())
        )

    def test_a_checkpoint_that_refers_to_what_is_claimed_can_not_be_claimed_itself(
        self, memory_directory: str, savepoint: str
    ) -> None:
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        with pytest.raises(InvalidRequestError, match="belongs to another checkpoint or savepoint"):
            begin_checkpoint(claiming(memory_directory, pointer_of(driver), job_id="third"), 0)

    def test_what_the_user_has_put_beside_its_files_stays(
        self, memory_directory: str, savepoint: str
    ) -> None:
        write(file_system_for(savepoint), f"{savepoint}/README", b"mine")
        run_batch(claiming(memory_directory, savepoint), 0, merge_segments)
        CLEANER.wait()
        assert files_below(savepoint) == {f"{savepoint}/README"}

    def test_one_that_can_not_be_read_in_its_place_stops_the_deletion(
        self, memory_directory: str, savepoint: str
    ) -> None:
        before = files_below(savepoint)
        beside = f"{memory_directory}/savepoints/damaged"
        file_system_for(beside).prepare_directory(beside)
        write(file_system_for(beside), f"{beside}/_metadata", b"?")
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, merge_segments)
        CLEANER.wait()
        assert before < files_below(savepoint)
        file_system_for(beside).delete([f"{beside}/_metadata"])
        run_batch(driver, 1, change_nothing)
        CLEANER.wait()
        assert files_below(savepoint) == set()

    def test_whoever_has_deleted_the_record_has_taken_it_back(
        self, memory_directory: str, savepoint: str
    ) -> None:
        before = files_below(savepoint)
        driver = claiming(memory_directory, savepoint)
        run_batch(driver, 0, add_segment(b"new"))
        file_system_for(savepoint).delete([f"{savepoint}/{CLAIMED}"])
        driver = coordinator(memory_directory, num_retained=1)
        pending = begin_checkpoint(driver, 1)
        assert pending.may_refer == {UID: False}
        driver.complete(pending, run_subtasks(pending, change_nothing), progress(1))
        CLEANER.wait()
        assert files_below(savepoint) == before
        assert shared_in(latest_checkpoint(driver).metadata) <= shared_files(memory_directory)

    def test_a_record_that_can_not_be_read_is_an_error(
        self, memory_directory: str, savepoint: str
    ) -> None:
        write(file_system_for(savepoint), f"{savepoint}/{CLAIMED}", b"{")
        with pytest.raises(CheckpointCorruptedError, match="record of the claim"):
            begin_checkpoint(claiming(memory_directory, savepoint), 0)


class TestOfACheckpointOfAnotherJob:
    def test_its_files_go_but_for_those_that_older_checkpoints_of_that_job_need(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        older, newest = load_checkpoints(former.job.access)
        driver = claiming(memory_directory, pointer_of(former))
        run_batch(driver, 0, add_segment(b"new"))
        assert len(shared_files(memory_directory)) == 2
        run_batch(driver, 1, merge_segments)
        CLEANER.wait()
        assert load_checkpoints(former.job.access) == [older]
        assert all(file.failure is None for file in verify_files(older.metadata.streams()))
        assert shared_files(memory_directory, "other") == shared_in(older.metadata)
        assert not files_below(newest.location.external_pointer)

    def test_its_driver_commits_nothing_more(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        pending = begin_checkpoint(former, 2)
        begin_checkpoint(claiming(memory_directory, pointer_of(former)), 0)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            former.complete(pending, run_subtasks(pending, merge_segments), progress(2))

    def test_what_its_driver_commits_all_the_same_is_taken_back(self, faults: Faults) -> None:
        """It had looked for other drivers just before, and refers to files that are deleted meanwhile."""
        driver = coordinator(faults.directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        pending = begin_checkpoint(driver, 1)
        late = run_subtasks(pending, change_nothing)

        def claims() -> None:
            faults.clear()
            run_batch(
                claiming(faults.directory, f"{faults.directory}/other/chk-1"), 0, merge_segments
            )
            CLEANER.wait()

        faults.before("publish", claims)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        assert load_checkpoints(driver.job.access) == []
        assert files_below(f"{faults.directory}/other/shared") == set()

    def test_what_came_late_stays_if_a_driver_goes_on_from_it(self, faults: Faults) -> None:
        """Who has ended the job was killed before it had claimed the checkpoint."""
        driver = coordinator(faults.directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        pending = begin_checkpoint(driver, 1)
        late = run_subtasks(pending, add_segment(b"late"))
        started = coordinator(faults.inner_directory, job_id="other")
        faults.calls.clear()
        faults.before("publish", lambda: end_of_job(f"{faults.inner_directory}/other"), nth=1)
        # It looks before the record is there.
        faults.before("publish", lambda: begin_checkpoint(started, 2), nth=2)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        faults.clear()
        run_batch(started, 2, change_nothing)
        CLEANER.wait()
        assert [checkpoint.checkpoint_id for checkpoint in load_checkpoints(driver.job.access)] == [
            2,
            3,
        ]
        assert [read_claim(f"{faults.directory}/other/chk-{number}") for number in (2, 3)] == [
            None,
            None,
        ]

    def test_a_driver_that_starts_while_a_late_checkpoint_is_taken_back_is_refused(
        self, faults: Faults
    ) -> None:
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

        faults.before("publish", lambda: end_of_job(f"{faults.inner_directory}/other"))
        faults.before("delete", start)
        with pytest.raises(CheckpointConflictError, match="taken over"):
            driver.complete(pending, late, progress(1))
        assert "is taking this checkpoint back" in refused[0]
        faults.clear()
        run_batch(coordinator(faults.directory, job_id="other"), 1, change_nothing)

    def test_its_job_is_not_started_again(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        begin_checkpoint(claiming(memory_directory, pointer_of(former)), 0)
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed") as error:
            begin_checkpoint(coordinator(memory_directory, job_id="other"), 2)
        assert error.value.kind == "claimed"

    def test_its_sweep_deletes_nothing_that_is_claimed(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        driver = claiming(memory_directory, pointer_of(former))
        run_batch(driver, 0, add_segment(b"new"))
        assert sweep(memory_directory, "other", grace_s=0).files == ()
        assert state_of(driver)

    def test_only_the_newest_can_be_claimed(
        self, memory_directory: str, former: CheckpointCoordinator
    ) -> None:
        older, _ = load_checkpoints(former.job.access)
        before = files_below(f"{memory_directory}/other")
        with pytest.raises(InvalidRequestError, match="not its job's newest, which is 2"):
            begin_checkpoint(claiming(memory_directory, older.location.external_pointer), 0)
        assert files_below(f"{memory_directory}/other") == before

    def test_a_job_that_is_started_while_its_checkpoint_is_claimed_keeps_it(
        self, faults: Faults
    ) -> None:
        """The former job's driver looks before the record is there, and the claimer after."""
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        started: list[CheckpointCoordinator] = []

        def start() -> None:
            driver = coordinator(faults.inner_directory, job_id="other")
            begin_checkpoint(driver, 1)
            started.append(driver)

        pointer = f"{faults.directory}/other/chk-1"
        driver = claiming(faults.directory, pointer)
        faults.calls.clear()
        faults.before(
            "publish", start, nth=4
        )  # after the claims to both jobs, and the end of the former
        with pytest.raises(CheckpointConflictError, match="started while it was being claimed"):
            begin_checkpoint(driver, 0)
        faults.clear()
        assert read_claim(pointer) is None
        run_batch(started[0], 1, change_nothing)

    def test_a_job_that_is_started_and_claimed_meanwhile_is_refused(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        driver = coordinator(faults.directory, job_id="other")

        def claims() -> None:
            faults.clear()
            begin_checkpoint(claiming(faults.directory, pointer), 0)

        faults.before("publish", claims)  # of the claim to its own job
        with pytest.raises(CheckpointConflictError, match=r"job 'job' in .* has claimed"):
            begin_checkpoint(driver, 1)

    def test_of_two_jobs_that_claim_it_at_once_one_is_refused(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        checkpoint = load_checkpoint(resolve_pointer(pointer))
        rehearsed, copy = (
            copy_checkpoint(checkpoint, f"{faults.directory}/savepoints").location.external_pointer
            for _ in range(2)
        )
        driver = claiming(faults.directory, rehearsed, job_id="rehearsal")
        faults.calls.clear()
        begin_checkpoint(driver, 0)
        last = faults.calls.count("publish")
        driver = claiming(faults.directory, copy)
        faults.calls.clear()

        def claims() -> None:
            faults.clear()
            begin_checkpoint(claiming(faults.directory, copy, job_id="third"), 0)

        faults.before("publish", claims, nth=last)  # of the record
        with pytest.raises(CheckpointConflictError, match=r"job 'third' in .* has claimed"):
            begin_checkpoint(driver, 0)
        holder = read_claim(copy)
        assert holder is not None
        assert holder.job_id == "third"

    def test_what_is_gone_when_it_is_claimed_is_an_error(self, faults: Faults) -> None:
        run_batch(coordinator(faults.directory, job_id="other"), 0, add_segment(b"old"))
        pointer = f"{faults.directory}/other/chk-1"
        driver = claiming(faults.directory, pointer)
        behind = f"{faults.inner_directory}/other/chk-1/_metadata"
        faults.calls.clear()
        faults.before("publish", lambda: file_system_for(behind).delete([behind]), nth=3)
        with pytest.raises(CheckpointNotFoundError):
            begin_checkpoint(driver, 0)
        faults.clear()
        assert read_claim(pointer) is None
