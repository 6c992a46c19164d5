"""`proof.crash_points`: it crashes at points of a whole job, and detects wrong states afterwards."""

import pytest
from contracts.files import write
from jobs.segments import shared_files

from holdfast.errors import CheckpointError
from holdfast.locations.adapters import file_system_for
from proof.crash_points import crash_everywhere, resume_job
from proof.dying_commands import die_everywhere


def test_job_killed_around_any_call_resumes(memory_directory: str) -> None:
    crashes = crash_everywhere(memory_directory, every=60)
    assert crashes.calls > 300
    assert crashes.points > 2 * (crashes.calls // 90)
    assert crashes.restarts == crashes.states > 3
    assert not crashes.failures


def test_error_after_restart_is_reported_with_crash_point(memory_directory: str) -> None:
    def fails(_: str, completed: int) -> None:
        raise ValueError(f"wrong state after {completed}")

    crashes = crash_everywhere(memory_directory, every=100, restart=fails)
    assert len(crashes.failures) == crashes.restarts > 2
    assert crashes.failures[-1].startswith(("before call", "after call"))
    assert "ValueError: wrong state after" in crashes.failures[-1]


@pytest.mark.parametrize("damage", ["lost file", "garbage", "lost checkpoint"])
def test_restart_after_corruption_is_not_skipped(memory_directory: str, damage: str) -> None:
    """`go_on` detects each damage; a wrong order of calls would leave it."""
    detected = []

    def damage_and_resume(directory: str, completed: int) -> None:
        if completed < 7:
            return
        store = file_system_for(directory)
        if damage == "lost file":
            store.delete(shared_files(directory))
        elif damage == "garbage":
            write(store, f"{directory}/job/of-nobody", b"garbage")
        else:
            store.delete_tree(f"{directory}/job/chk-{completed + 1}")
            store.delete_tree(f"{directory}/job/chk-{completed}")
        with pytest.raises((AssertionError, CheckpointError)):
            resume_job(directory, completed)
        detected.append(completed)

    crashes = crash_everywhere(memory_directory, every=25, restart=damage_and_resume)
    assert not crashes.failures
    assert detected


def test_killed_savepoint_commands_leave_no_partial_result(
    memory_directory: str,
) -> None:
    died, failures = die_everywhere(memory_directory, every=90)
    assert failures == []
    assert died >= 4
