"""Keyed state in shared segments of arbitrary bytes, with a driver but without Spark."""

from functools import partial

import pytest
from contracts.files import files_below
from hypothesis import given
from hypothesis import strategies as st
from jobs.coordinator import begin_checkpoint, coordinator, progress
from jobs.segments import (
    UID,
    Backend,
    Change,
    add_segment,
    change_nothing,
    contents,
    latest_checkpoint,
    merge_segments,
    overwrite,
    run_batch,
    run_subtasks,
    shared_files,
    shared_in,
)
from jobs.stopped_query import QUERY, put, write_query
from msgspec import structs

from holdfast import restore_savepoint, take_savepoint
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointDeclinedError,
    CheckpointError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import (
    CompletedCheckpoint,
    StoredSubtask,
    copy_checkpoint,
    load_checkpoint,
    sweep,
    verify_files,
)
from holdfast.locations.adapters import ByteStreamStateHandle, file_system_for
from holdfast.locations.coordination import load_checkpoints
from holdfast.locations.storages import resolve_pointer
from holdfast.spark.checkpoint_location import LINK_FILE, Link, encode_link
from holdfast.spark.query import CLEANER, CheckpointCoordinator
from holdfast.testing import ANY_CALL, Faults

pytestmark = pytest.mark.usefixtures("memory_clock")


def state_of(checkpoint: CompletedCheckpoint) -> list[dict[str, bytes]]:
    operator = checkpoint.metadata.operators[UID]
    return contents([operator.subtasks[index] for index in range(operator.parallelism)])


def latest_state(driver: CheckpointCoordinator) -> list[dict[str, bytes]]:
    return state_of(latest_checkpoint(driver))


def retained_by(driver: CheckpointCoordinator) -> list[CompletedCheckpoint]:
    return load_checkpoints(driver.job.access)


def sweep_all(directory: str) -> set[str]:
    return {file.uri for file in sweep(directory, "job", grace_s=0).files}


class TestRunningJob:
    def test_checkpoint_writes_only_new_segments(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory, num_retained=3)
        seen: list[set[str]] = []
        for batch_id in range(3):
            run_batch(driver, batch_id, add_segment(b"batch %d" % batch_id))
            seen.append(shared_files(memory_directory))
        assert [len(files) for files in seen] == [2, 4, 6]
        assert seen[0] < seen[1] < seen[2]
        assert seen[2] == shared_in(latest_checkpoint(driver).metadata)
        assert [sorted(segments.values()) for segments in latest_state(driver)] == [
            [b"batch %d of %d" % (batch_id, subtask) for batch_id in range(3)] for subtask in (0, 1)
        ]

    def test_small_segments_are_stored_in_the_metadata(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory, inline_threshold=20 << 10)
        run_batch(driver, 0, add_segment(b"small"))
        run_batch(driver, 1, add_segment(bytes(30 << 10)))
        run_batch(driver, 2, change_nothing)
        subtask = latest_checkpoint(driver).metadata.operators[UID].subtasks[0]
        inline = [
            isinstance(stream, ByteStreamStateHandle)
            for stream in subtask.shared_streams().values()
        ]
        assert sorted(inline) == [False, True]
        assert len(shared_files(memory_directory)) == 2
        again = coordinator(memory_directory)
        begin_checkpoint(again, retained_by(again)[-1].checkpoint_id)
        assert latest_state(again)[0] == contents([subtask])[0]

    def test_unchanged_state_writes_no_segment(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        before = shared_files(memory_directory)
        run_batch(driver, 1, change_nothing)
        files = shared_in(latest_checkpoint(driver).metadata)
        assert shared_files(memory_directory) == before == files

    @given(
        num_retained=st.integers(1, 3),
        changes=st.lists(
            st.sampled_from([add_segment(), merge_segments, change_nothing]), max_size=6
        ),
    )
    def test_unreferenced_files_are_deleted(
        self, memory_directory: str, num_retained: int, changes: list[Change]
    ) -> None:
        file_system_for(memory_directory).delete_tree(f"{memory_directory}/job")
        driver = coordinator(memory_directory, num_retained=num_retained)
        for batch_id, change in enumerate(changes):
            run_batch(driver, batch_id, change)
            CLEANER.wait()
            retained = retained_by(driver)
            assert len(retained) == min(batch_id + 1, num_retained)
            assert shared_files(memory_directory) == shared_in(
                *(checkpoint.metadata for checkpoint in retained)
            )

    def test_new_driver_deletes_files_of_the_old_one(self, memory_directory: str) -> None:
        run_batch(coordinator(memory_directory, num_retained=1), 0, add_segment())
        run_batch(coordinator(memory_directory, num_retained=1), 1, merge_segments)
        CLEANER.wait()
        (retained,) = retained_by(coordinator(memory_directory))
        assert shared_files(memory_directory) == shared_in(retained.metadata)


class TestAbortedCheckpoint:
    def test_abort_deletes_only_its_own_files(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        before, last = files_below(memory_directory), latest_state(driver)
        pending = begin_checkpoint(driver, 1)
        run_subtasks(pending, add_segment(b"lost"))
        assert driver.abort(pending)
        assert files_below(memory_directory) == before
        run_batch(driver, 1, add_segment(b"new"))
        for index, segments in enumerate(latest_state(driver)):
            assert segments.items() > last[index].items()
            assert b"new of %d" % index in segments.values()

    @pytest.mark.parametrize("subtasks", [(0,), (0, 0, 1)])
    def test_decline_deletes_only_its_own_files(
        self, memory_directory: str, subtasks: tuple[int, ...]
    ) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        before = files_below(memory_directory)
        pending = begin_checkpoint(driver, 1)
        acknowledgements = run_subtasks(pending, merge_segments, subtasks=subtasks)
        with pytest.raises(CheckpointDeclinedError):
            driver.complete(pending, acknowledgements, progress(1))
        driver.abort(pending)
        assert files_below(memory_directory) == before
        run_batch(driver, 1, merge_segments)

    def test_lost_segment_is_written_again(self, memory_directory: str) -> None:
        """The new file has the same segment name."""
        driver = coordinator(memory_directory)
        names: list[str] = []

        def add_kept_segment(_: int, backend: Backend) -> None:
            backend.segments["0" * 31 + "1"] = b"kept in memory"
            names.extend(backend.segments)

        pending = begin_checkpoint(driver, 0)
        run_subtasks(pending, add_kept_segment)
        driver.abort(pending)
        run_batch(driver, 0, add_kept_segment)
        assert len(set(names)) == 1
        assert [list(segments.values()) for segments in latest_state(driver)] == [
            [b"kept in memory"]
        ] * 2

    def test_placeholder_for_a_lost_segment_is_declined(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        memory: dict[str, bytes] = {}

        def add_and_remember(subtask: int, backend: Backend) -> None:
            add_segment()(subtask, backend)
            if subtask == 0:
                memory.update(backend.segments)

        def resume_from_memory(subtask: int, backend: Backend) -> None:
            if subtask == 0:
                backend.segments.update(memory)
                backend.confirm_all()

        lost = begin_checkpoint(driver, 1)
        run_subtasks(lost, add_and_remember)
        driver.abort(lost)

        with pytest.raises(
            CheckpointDeclinedError, match="subtask 0 of operator 'operator' refers"
        ):
            run_batch(driver, 1, resume_from_memory)


class TestReaders:
    def test_sweep_deletes_only_orphans_of_lost_drivers(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        run_batch(driver, 1, add_segment())
        before = files_below(memory_directory)
        run_subtasks(begin_checkpoint(driver, 2), merge_segments)  # and it is killed
        orphans = files_below(memory_directory) - before
        assert len(orphans & shared_files(memory_directory)) == 2
        assert sweep_all(memory_directory) == orphans
        assert len(retained_by(driver)) == 2
        for checkpoint in retained_by(driver):
            state_of(checkpoint)

    def test_damaged_and_missing_segments_are_named(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        damaged, missing = sorted(shared_files(memory_directory))
        overwrite(damaged, b"others")
        file_system_for(missing).delete([missing])
        failures = {
            file.uri: type(file.failure).__name__
            for file in verify_files(latest_checkpoint(driver).metadata.streams())
            if file.failure is not None
        }
        assert failures == {damaged: "CheckpointCorruptedError", missing: "CheckpointNotFoundError"}
        with pytest.raises(CheckpointError):
            run_batch(driver, 1, change_nothing)

    def test_damaged_segment_is_refused(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment(b"rows"))
        for uri in shared_files(memory_directory):
            overwrite(uri, b"sown of 0")
        with pytest.raises(CheckpointCorruptedError, match="/job/shared/"):
            latest_state(driver)

    def test_copy_has_its_own_files(self, memory_directory: str) -> None:
        driver = coordinator(memory_directory)
        run_batch(driver, 0, add_segment())
        run_batch(driver, 1, add_segment())
        before = latest_state(driver)
        copy = copy_checkpoint(latest_checkpoint(driver), f"{memory_directory}/archive")
        file_system_for(memory_directory).delete_tree(f"{memory_directory}/job")
        assert state_of(copy) == before
        files = shared_in(copy.metadata)
        assert len(files) == 4
        assert all(uri.startswith(f"{copy.location.external_pointer}/") for uri in files)


class TestForeignStart:
    @pytest.fixture
    def other(self, memory_directory: str) -> CompletedCheckpoint:
        driver = coordinator(memory_directory, job_id="other")
        run_batch(driver, 0, add_segment(b"old"))
        return latest_checkpoint(driver)

    def test_first_checkpoint_does_not_need_the_other_job(
        self, memory_directory: str, other: CompletedCheckpoint
    ) -> None:
        driver = coordinator(memory_directory, start=other.location.external_pointer)
        pending = begin_checkpoint(driver, 0)
        assert not pending.may_refer[UID]
        driver.complete(pending, run_subtasks(pending, add_segment(b"new")), progress(0))
        file_system_for(memory_directory).delete_tree(f"{memory_directory}/other")
        assert [sorted(segments.values()) for segments in latest_state(driver)] == [
            [b"new of %d" % index, b"old of %d" % index] for index in (0, 1)
        ]
        assert len(shared_files(memory_directory)) == 4
        pending = begin_checkpoint(driver, 1)
        assert pending.may_refer[UID]

    def test_files_of_the_other_job_are_never_deleted(
        self, memory_directory: str, other: CompletedCheckpoint
    ) -> None:
        before = files_below(f"{memory_directory}/other")
        driver = coordinator(
            memory_directory, start=other.location.external_pointer, num_retained=1
        )
        aborted = begin_checkpoint(driver, 0)
        run_subtasks(aborted, merge_segments)
        driver.abort(aborted)
        for batch_id in range(3):
            run_batch(driver, batch_id, merge_segments)
        CLEANER.wait()
        sweep_all(memory_directory)
        assert files_below(f"{memory_directory}/other") == before
        assert state_of(other)

    def test_reference_to_the_other_job_is_declined(
        self, memory_directory: str, other: CompletedCheckpoint
    ) -> None:
        driver = coordinator(memory_directory, start=other.location.external_pointer)

        with pytest.raises(CheckpointDeclinedError, match="can't share it"):
            run_batch(driver, 0, lambda _, backend: backend.confirm_all())
        assert shared_files(memory_directory) == set()

    def test_files_of_a_copy_are_never_deleted(
        self, memory_directory: str, other: CompletedCheckpoint
    ) -> None:
        copy = copy_checkpoint(other, f"{memory_directory}/savepoints")
        before = files_below(copy.location.external_pointer)
        driver = coordinator(memory_directory, start=copy.location.external_pointer, num_retained=1)
        for batch_id in range(2):
            run_batch(driver, batch_id, merge_segments)
        CLEANER.wait()
        assert files_below(copy.location.external_pointer) == before
        file_system_for(memory_directory).delete_tree(copy.location.external_pointer)
        assert latest_state(driver)


LARGE = b"batch %d" + bytes(30 << 10)
"""A segment that is too large for the metadata."""


@pytest.mark.usefixtures("as_without_spark")
class TestQuerySavepoint:
    @pytest.fixture
    def savepoint(self, directory: str) -> str:
        location, checkpoints = f"{directory}/original", f"{directory}/checkpoints"
        write_query(location, batches=2)
        driver = coordinator(checkpoints, job_id=QUERY, query_id=QUERY)
        for batch_id in range(2):
            pending = begin_checkpoint(driver, batch_id)
            of_query = {"query_id": QUERY, "checkpoint_location": location}
            reports = run_subtasks(pending, add_segment(LARGE % batch_id))
            driver.complete(pending, reports, structs.replace(progress(batch_id), **of_query))
        link = Link(checkpoint_dir=checkpoints, job_id=QUERY, storage="filesystem")
        put(f"{location}/{LINK_FILE}", encode_link(link))
        return take_savepoint(location, f"{directory}/savepoints")

    def test_savepoint_has_its_own_files(self, directory: str, savepoint: str) -> None:
        file_system_for(directory).delete_tree(f"{directory}/checkpoints")
        metadata = load_checkpoint(resolve_pointer(savepoint))
        assert [sorted(segments.values()) for segments in state_of(metadata)] == [
            [b"%s of %d" % (LARGE % batch_id, index) for batch_id in (0, 1)] for index in (0, 1)
        ]
        uris = {file.uri for file in verify_files(metadata.metadata.streams())}
        assert all(uri.startswith(f"{savepoint}/") for uri in uris)

    def test_restored_query_does_not_write_segments_again(
        self, directory: str, savepoint: str
    ) -> None:
        before = files_below(savepoint)
        forked = f"{directory}/forked"
        restored = restore_savepoint(
            savepoint, f"{directory}/fork", checkpoint_dir=forked, job_id="fork"
        )
        files = shared_files(forked, "fork")
        assert len(files) == 4
        driver = coordinator(forked, job_id="fork", query_id=restored.query_id, num_retained=1)
        for batch_id in (2, 3):
            pending = begin_checkpoint(driver, batch_id)
            assert pending.may_refer[UID]
            of_query = structs.replace(progress(batch_id), query_id=restored.query_id)
            driver.complete(pending, run_subtasks(pending, add_segment()), of_query)
        CLEANER.wait()
        assert files < shared_files(forked, "fork") == shared_in(latest_checkpoint(driver).metadata)
        assert all(len(segments) == 4 for segments in latest_state(driver))
        assert files_below(savepoint) == before


class TestRescaling:
    @pytest.mark.parametrize("parallelism", [1, 3, 5])
    def test_subtasks_share_segments_without_writing_them_again(
        self, memory_directory: str, parallelism: int
    ) -> None:
        run_batch(coordinator(memory_directory), 0, add_segment())
        before = shared_files(memory_directory)
        driver = coordinator(memory_directory, parallelism=parallelism, num_retained=1)
        pending = begin_checkpoint(driver, 1)
        assigned = pending.assigned[UID].subtasks
        ranges = [handle.key_groups for subtask in assigned for handle in subtask.managed_keyed]
        assert sorted(group for first, last in ranges for group in range(first, last + 1)) == list(
            range(128)
        )
        driver.complete(pending, run_subtasks(pending, change_nothing), progress(1))
        files = shared_in(latest_checkpoint(driver).metadata)
        assert shared_files(memory_directory) == before == files
        run_batch(driver, 2, merge_segments)
        CLEANER.wait()
        assert not shared_files(memory_directory) & before
        assert len(shared_files(memory_directory)) == parallelism
        latest_state(driver)


class Death(BaseException):
    """No handler in the code under test may run."""


class TestFaults:
    @pytest.mark.parametrize("error", [StorageUnavailableError("as planned"), Death()])
    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_fault_at_any_call_leaves_the_old_checkpoint_or_the_new_one(
        self, faults: Faults, moment: str, error: BaseException
    ) -> None:
        """After a sweep of the next driver, each shared file belongs to one of its checkpoints."""
        number = 0
        while True:
            number += 1
            file_system_for(faults.inner_directory).delete_tree(f"{faults.inner_directory}/job")
            driver = coordinator(faults.directory, num_retained=1)
            run_batch(driver, 0, add_segment(b"old"))
            run_batch(driver, 1, add_segment(b"older"))
            CLEANER.wait()
            old = latest_state(driver)
            new: list[dict[str, bytes]] = [{}, {}]
            faults.calls.clear()
            getattr(faults, moment)(ANY_CALL, error, nth=number)
            try:
                run_batch(driver, 2, partial(merge_into, new))
                CLEANER.wait()
            except (CheckpointError, Death):
                pass
            was_reached = len(faults.calls) - faults.calls.count("abort") >= number
            faults.clear()
            again = coordinator(faults.directory, num_retained=1)
            done = retained_by(again)[-1]
            assert state_of(done) == (new if done.checkpoint_id == 3 else old)
            run_batch(again, done.checkpoint_id, add_segment(b"newer"))
            CLEANER.wait()
            sweep_all(faults.directory)
            (kept,) = retained_by(again)
            state_of(kept)
            assert shared_files(faults.directory) == shared_in(kept.metadata)
            if not was_reached:
                break
        assert number > 20

    def test_commit_with_unknown_outcome_deletes_nothing(self, faults: Faults) -> None:
        driver = coordinator(faults.directory)
        run_batch(driver, 0, add_segment())
        pending = begin_checkpoint(driver, 1)
        acknowledgements = run_subtasks(pending, add_segment(b"new"))
        faults.after("publish", OutcomeUnknownError("as planned"))
        with pytest.raises(OutcomeUnknownError):
            driver.complete(pending, acknowledgements, progress(1))
        driver.abort(pending)
        again = coordinator(faults.directory)
        assert again.begin(1) is None
        assert all(len(segments) == 2 for segments in latest_state(again))


def merge_into(new: list[dict[str, bytes]], subtask: int, backend: Backend) -> None:
    merge_segments(subtask, backend)
    new[subtask] = dict(backend.segments)


class TestTwoDrivers:
    def test_lost_driver_deletes_no_files_of_the_winner(self, memory_directory: str) -> None:
        older = coordinator(memory_directory, num_retained=1)
        run_batch(older, 0, add_segment())
        lost = begin_checkpoint(older, 1)
        acknowledgements = run_subtasks(lost, add_segment(b"lost"))
        younger = coordinator(memory_directory, num_retained=1)
        for batch_id in range(1, 4):
            run_batch(younger, batch_id, add_segment(b"won"))
        CLEANER.wait()
        with pytest.raises(CheckpointConflictError):
            older.complete(lost, acknowledgements, progress(1))
        older.abort(lost)
        won = shared_in(latest_checkpoint(younger).metadata)
        assert shared_files(memory_directory) >= won
        sweep_all(memory_directory)  # its checkpoint was there for a moment
        assert shared_files(memory_directory) == won
        assert all(len(segments) == 4 for segments in latest_state(younger))

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_takeover_during_a_batch_loses_no_rows(self, faults: Faults, moment: str) -> None:
        """The other driver takes over at any call of the store, runs batches, and cleans up."""
        number = 0
        while True:
            number += 1
            file_system_for(faults.inner_directory).delete_tree(f"{faults.inner_directory}/job")
            older = coordinator(faults.directory)  # it has nothing to clean up
            run_batch(older, 0, add_segment())
            younger: list[CheckpointCoordinator] = []

            def take_over(younger: list[CheckpointCoordinator] = younger) -> None:
                younger.append(coordinator(faults.directory, num_retained=1))
                for batch_id in range(1, 4):
                    run_batch(younger[0], batch_id, add_segment(b"younger"))
                CLEANER.wait()

            faults.calls.clear()
            getattr(faults, moment)(ANY_CALL, take_over, nth=number)
            was_lost = False
            try:
                run_batch(older, 1, add_segment(b"older"))
            except (CheckpointConflictError, CheckpointNotFoundError):
                was_lost = True
            faults.clear()
            if not younger:
                break
            for segments in state_of(retained_by(younger[0])[-1]):
                rows = [content.partition(b" ")[0] for content in segments.values()]
                assert len(rows) == 4
                assert rows.count(b"older") <= 1
                assert b"older" in rows or was_lost
        assert number > 10


def test_empty_state_has_no_shared_files(memory_directory: str) -> None:
    assert contents([StoredSubtask()]) == [{}]
    driver = coordinator(memory_directory)
    run_batch(driver, 0, change_nothing)
    assert shared_files(memory_directory) == set()
    assert latest_state(driver) == [{}, {}]
