"""A sweep while drivers claim the job, complete checkpoints and delete them, and stores fail."""

import pytest
from contracts.checkpointed_jobs import assert_complete, job_in, write_state
from contracts.errors import of_kind
from contracts.files import files_below
from contracts.sweeps import (
    GRACE,
    access,
    clock,
    shared_of,
    uris,
    write_checkpoint,
)
from contracts.values import SHARED

from holdfast.errors import CheckpointConflictError, OutcomeUnknownError, StorageUnavailableError
from holdfast.locations import CompletedCheckpoint, complete_checkpoint, sweep
from holdfast.locations.adapters import METADATA_FILE, CheckpointStorageAccess, file_system_for
from holdfast.testing import ANY_CALL, Faults, ManualClock, metadata_of

__all__ = ["access", "clock"]


class TestConcurrentChanges:
    @pytest.mark.parametrize("call", ["create", "open", "delete"])
    def test_new_claim_stops_the_sweep(self, faults: Faults, clock: ManualClock, call: str) -> None:
        access = job_in(faults.inner_directory)
        access.claim_job()
        write_checkpoint(access, 1)
        write_state(access.initialize_location_for_checkpoint(2))
        clock.advance(2 * GRACE)
        before = {
            name
            for name in files_below(f"{faults.inner_directory}/job")
            if not name.endswith("/_epoch/1")
        }
        faults.before(call, access.claim_job)
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            sweep(faults.directory, "job", grace_s=GRACE)
        assert before <= files_below(f"{faults.inner_directory}/job")

    @pytest.mark.parametrize("number", range(1, 12))
    def test_completed_checkpoint_survives_the_sweep(
        self, faults: Faults, clock: ManualClock, number: int
    ) -> None:
        """At any time; its files are as old as they may be."""
        access = job_in(faults.directory)
        old = write_checkpoint(access, 1)
        clock.advance(2 * GRACE)
        location = access.initialize_location_for_checkpoint(2)
        streams = (write_state(location), write_state(location, SHARED, b"new"), shared_of(old))
        clock.advance(GRACE - 1)
        made: list[CompletedCheckpoint] = []

        def complete() -> None:
            metadata = metadata_of(*streams, checkpoint_id=2, commit_token="second")
            made.append(complete_checkpoint(location, metadata))

        faults.calls.clear()
        faults.before(ANY_CALL, complete, nth=number)
        sweep(faults.directory, "job", grace_s=GRACE)
        faults.clear()
        assert_complete(old)
        for checkpoint in made:
            assert_complete(checkpoint)

    def test_checkpoint_with_older_shared_files_survives_the_sweep(
        self, memory_directory: str, clock: ManualClock
    ) -> None:
        """The sweep lists the old one, which is deleted before it is read."""
        from holdfast.testing import faulty_file_system

        number, reached = 0, True
        while reached:
            number += 1
            reached = False
            with faulty_file_system(f"{memory_directory}/{number}") as faults:
                file_system_for(faults.inner_directory).prepare_directory(faults.inner_directory)
                access = job_in(faults.directory)
                old = write_checkpoint(access, 1)
                clock.advance(2 * GRACE)
                made: list[CompletedCheckpoint] = []

                def change_job(
                    made: list[CompletedCheckpoint] = made,
                    access: CheckpointStorageAccess = access,
                    old: CompletedCheckpoint = old,
                ) -> None:
                    made.append(write_checkpoint(access, 2, shared_of(old)))
                    old.discard()

                faults.calls.clear()
                faults.before(ANY_CALL, change_job, nth=number)
                sweep(faults.directory, "job", grace_s=GRACE)
                faults.clear()
                for checkpoint in made:
                    reached = True
                    assert_complete(checkpoint)
        assert number > 10

    def test_late_commit_in_the_place_of_a_deleted_one_hides_no_other(
        self, faults: Faults, clock: ManualClock
    ) -> None:
        """A driver that was thought dead commits it; the model in `proof` has found what it hid."""
        late = job_in(faults.inner_directory).initialize_location_for_checkpoint(1)
        late_metadata = metadata_of(write_state(late), checkpoint_id=1, commit_token="late")
        access = job_in(faults.inner_directory)
        access.claim_job()
        old = write_checkpoint(access, 1, shared=1)
        clock.advance(2 * GRACE)
        made: list[CompletedCheckpoint] = []

        def change_job() -> None:
            made.append(write_checkpoint(access, 2, shared_of(old)))
            # The directory, which the file systems below would miss, is deleted after the late commit.
            file_system_for(faults.inner_directory).delete(
                [f"{faults.inner_directory}/job/chk-1/{METADATA_FILE}"]
            )
            complete_checkpoint(late, late_metadata)

        faults.before("open", change_job)  # of a listed file
        sweep(faults.directory, "job", grace_s=GRACE)
        [newest] = made
        assert_complete(newest)

    @pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
    def test_store_failing_anywhere_loses_no_needed_file(
        self, memory_directory: str, clock: ManualClock, *, lands: bool
    ) -> None:
        from holdfast.testing import faulty_file_system

        number, failed = 0, True
        while failed:
            number += 1
            with faulty_file_system(f"{memory_directory}/{number}") as faults:
                file_system_for(faults.inner_directory).prepare_directory(faults.inner_directory)
                access = job_in(faults.directory)
                first = write_checkpoint(access, 1)
                second = write_checkpoint(access, 3, shared_of(first))
                location = access.initialize_location_for_checkpoint(2)
                orphans = {write_state(location).uri, write_state(location, SHARED).uri}
                clock.advance(2 * GRACE)
                faults.calls.clear()
                plan = faults.after if lands else faults.before
                plan(ANY_CALL, StorageUnavailableError("as planned"), nth=number)
                try:
                    sweep(faults.directory, "job", grace_s=GRACE)
                except (StorageUnavailableError, OutcomeUnknownError):
                    failed = True
                else:
                    failed = number <= len(faults.calls) - faults.calls.count("abort")
                    assert not failed, "a call failed, and no error was raised"
                faults.clear()
                assert_complete(first)
                assert_complete(second)
                clock.advance(2 * GRACE)
                sweep(faults.directory, "job", grace_s=GRACE)
                left = files_below(faults.directory)
                assert not left & orphans
                assert not any("_probe-" in name for name in left)
        assert number > 10

    def test_checkpoint_deleted_concurrently_does_not_stop_the_sweep(
        self, faults: Faults, clock: ManualClock
    ) -> None:
        access = job_in(faults.directory)
        old, kept = write_checkpoint(access, 1), write_checkpoint(access, 2)
        orphan = write_state(access.initialize_location_for_checkpoint(3))
        clock.advance(2 * GRACE)
        faults.before("open", old.discard)
        report = sweep(faults.directory, "job", grace_s=GRACE)
        assert orphan.uri in uris(report)
        assert_complete(kept)
