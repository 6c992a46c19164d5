"""Starts of drivers without Spark: what they resume from and refuse, damage, and death at any step."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.checkpoints import Checkpoint
from contracts.files import files_below
from jobs.coordinator import (
    acknowledge,
    assigned_states,
    begin_checkpoint,
    coordinator,
    progress,
    run_batch,
)
from jobs.savepoint_crashes import crashes_at
from jobs.stopped_query import replace, text_of

from holdfast.errors import (
    BatchGapError,
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
)
from holdfast.locations import StoredOperator, StoredSubtask
from holdfast.locations.adapters import file_system_for
from holdfast.testing import Faults


@pytest.fixture
def finished_job(memory_directory: str) -> str:
    """A directory where job `job` has completed two checkpoints."""
    driver = coordinator(memory_directory)
    for batch_id in range(2):
        run_batch(driver, batch_id)
    return memory_directory


def metadata_of(directory: str, job_id: str = "job") -> str:
    return f"{directory}/{job_id}/chk-2/_metadata"


def check_refused(
    directory: str, error: type[CheckpointError], words: str, batch_id: int = 2, **options: str
) -> None:
    """Check that a new driver fails with an error, and claims nothing."""
    claims = files_below(f"{directory}/job/_epoch")
    with pytest.raises(error, match=words):
        coordinator(directory, **options).begin(batch_id)  # type: ignore[arg-type]
    assert files_below(f"{directory}/job/_epoch") == claims


@pytest.mark.parametrize("default", [1, 7])
def test_operator_without_parallelism_keeps_the_stored_one(finished_job: str, default: int) -> None:
    pending = begin_checkpoint(
        coordinator(finished_job, parallelism=None, default_parallelism=default), 2
    )
    assert pending.assigned["operator"].parallelism == 2


def test_new_operator_without_parallelism_has_the_default(memory_directory: str) -> None:
    pending = begin_checkpoint(
        coordinator(memory_directory, parallelism=None, default_parallelism=7), 0
    )
    assert pending.assigned["operator"].parallelism == 7


def test_unknown_store_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"no file system for gopher://.* file://"):
        coordinator("gopher://data/x")


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(InvalidRequestError, match="file:///"):
        coordinator(f"file://{tmp_path}/checkpoints")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-10], "cut off"),
        (lambda content: content[:100] + "?" + content[101:], ""),
        (lambda _: "PAR1 and so on", "not a holdfast metadata"),
        (lambda _: "", ""),
    ],
    ids=["truncated", "flipped", "another file", "empty"],
)
def test_damaged_metadata_is_refused(
    finished_job: str, damage: Callable[[str], str], words: str
) -> None:
    replace(metadata_of(finished_job), damage(text_of(metadata_of(finished_job))))
    check_refused(finished_job, CheckpointCorruptedError, rf"(?s){words}.*chk-2/_metadata")


def test_another_uid_is_refused(finished_job: str) -> None:
    words = r"operators \['operator'\], which .* it has \['other'\]\. An operator's uid must not"
    check_refused(finished_job, InvalidRequestError, words, uid="other")


def test_directory_of_another_query_is_refused(finished_job: str) -> None:
    words = "belongs to another streaming query"
    check_refused(finished_job, InvalidRequestError, words, query_id="other")


def test_checkpoint_copied_from_another_job_is_refused(finished_job: str) -> None:
    other = coordinator(finished_job, job_id="other")
    for batch_id in range(2):
        run_batch(other, batch_id)
    replace(metadata_of(finished_job), text_of(metadata_of(finished_job, "other")))
    check_refused(finished_job, CheckpointError, "metadata is of checkpoint 2 of job 'other'")


def test_lost_checkpoints_are_a_gap(finished_job: str) -> None:
    for number in (1, 2):
        file_system_for(finished_job).delete_tree(f"{finished_job}/job/chk-{number}")
    check_refused(finished_job, BatchGapError, "no completed checkpoint.* is at 2")


def test_new_spark_checkpoint_is_a_gap(finished_job: str) -> None:
    check_refused(finished_job, BatchGapError, "completed 1.* is at 0", batch_id=0)


def test_changed_partitioning_is_refused(memory_directory: str) -> None:
    run_batch(coordinator(memory_directory, key="id"), 0)
    for key, words in (
        ("name", r"partitions rows by name .* partitioned by id "),
        (["id", "name"], "by id, name"),
        (None, "partitions rows evenly, .* by id "),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            coordinator(memory_directory, key=key).begin(1)
    with pytest.raises(InvalidRequestError, match=r"list state 's'.* restart with parallelism=2"):
        coordinator(memory_directory, key="id", parallelism=3).begin(1)
    assert begin_checkpoint(coordinator(memory_directory, key="id"), 1).restored_checkpoint_id == 1


@pytest.mark.parametrize("allowed", [False, True])
def test_savepoint_without_state_is_refused(tmp_path: Path, *, allowed: bool) -> None:
    checkpoint = Checkpoint(f"file://{tmp_path}/savepoint")
    checkpoint.operators["operator"] = StoredOperator(1, 128, {0: StoredSubtask()})
    driver = coordinator(
        f"file://{tmp_path}/checkpoints",
        start=checkpoint.complete(),
        allow_non_restored_state=allowed,
    )
    if allowed:
        begin_checkpoint(driver, 0)
        return
    with pytest.raises(InvalidRequestError, match="no operator has state"):
        driver.begin(0)


def test_driver_death_at_any_call_loses_and_doubles_nothing(faults: Faults) -> None:
    """After its death the driver calls nothing for the batch, not even a clean-up."""
    outcomes = set()
    for step in itertools.count(1):
        directory = f"{faults.directory}/{step}"
        run_batch(coordinator(directory), 0)

        def batch(directory: str = directory) -> None:
            run_batch(coordinator(directory), 1)

        died = crashes_at(faults, step, batch)
        after = coordinator(directory)
        pending = after.begin(1)
        outcomes.add(pending is None)
        if pending is not None:  # the batch is run once more, from the state before it
            assert pending.restored_checkpoint_id == 1
            assert assigned_states(pending) == [b"state of 0", b"state of 1"]
            after.complete(pending, acknowledge(pending), progress(1))
        assert begin_checkpoint(after, 2).restored_checkpoint_id == 2
        if not died:
            break
    assert outcomes == {True, False}
