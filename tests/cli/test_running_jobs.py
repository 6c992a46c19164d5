"""Commands whose checkpoint is deleted by its running job: they read the newer checkpoint, or report the deletion."""

import json
from pathlib import Path
from typing import Any

import pytest
from jobs.stores import UID, write_checkpoint

from holdfast.cli import main
from holdfast.locations import CompletedCheckpoint
from holdfast.locations.coordination import find_checkpoint, job_histories
from holdfast.testing import Faults

COMMANDS = {
    "verify": ["verify", "--json"],
    "verify all": ["verify", "--all", "--json"],
    "show": ["show", "--json"],
    "list": ["list", "--json"],
    "states": ["cat", "--json"],
    "rows": ["cat", "--json"],
}


class RunningJob:
    """A job that keeps one checkpoint, and completes the next one on request."""

    def __init__(self, faults: Faults) -> None:
        self._directory = faults.inner_directory
        self.last = self._complete(1)

    def complete_next(self) -> None:
        before = self.last
        self.last = self._complete(before.checkpoint_id + 1)
        before.discard()

    def _complete(self, number: int) -> CompletedCheckpoint:
        return write_checkpoint(self._directory, number, elements=number)


@pytest.fixture
def job(faults: Faults) -> RunningJob:
    return RunningJob(faults)


def printed_numbers(name: str, printed: str) -> set[Any]:
    """Return the ids of the checkpoints in the output of a command; of rows, their number."""
    if name == "rows":
        return {len(printed.splitlines()) - 1}
    if name == "states":
        rows = [json.loads(line) for line in printed.splitlines()]
        return {row["stored_elements"] - 1 for row in rows if row["state"] == "seen"}
    value = json.loads(printed)
    if name == "list":
        return {row["checkpoint"] for row in value}
    if name == "show":
        return {value["checkpoint"]}
    assert value["failed"] == []
    return {int(pointer.rpartition("-")[2]) for pointer in value["checkpoints"]}


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("name", COMMANDS)
def test_command_follows_a_job_to_its_newer_checkpoint(
    name: str, nth: int, faults: Faults, job: RunningJob, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = COMMANDS[name]
    directory = f"{faults.directory}/job" if command != "list" else faults.directory
    state = [UID, "seen"] if name == "rows" else []
    faults.before("open", job.complete_next, nth)
    status = main([command, directory, *state, *options])
    printed = capsys.readouterr()
    if name == "rows" and status:  # it had begun to print them
        assert status == 3
        assert "the printed rows are not complete" in printed.err
    else:
        assert status == 0
        assert printed_numbers(name, printed.out) in ({1}, {2})


@pytest.mark.parametrize("nth", range(1, 7))
def test_copy_and_diff_follow_a_job_to_its_newer_checkpoint(
    nth: int, faults: Faults, job: RunningJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults.before("open", job.complete_next, nth)
    assert main(["copy", f"{faults.directory}/job", f"file://{tmp_path}", "--json"]) == 0
    copied = json.loads(capsys.readouterr().out)
    [directory] = tmp_path.iterdir()
    assert directory.as_uri() == copied["pointer"]
    assert find_checkpoint(copied["pointer"]).checkpoint_id == int(
        copied["from"].rpartition("-")[2]
    )
    faults.calls.clear()
    faults.before("open", job.complete_next, nth)
    assert main(["diff", copied["pointer"], f"{faults.directory}/job", "--json"]) in (0, 1)
    compared = json.loads(capsys.readouterr().out)
    assert 1 <= compared["second"]["checkpoint"] <= job.last.checkpoint_id


def test_deletion_of_the_named_checkpoint_is_reported(
    faults: Faults, job: RunningJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = f"{faults.directory}/job/chk-1"
    faults.before("open", job.complete_next, 2)
    assert main(["copy", pointer, f"file://{tmp_path}"]) == 3
    errors = capsys.readouterr().err
    assert "the job deleted this checkpoint" in errors
    assert f"{faults.directory}/job" in errors
    assert list(tmp_path.iterdir()) == []


def test_job_with_too_fast_deletions_is_reported(
    faults: Faults, job: RunningJob, capsys: pytest.CaptureFixture[str]
) -> None:
    faults.before("open", job.complete_next, "every")
    for command in (["verify", "--all"], ["verify"], ["show"]):
        assert main([*command, f"{faults.directory}/job"]) in (1, 3)
        assert "faster than they" in capsys.readouterr().err


def test_history_of_a_running_job_has_its_newest_checkpoint(
    faults: Faults, job: RunningJob
) -> None:
    faults.before("open", job.complete_next, 1)
    [history] = job_histories(faults.directory)
    assert [checkpoint.checkpoint_id for checkpoint in history.checkpoints] == [2]
