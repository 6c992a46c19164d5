"""Which state of a checkpoint each subtask of a job is restored from. Pure functions.

Source:
    Flink, StateAssignmentOperation.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.backends.assignment.redistribution import redistribute, redistribute_raw
from holdfast.backends.keys import (
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    key_group_range,
)
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import KeyedStateHandle
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How an operator of the job is to run.

    Attributes:
        parallelism: Number of the operator's subtasks.
        max_parallelism: Number of key groups, 1 to 32768 and at least the parallelism. None goes
            on with the number in the checkpoint, or else takes the default.

    Raises:
        InvalidRequestError: A number is outside its bounds.
    """

    parallelism: int
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        check_parallelism(self.max_parallelism_or_default, self.parallelism)

    @property
    def max_parallelism_or_default(self) -> int:
        """The number of key groups if no checkpoint says otherwise."""
        if self.max_parallelism is not None:
            return self.max_parallelism
        return default_max_parallelism(self.parallelism)


@dataclass(frozen=True, slots=True)
class AssignedOperator:
    """The state that an operator of a restored job begins with.

    Attributes:
        max_parallelism: Number of its key groups.
        subtasks: The state that each subtask is restored from; empty where there is none.
    """

    max_parallelism: int
    subtasks: tuple[StoredSubtask, ...]

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""
        return len(self.subtasks)


def assign(
    stored: CheckpointMetadata,
    wanted: Mapping[str, OperatorSettings],
    *,
    allow_non_restored_state: bool = False,
) -> dict[str, AssignedOperator]:
    """Divide the state of a checkpoint among the subtasks of a job.

    An operator that has no state in the checkpoint begins without state.

    Args:
        stored: The checkpoint.
        wanted: The job's operators by uid.
        allow_non_restored_state: Whether state of operators that the job no longer has may be
            left behind.

    Returns:
        The state that each wanted operator begins with, by uid. Statistics are not restored.

    Raises:
        InvalidRequestError: The job has no operator for some of the state and doesn't allow that,
            or an operator's parallelism or max parallelism doesn't go with its state.
        CheckpointCorruptedError: An operator has state of a subtask that it didn't have.
    """
    with_state = {uid: state for uid, state in stored.operators.items() if state.streams()}
    left_behind = sorted(with_state.keys() - wanted.keys())
    if left_behind and not allow_non_restored_state:
        message = (
            f"checkpoint {stored.checkpoint_id} of job {stored.job_id} has state of operators "
            f"{left_behind}, which this job doesn't have; if that is meant, leave it behind with "
            "allow_non_restored_state=True, else give the operators these uids again"
        )
        raise InvalidRequestError(message)
    if left_behind:
        _log.warning(
            "left behind in checkpoint %d of job %s: the state of operators %s, which this job "
            "doesn't have",
            stored.checkpoint_id,
            stored.job_id,
            left_behind,
        )
    return {
        uid: _assigned(uid, with_state[uid], settings)
        if uid in with_state
        else AssignedOperator(
            settings.max_parallelism_or_default, (StoredSubtask(),) * settings.parallelism
        )
        for uid, settings in wanted.items()
    }


def _assigned(uid: str, state: StoredOperator, settings: OperatorSettings) -> AssignedOperator:
    _check(uid, state, settings)
    old = [state.subtasks.get(index, StoredSubtask()) for index in range(state.parallelism)]
    parallelism = settings.parallelism
    managed_operator = redistribute([subtask.managed_operator for subtask in old], parallelism)
    raw_operator = redistribute_raw([subtask.raw_operator for subtask in old], parallelism)
    managed_keyed = [subtask.managed_keyed for subtask in old]
    raw_keyed = [subtask.raw_keyed for subtask in old]
    if parallelism != state.parallelism:
        ranges = [
            key_group_range(state.max_parallelism, parallelism, index)
            for index in range(parallelism)
        ]
        managed_keyed = _rescaled(managed_keyed, ranges)
        raw_keyed = _rescaled(raw_keyed, ranges)
    subtasks = tuple(
        StoredSubtask(
            managed_operator=managed_operator[index],
            raw_operator=raw_operator[index],
            managed_keyed=managed_keyed[index],
            raw_keyed=raw_keyed[index],
        )
        for index in range(parallelism)
    )
    return AssignedOperator(state.max_parallelism, subtasks)


def _check(uid: str, state: StoredOperator, settings: OperatorSettings) -> None:
    beyond = sorted(index for index in state.subtasks if not 0 <= index < state.parallelism)
    if beyond:
        message = (
            f"operator {uid!r} was stored with parallelism {state.parallelism}, but with state of "
            f"subtasks {beyond}"
        )
        raise CheckpointCorruptedError(message)
    fixed = state.max_parallelism
    if settings.parallelism > fixed:
        message = (
            f"operator {uid!r} has parallelism {settings.parallelism}, but its state was stored "
            f"with max parallelism {fixed}; reduce the parallelism to at most {fixed}"
        )
        raise InvalidRequestError(message)
    if settings.max_parallelism not in {None, fixed}:
        message = (
            f"operator {uid!r} has max parallelism {settings.max_parallelism}, but its state was "
            f"stored with {fixed}, which can't be changed; set {fixed} or leave it out"
        )
        raise InvalidRequestError(message)


_Keyed = TypeVar("_Keyed", bound=KeyedStateHandle)


def _rescaled(
    handles: Sequence[tuple[_Keyed, ...]], ranges: Sequence[KeyGroupRange]
) -> list[tuple[_Keyed, ...]]:
    """For each range of key groups, the parts of all handles that belong to it."""
    return [
        tuple(
            part
            for of_subtask in handles
            for handle in of_subtask
            if (part := handle.intersection(key_groups.start_key_group, key_groups.end_key_group))
            is not None
        )
        for key_groups in ranges
    ]
