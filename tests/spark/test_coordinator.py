"""The coordinator without Spark: failures of storage, and other drivers."""

import pytest
from contracts.errors import of_kind
from contracts.values import read
from jobs.coordinator import (
    acknowledge,
    assigned_states,
    begin_checkpoint,
    coordinator,
    names_in_checkpoint,
    progress,
    run_batch,
)
from msgspec.structs import replace

from holdfast.errors import (
    BatchGapError,
    CheckpointConflictError,
    CheckpointDeclinedError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import file_system_for
from holdfast.locations.handles import OperatorStateMode
from holdfast.spark.query import CLEANER, PendingCheckpoint
from holdfast.spark.query.coordinator import LOOK_INTERVAL_S
from holdfast.testing import Faults, ManualClock


def existing(directory: str, *checkpoint_ids: int) -> list[int]:
    """Return those of the ids whose checkpoint has files."""
    return [number for number in checkpoint_ids if names_in_checkpoint(directory, number)]


def test_new_driver_resumes_from_the_last_checkpoint(memory_directory: str) -> None:
    first = coordinator(memory_directory)
    run_batch(first, 0)
    run_batch(first, 1)
    second = coordinator(memory_directory)
    assert second.begin(1) is None
    pending = begin_checkpoint(second, 2)
    assert pending.restored_checkpoint_id == 2
    assert assigned_states(pending) == [b"state of 0", b"state of 1"]


def test_checkpoint_has_the_time_of_the_drivers_clock(memory_directory: str) -> None:
    clock = ManualClock()
    driver = coordinator(memory_directory, clock=clock)
    pending = begin_checkpoint(driver, 0)
    clock.advance(2)
    completed = driver.complete(pending, acknowledge(pending), progress(0))
    assert completed.metadata.created_ms == clock.now_ms()
    assert completed.metadata.duration_ms == 2000


def test_checkpoint_can_reuse_the_previous_state(memory_directory: str) -> None:
    driver = coordinator(memory_directory, num_retained=1, inline_threshold=100)
    run_batch(driver, 0)
    for batch_id in (1, 2):
        pending = begin_checkpoint(driver, batch_id)
        assert driver.can_reuse_state(pending)
        completed = driver.reuse_state(pending, progress(batch_id))
    CLEANER.wait()
    assert completed.checkpoint_id == 3
    subtasks = completed.metadata.operators["operator"].subtasks.values()
    assert [subtask.statistics.rows_in for subtask in subtasks if subtask.statistics] == [0, 0]
    pending = begin_checkpoint(coordinator(memory_directory), 3)
    assert assigned_states(pending) == [b"state of 0", b"state of 1"]


def test_state_in_exclusive_files_is_not_reused(memory_directory: str) -> None:
    driver = coordinator(memory_directory, inline_threshold=0)
    run_batch(driver, 0)
    pending = begin_checkpoint(driver, 1)
    assert not driver.can_reuse_state(pending)
    with pytest.raises(InvalidRequestError, match="deleted together with that"):
        driver.reuse_state(pending, progress(1))


def test_restored_state_is_not_reused_before_subtasks_ran(memory_directory: str) -> None:
    run_batch(coordinator(memory_directory, inline_threshold=100), 0)
    driver = coordinator(memory_directory, inline_threshold=100, parallelism=3)
    assert not driver.can_reuse_state(begin_checkpoint(driver, 1))


def test_union_state_is_spread_only_when_a_job_starts(memory_directory: str) -> None:
    def contents(pending: PendingCheckpoint) -> list[list[bytes]]:
        return [
            [read(handle.stream) for handle in state.managed_operator]
            for state in pending.assigned["operator"].subtasks
        ]

    states = [b"state of 0", b"state of 1"]
    first = coordinator(memory_directory)
    for batch_id in range(3):
        pending = begin_checkpoint(first, batch_id)
        assert contents(pending) == ([[], []] if batch_id == 0 else [[state] for state in states])
        done = acknowledge(pending, mode=OperatorStateMode.UNION)
        first.complete(pending, done, progress(batch_id))
    assert contents(begin_checkpoint(coordinator(memory_directory), 3)) == [states, states]


@pytest.mark.parametrize("batch_id", [0, 3, 17])
def test_batch_out_of_order_is_a_gap(memory_directory: str, batch_id: int) -> None:
    first = coordinator(memory_directory)
    run_batch(first, 0)
    run_batch(first, 1)
    with pytest.raises(BatchGapError, match=f"completed 1, but Spark is at {batch_id}"):
        coordinator(memory_directory).begin(batch_id)


def test_older_of_two_drivers_in_one_batch_loses(memory_directory: str) -> None:
    older = coordinator(memory_directory)
    lost = begin_checkpoint(older, 0)
    acknowledgements_lost = acknowledge(lost)
    younger = coordinator(memory_directory)
    won = begin_checkpoint(younger, 0)
    younger.complete(won, acknowledge(won), progress(0))
    with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
        older.complete(lost, acknowledgements_lost, progress(0))
    older.abort(lost)
    assert len(names_in_checkpoint(memory_directory, 1)) == 3  # metadata and the winner's two files
    pending = begin_checkpoint(coordinator(memory_directory), 1)
    assert all(assigned_states(pending))


def test_driver_without_its_job_fails_before_the_sink_runs(memory_directory: str) -> None:
    clock = ManualClock()
    older = coordinator(memory_directory, clock=clock)
    run_batch(older, 0)
    begin_checkpoint(coordinator(memory_directory), 1)
    clock.advance(LOOK_INTERVAL_S)
    with pytest.raises(CheckpointConflictError, match="its epoch is 2, this driver's is 1"):
        older.begin(1)


def test_batch_begins_without_a_look_soon_after_a_commit(faults: Faults) -> None:
    clock = ManualClock()
    driver = coordinator(faults.directory, clock=clock)
    looks = []
    for batch_id, seconds in enumerate((0.0, LOOK_INTERVAL_S - 0.1, LOOK_INTERVAL_S)):
        clock.advance(seconds)
        faults.calls.clear()
        pending = begin_checkpoint(driver, batch_id)
        looks.append(faults.calls.count("list"))
        driver.complete(pending, acknowledge(pending), progress(batch_id))
        CLEANER.wait()
    assert looks[1:] == [0, 1]


def test_commit_during_a_takeover_is_restored_by_the_new_driver(faults: Faults) -> None:
    older = coordinator(faults.directory)
    pending = begin_checkpoint(older, 0)
    younger = coordinator(faults.inner_directory)
    started: list[PendingCheckpoint] = []
    faults.before("publish", lambda: started.append(begin_checkpoint(younger, 0)))
    with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
        older.complete(pending, acknowledge(pending), progress(0))
    older.abort(pending)
    # The younger one began before this commit, and finds it when it commits.
    with pytest.raises(CheckpointConflictError, match="an earlier driver"):
        younger.complete(started[0], acknowledge(started[0]), progress(0))
    younger.abort(started[0])
    assert coordinator(faults.inner_directory).begin(0) is None


def test_sweep_runs_at_the_start_and_whenever_its_interval_has_passed(
    memory_directory: str,
) -> None:
    clock, sweeps = ManualClock(), list[int]()
    driver = coordinator(memory_directory, clock=clock, sweep=lambda: sweeps.append(clock.now_ms()))
    counts = []
    for batch_id in range(4):
        run_batch(driver, batch_id)
        CLEANER.wait()
        counts.append(len(sweeps))
        clock.advance(1000)
    assert counts == [1, 1, 1, 2]


def test_driver_unable_to_resume_does_not_stop_the_other(memory_directory: str) -> None:
    running = coordinator(memory_directory)
    run_batch(running, 0)
    run_batch(running, 1)
    with pytest.raises(BatchGapError):
        coordinator(memory_directory).begin(0)
    run_batch(running, 2)


def test_driver_without_its_job_deletes_no_files_of_the_new_one(memory_directory: str) -> None:
    older = coordinator(memory_directory)
    lost = begin_checkpoint(older, 0)
    younger = coordinator(memory_directory)
    won = begin_checkpoint(younger, 0)  # has written nothing yet
    older.abort(lost)
    younger.complete(won, acknowledge(won), progress(0))


def test_abort_returns_true_only_if_the_outcome_is_certain(faults: Faults) -> None:
    driver = coordinator(faults.directory)
    pending = begin_checkpoint(driver, 0)
    assert driver.abort(pending)
    pending = begin_checkpoint(driver, 0)
    faults.before("list", StorageUnavailableError("as planned"), nth="every")
    assert not driver.abort(pending)
    faults.clear()
    faults.after("publish", OutcomeUnknownError("as planned"))
    with pytest.raises(OutcomeUnknownError):
        driver.complete(pending, acknowledge(pending), progress(0))
    assert not driver.abort(pending)


def test_late_commit_of_a_deleted_checkpoint_id_is_revoked(faults: Faults) -> None:
    zombie = coordinator(faults.directory)
    pending = begin_checkpoint(zombie, 0)
    acknowledgements = acknowledge(pending)

    def continue_job() -> None:
        driver = coordinator(faults.inner_directory, num_retained=1)
        for batch_id in range(3):
            run_batch(driver, batch_id)
        CLEANER.wait()
        file_system_for(faults.inner_directory).prepare_directory(
            f"{faults.inner_directory}/job/chk-1"
        )

    faults.before("publish", continue_job)
    with pytest.raises(CheckpointConflictError, check=of_kind("taken-over")):
        zombie.complete(pending, acknowledgements, progress(0))
    assert existing(faults.inner_directory, 1, 2, 3) == [3]


def test_failing_driver_keeps_files_of_an_active_writer(memory_directory: str) -> None:
    failing = coordinator(memory_directory)
    failed = begin_checkpoint(failing, 0)
    acknowledge(failed)
    writing = coordinator(memory_directory)
    pending = begin_checkpoint(writing, 0)
    acknowledgements = acknowledge(pending)
    failing.abort(failed)
    writing.complete(pending, acknowledgements, progress(0))
    assert len(names_in_checkpoint(memory_directory, 1)) == 3


def test_completed_checkpoint_cannot_be_aborted(memory_directory: str) -> None:
    driver = coordinator(memory_directory)
    pending = begin_checkpoint(driver, 0)
    driver.complete(pending, acknowledge(pending), progress(0))
    driver.abort(pending)
    assert len(names_in_checkpoint(memory_directory, 1)) == 3
    pending.location.dispose_on_failure()  # the location itself knows it too
    assert len(names_in_checkpoint(memory_directory, 1)) == 3


def test_aborted_checkpoint_leaves_no_files(memory_directory: str) -> None:
    driver = coordinator(memory_directory)
    pending = begin_checkpoint(driver, 0)
    acknowledge(pending)
    driver.abort(pending)
    assert names_in_checkpoint(memory_directory, 1) == set()


@pytest.mark.parametrize(
    ("subtasks", "word"),
    [((0,), r"subtasks \[1\] of operator .* did not report"), ((0, 1, 1), "more than once")],
)
def test_missing_or_duplicate_reports_are_declined(
    memory_directory: str, subtasks: tuple[int, ...], word: str
) -> None:
    driver = coordinator(memory_directory)
    pending = begin_checkpoint(driver, 0)
    with pytest.raises(CheckpointDeclinedError, match=word):
        driver.complete(pending, acknowledge(pending, subtasks), progress(0))
    assert coordinator(memory_directory).begin(0) is not None


def test_early_commit_failure_leaves_no_checkpoint(faults: Faults) -> None:
    driver = coordinator(faults.directory)
    pending = begin_checkpoint(driver, 0)
    faults.before("publish", StorageUnavailableError("as planned"))
    with pytest.raises(StorageUnavailableError):
        driver.complete(pending, acknowledge(pending), progress(0))
    driver.abort(pending)
    assert names_in_checkpoint(faults.inner_directory, 1) == set()


def test_commit_with_unknown_outcome_is_found_by_the_next_driver(faults: Faults) -> None:
    driver = coordinator(faults.directory)
    pending = begin_checkpoint(driver, 0)
    faults.after("publish", OutcomeUnknownError("as planned"))
    with pytest.raises(OutcomeUnknownError):
        driver.complete(pending, acknowledge(pending), progress(0))
    assert coordinator(faults.directory).begin(0) is None


def test_commit_with_a_lost_response_succeeds(faults: Faults) -> None:
    driver = coordinator(faults.directory)
    pending = begin_checkpoint(driver, 0)
    # The store performed it, the answer got lost, the repeated request met our own file.
    faults.after("publish", CheckpointConflictError("as planned"))
    driver.complete(pending, acknowledge(pending), progress(0))
    assert coordinator(faults.directory).begin(1) is not None


@pytest.mark.parametrize("num_retained", [1, 2])
def test_older_checkpoints_are_deleted_in_the_background(
    memory_directory: str, num_retained: int
) -> None:
    first = coordinator(memory_directory, num_retained=num_retained)
    run_batch(first, 0)
    run_batch(first, 1)
    CLEANER.wait()
    second = coordinator(memory_directory, num_retained=num_retained)
    run_batch(second, 2)
    run_batch(second, 3)
    CLEANER.wait()
    assert existing(memory_directory, 1, 2, 3, 4) == [1, 2, 3, 4][-num_retained:]


def test_failed_deletion_of_a_checkpoint_is_repeated_later(faults: Faults) -> None:
    driver = coordinator(faults.directory, num_retained=1)
    run_batch(driver, 0)
    faults.before("delete", StorageUnavailableError("as planned"))
    run_batch(driver, 1)
    CLEANER.wait()
    assert existing(faults.inner_directory, 1, 2) == [1, 2]
    run_batch(driver, 2)
    CLEANER.wait()
    assert existing(faults.inner_directory, 1, 2, 3) == [3]


def test_batch_with_changed_offsets_is_a_gap(memory_directory: str) -> None:
    def offsets(time_ms: int, source: str) -> str:
        return f'v1\n{{"batchTimestampMs":{time_ms}}}\n{source}'

    first = coordinator(memory_directory)
    pending = begin_checkpoint(first, 0)
    first.complete(pending, acknowledge(pending), replace(progress(0), offsets=offsets(7, "{0}")))
    for batch_id in (0, 1):
        for other in (offsets(8, "{0}"), offsets(7, "{1}")):
            with pytest.raises(BatchGapError, match="planned its batch 0 again"):
                coordinator(memory_directory).begin(batch_id, {0: other}.get)
        coordinator(memory_directory).begin(batch_id, {0: offsets(7, "{0}")}.get)
        coordinator(memory_directory).begin(batch_id, lambda _: None)  # Spark has deleted it


def test_operator_without_stored_key_types_is_restored(memory_directory: str) -> None:
    first = coordinator(memory_directory, key="id")
    pending = begin_checkpoint(first, 0)
    assert pending.key_types == {}
    first.complete(pending, acknowledge(pending), progress(0))
    pending = begin_checkpoint(first, 1)
    assert pending.key_types == {}
    pending.key_types["operator"] = ("bigint",)
    first.complete(pending, acknowledge(pending), progress(1))
    assert begin_checkpoint(coordinator(memory_directory, key="id"), 2).key_types == {
        "operator": ("bigint",)
    }
    with pytest.raises(
        InvalidRequestError, match="list state 's' is not keyed, so it can't follow"
    ):
        coordinator(memory_directory, key="id", parallelism=3).begin(2)


def test_cleared_list_state_permits_rescaling_by_key(memory_directory: str) -> None:
    first = coordinator(memory_directory, key="id")
    pending = begin_checkpoint(first, 0)
    first.complete(pending, acknowledge(pending, count=0), progress(0))
    pending = begin_checkpoint(coordinator(memory_directory, key="id", parallelism=3), 1)
    assert len(pending.assigned["operator"].subtasks) == 3
