"""What a driver goes on from, and what it refuses, without Spark: damage, mix-ups, and death at any step."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.checkpoints import Checkpoint
from contracts.values import read
from jobs.coordinator import acknowledge, begin_checkpoint, coordinator, progress, run_batch
from jobs.savepoint_crashes import crashes_at

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
def ran(memory_directory: str) -> str:
    """A directory where job `job` has completed two checkpoints."""
    driver = coordinator(memory_directory)
    for batch_id in range(2):
        run_batch(driver, batch_id)
    return memory_directory


def metadata_of(directory: str, job_id: str = "job") -> str:
    return f"{directory}/{job_id}/chk-2/_metadata"


def content_of(uri: str) -> bytes:
    with file_system_for(uri).open(uri) as stream:
        return stream.read()


def replace(uri: str, content: bytes) -> None:
    file_system = file_system_for(uri)
    file_system.delete([uri])
    stream = file_system.create(uri)
    stream.write(content)
    stream.commit()


def check_refused(
    directory: str, error: type[CheckpointError], words: str, batch_id: int = 2, **options: str
) -> None:
    """A driver that is started there fails so, and whoever has the job keeps it."""
    claims = sorted(
        entry.uri for entry in file_system_for(directory).list(f"{directory}/job/_epoch")
    )
    with pytest.raises(error, match=words):
        coordinator(directory, **options).begin(batch_id)  # type: ignore[arg-type]
    assert claims == sorted(
        entry.uri for entry in file_system_for(directory).list(f"{directory}/job/_epoch")
    )


@pytest.mark.parametrize("default", [1, 7])
def test_operator_without_parallelism_keeps_that_of_the_checkpoint(ran: str, default: int) -> None:
    pending = begin_checkpoint(coordinator(ran, parallelism=None, default_parallelism=default), 2)
    assert pending.assigned["operator"].parallelism == 2


def test_new_operator_without_parallelism_has_the_default(memory_directory: str) -> None:
    pending = begin_checkpoint(
        coordinator(memory_directory, parallelism=None, default_parallelism=7), 0
    )
    assert pending.assigned["operator"].parallelism == 7


def test_an_unknown_store_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"no file system for gopher://.* file://"):
        coordinator("gopher://data/x")


def test_a_file_in_the_way_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(InvalidRequestError, match="file:///"):
        coordinator(f"file://{tmp_path}/checkpoints")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-10], "cut off"),
        (lambda content: content[:100] + b"?" + content[101:], ""),
        (lambda _: b"PAR1 and so on", "not a holdfast metadata"),
        (lambda _: b"", ""),
    ],
    ids=["truncated", "flipped", "another file", "empty"],
)
def test_damaged_metadata_is_refused(
    ran: str, damage: Callable[[bytes], bytes], words: str
) -> None:
    replace(metadata_of(ran), damage(content_of(metadata_of(ran))))
    check_refused(ran, CheckpointCorruptedError, rf"(?s){words}.*chk-2/_metadata")


def test_another_uid_is_refused(ran: str) -> None:
    words = r"operators \['operator'\], which .* it has \['other'\]\. An operator's uid must not"
    check_refused(ran, InvalidRequestError, words, uid="other")


def test_a_directory_of_another_query_is_refused(ran: str) -> None:
    words = "belongs to another streaming query"
    check_refused(ran, InvalidRequestError, words, query_id="other")


def test_a_checkpoint_copied_from_another_job_is_refused(ran: str) -> None:
    other = coordinator(ran, job_id="other")
    for batch_id in range(2):
        run_batch(other, batch_id)
    replace(metadata_of(ran), content_of(metadata_of(ran, "other")))
    check_refused(ran, CheckpointError, "metadata is of checkpoint 2 of job 'other'")


def test_checkpoints_that_vanished_are_a_gap(ran: str) -> None:
    for number in (1, 2):
        file_system_for(ran).delete_tree(f"{ran}/job/chk-{number}")
    check_refused(ran, BatchGapError, "no completed checkpoint.* is at 2")


def test_a_spark_checkpoint_that_started_over_is_a_gap(ran: str) -> None:
    check_refused(ran, BatchGapError, "completed 1.* is at 0", batch_id=0)


def test_changed_partitioning_is_refused(memory_directory: str) -> None:
    run_batch(coordinator(memory_directory, key="id"), 0)
    for key, words in (
        ("name", r"partitions rows by name .* partitioned by id "),
        (["id", "name"], "by id, name"),
        (None, "partitions rows evenly, .* by id "),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            coordinator(memory_directory, key=key).begin(1)
    with pytest.raises(InvalidRequestError, match=r"list state 's'.* Use parallelism 2"):
        coordinator(memory_directory, key="id", parallelism=3).begin(1)
    assert begin_checkpoint(coordinator(memory_directory, key="id"), 1).restored_checkpoint_id == 1


@pytest.mark.parametrize("allowed", [False, True])
def test_a_savepoint_without_state_is_nothing_to_begin_with(
    tmp_path: Path, *, allowed: bool
) -> None:
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


def test_a_driver_that_dies_at_any_call_to_the_store_loses_and_doubles_nothing(
    faults: Faults,
) -> None:
    """Nothing that the driver does for a batch is called after its death, no clean-up either."""
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
            states = [
                read(state.managed_operator[0].stream)
                for state in pending.assigned["operator"].subtasks
            ]
            assert states == [b"state of 0", b"state of 1"]
            after.complete(pending, acknowledge(pending), progress(1))
        assert begin_checkpoint(after, 2).restored_checkpoint_id == 2
        if not died:
            break
    assert outcomes == {True, False}
