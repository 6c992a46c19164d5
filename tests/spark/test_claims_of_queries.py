"""Rollbacks, savepoints, restores and lists of claimed checkpoints, without Spark."""

import json

import pytest
from contracts.files import files_below
from jobs.coordinator import begin_checkpoint, coordinator
from jobs.segments import add_segment, run_batch
from jobs.stopped_query import QUERY

from holdfast import restore_savepoint, roll_back, take_savepoint
from holdfast.cli.command_line import main
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations import load_checkpoint, verify_files
from holdfast.locations.coordination import read_claim
from holdfast.locations.storages import resolve_pointer
from holdfast.spark.query import CLEANER
from holdfast.spark_progress import all_streams
from holdfast.testing import Faults

pytestmark = pytest.mark.usefixtures("as_without_spark")


def claim(directory: str, pointer: str) -> None:
    """Claim a checkpoint for the job `next`, which runs no batch yet."""
    begin_checkpoint(coordinator(directory, job_id="next", start=pointer, claims_start=True), 0)


def claim_and_run(directory: str, pointer: str) -> None:
    """Claim a checkpoint for the job `next`, and run a batch that no longer needs it."""
    driver = coordinator(
        directory,
        job_id="next",
        start=pointer,
        claims_start=True,
        num_retained=1,
        allow_non_restored_state=True,
    )
    run_batch(driver, 0, add_segment(b"new"))
    CLEANER.wait()


def test_rollback_of_a_claimed_checkpoint_is_refused(directory: str, stopped_query: str) -> None:
    checkpoints = f"{directory}/checkpoints"
    claim(checkpoints, f"{checkpoints}/{QUERY}/chk-4")
    before = files_below(directory)
    with pytest.raises(CheckpointConflictError, match="has claimed") as error:
        roll_back(stopped_query, checkpoint=2)
    assert error.value.kind == "claimed"
    assert files_below(directory) == before


def test_rollback_during_a_claim_is_refused(
    faults: Faults, directory: str, stopped_query: str
) -> None:
    checkpoints = f"{directory}/checkpoints"

    def claim_now() -> None:
        faults.clear()
        claim(checkpoints, f"{checkpoints}/{QUERY}/chk-4")

    faults.before("publish", claim_now)  # of the claim to the job
    with pytest.raises(CheckpointConflictError, match="has claimed"):
        roll_back(stopped_query, checkpoint=2)
    assert read_claim(f"{checkpoints}/{QUERY}/chk-4") is not None
    for number in (1, 2, 3, 4):
        checkpoint = load_checkpoint(resolve_pointer(f"{checkpoints}/{QUERY}/chk-{number}"))
        assert all(file.failure is None for file in verify_files(checkpoint.metadata.streams()))


def test_savepoint_with_a_claimed_base_is_refused(directory: str, stopped_query: str) -> None:
    base = take_savepoint(stopped_query, f"{directory}/savepoints")
    claim(f"{directory}/checkpoints", base)
    with pytest.raises(InvalidRequestError, match="base was claimed by job 'next'"):
        take_savepoint(stopped_query, f"{directory}/savepoints", base=base)


def test_claimed_savepoint_stays_while_it_is_a_base(directory: str, stopped_query: str) -> None:
    base = take_savepoint(stopped_query, f"{directory}/savepoints")
    later = take_savepoint(stopped_query, f"{directory}/savepoints", base=base)
    claim_and_run(f"{directory}/checkpoints", base)
    based = load_checkpoint(resolve_pointer(later))
    assert all(file.failure is None for file in verify_files(all_streams(based)))


def test_claimed_savepoint_is_deleted_with_the_files_of_spark(
    directory: str, stopped_query: str
) -> None:
    savepoint = take_savepoint(stopped_query, f"{directory}/savepoints")
    claim_and_run(f"{directory}/checkpoints", savepoint)
    assert files_below(f"{directory}/savepoints") == set()


def test_savepoint_with_a_base_can_not_be_claimed(directory: str, stopped_query: str) -> None:
    base = take_savepoint(stopped_query, f"{directory}/savepoints")
    later = take_savepoint(stopped_query, f"{directory}/savepoints", base=base)
    with pytest.raises(InvalidRequestError, match="belongs to another checkpoint or savepoint"):
        claim(f"{directory}/checkpoints", later)


def test_fork_of_a_claimed_savepoint_copies_its_files(directory: str, stopped_query: str) -> None:
    savepoint = take_savepoint(stopped_query, f"{directory}/savepoints")
    claim(f"{directory}/checkpoints", savepoint)
    before = files_below(savepoint)
    restore_savepoint(
        savepoint, f"{directory}/fork", checkpoint_dir=f"{directory}/forked", job_id="fork"
    )
    fork = load_checkpoint(resolve_pointer(f"{directory}/forked/fork/chk-4"))
    assert fork.metadata.claimed == ()
    assert all(
        file.uri.startswith(f"{directory}/forked/")
        for file in verify_files(fork.metadata.streams())
    )
    assert files_below(savepoint) == before


def test_commands_show_claims(memory_directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_batch(coordinator(memory_directory, job_id="former"), 0, add_segment(b"old"))
    pointer = f"{memory_directory}/former/chk-1"
    driver = coordinator(memory_directory, job_id="next", start=pointer, claims_start=True)
    run_batch(driver, 0, add_segment(b"new"))
    assert main(["list", memory_directory]) == 0
    assert "chk-1 (claimed by job next)" in capsys.readouterr().out
    assert main(["list", memory_directory, "--json"]) == 0
    former, after = json.loads(capsys.readouterr().out)
    assert former["claimed_by"]["job"] == "next"
    assert former["claimed_by"]["directory"] == f"{memory_directory}/next"
    assert (after["claimed_by"], after["has_claimed"]) == (None, [pointer])
    assert after["referenced_bytes"] > 0
    assert main(["show", pointer]) == 0
    assert f"job next in {memory_directory}/next" in capsys.readouterr().out
    assert main(["show", f"{memory_directory}/next/chk-1"]) == 0
    assert pointer in capsys.readouterr().out
    assert main(["verify", f"{memory_directory}/next"]) == 0
    assert main(["copy", f"{memory_directory}/next", f"{memory_directory}/copies"]) == 0
    assert main(["clean", memory_directory, "--grace", "0s", "--stopped", "--yes"]) in (0, 1)
    assert main(["verify", f"{memory_directory}/next"]) == 0
