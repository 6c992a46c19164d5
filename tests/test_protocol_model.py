"""The commit protocol as a model: every order of steps is looked at, and every rule is needed."""

import pytest

from proof.model_checker import explore
from proof.protocol import BROKEN, explore_protocol
from proof.protocol_state import Protocol


def test_no_order_of_steps_loses_anything() -> None:
    explored = explore_protocol(Protocol(checkpoints=2))
    assert explored.problem is None, "\n".join(explored.trace)
    assert explored.states > 7_000


@pytest.mark.parametrize("rule", BROKEN)
def test_without_a_rule_something_is_lost(rule: str) -> None:
    explored = explore_protocol(BROKEN[rule])
    assert explored.problem is not None
    assert explored.trace[0] == "driver 1 starts"


def test_without_a_fence_a_late_driver_commits_an_old_checkpoint() -> None:
    explored = explore_protocol(BROKEN["without a fence"])
    assert explored.problem is not None
    assert "has completed checkpoint 1 " in explored.problem
    assert "and the job is at checkpoint 2" in explored.problem
    assert "_metadata of checkpoint 1" in explored.trace[-3]
    assert explored.trace[-1].endswith("publishes checkpoint 1")


def test_without_a_token_a_driver_adopts_the_checkpoint_of_another() -> None:
    explored = explore_protocol(BROKEN["without a commit token"])
    assert explored.problem == "driver 2 takes checkpoint 1 of driver 1 for its own"
    assert any("the request is lost" in step for step in explored.trace)


def test_a_claimed_checkpoint_keeps_its_files_after_late_commits() -> None:
    explored = explore_protocol(Protocol(starts=1, checkpoints=2, lost_answers=0, claimers=1))
    assert explored.problem is None, "\n".join(explored.trace)
    assert explored.states > 300


def test_without_the_end_of_its_job_a_late_checkpoint_lacks_files() -> None:
    explored = explore_protocol(BROKEN["a claim to a checkpoint that does not end its job"])
    assert explored.problem == (
        "checkpoint 2 is there without the shared file of checkpoint 1 of driver 1"
    )
    assert explored.trace[-3:] == (
        "driver 1 finds that checkpoint 2 counts, and stops",
        "the claimer deletes _metadata",
        "the claimer deletes the other files",
    )


def test_data_deleted_before_metadata_leaves_a_checkpoint_without_files() -> None:
    explored = explore_protocol(BROKEN["data deleted before metadata"])
    assert explored.problem is not None
    assert explored.problem.startswith("checkpoint 1 is there without the exclusive file")


def test_the_checker_finds_the_shortest_way_and_every_state() -> None:
    def steps(state: int) -> list[tuple[str, int]]:
        return [("add", min(state + 1, 9)), ("double", min(2 * state, 9))]

    explored = explore(1, steps, lambda state: "is eight" if state == 8 else None)
    assert (explored.problem, explored.trace) == ("is eight", ("add", "double", "double"))
    assert explore(1, steps, lambda _: None).states == 9
