"""Assignment of a checkpoint's state to the subtasks of a restored job. Pure functions over handles.

Nothing is read or copied: the assigned handles refer to parts of the stored streams.

Source:
    Flink, StateAssignmentOperation and RoundRobinOperatorStateRepartitioner.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from msgspec.structs import replace

from holdfast.backends.keys import (
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    key_group_range,
)
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import (
    KeyedStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask

_log = logging.getLogger(__name__)

_Handle = TypeVar("_Handle", OperatorStateHandle, RawOperatorStateHandle)
_Keyed = TypeVar("_Keyed", bound=KeyedStateHandle)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The parallelism of an operator of the job. Raises `InvalidRequestError` if a number is outside its bounds.

    Attributes:
        parallelism: Number of the operator's subtasks.
        max_parallelism: Number of key groups, 1 to 32768 and at least the parallelism. None keeps the number of
            the checkpoint; without a checkpoint it is the default.
    """

    parallelism: int
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        check_parallelism(self.max_parallelism_or_default, self.parallelism)

    @property
    def max_parallelism_or_default(self) -> int:
        """The number of key groups of an operator without stored state."""
        if self.max_parallelism is not None:
            return self.max_parallelism
        return default_max_parallelism(self.parallelism)


@dataclass(frozen=True, slots=True)
class AssignedOperator:
    """The state that an operator of a restored job starts with.

    Attributes:
        max_parallelism: Number of its key groups.
        subtasks: The state that each subtask is restored from; empty for subtasks without state.
    """

    max_parallelism: int
    subtasks: tuple[StoredSubtask, ...]

    @classmethod
    def without_state(cls, settings: OperatorSettings) -> Self:
        """Return an operator whose subtasks start without state."""
        return cls(settings.max_parallelism_or_default, (StoredSubtask(),) * settings.parallelism)

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

    An operator without state in the checkpoint starts empty.

    Args:
        stored: The checkpoint.
        wanted: The job's operators by uid.
        allow_non_restored_state: Whether state of operators that the job no longer has is skipped.

    Returns:
        The state that each wanted operator starts with, by uid. Statistics are not restored.

    Raises:
        InvalidRequestError: State has no operator in the job and skipping it is not allowed, or an operator's
            parallelism or max parallelism is incompatible with its state.
        CheckpointCorruptedError: An operator has state of a subtask beyond its parallelism.
    """
    with_state = {uid: state for uid, state in stored.operators.items() if state.streams()}
    non_restored = sorted(with_state.keys() - wanted.keys())
    if non_restored and not allow_non_restored_state:
        raise InvalidRequestError(
            f"checkpoint {stored.checkpoint_id} of job {stored.job_id} has state of operators {non_restored}, "
            "which this job doesn't have; give the operators these uids again, or skip their state with "
            "allow_non_restored_state=True"
        )
    if non_restored:
        _log.warning(
            "not restored from checkpoint %d of job %s: the state of operators %s, which this job doesn't have",
            stored.checkpoint_id,
            stored.job_id,
            non_restored,
        )
    return {
        uid: _assign_operator(uid, with_state[uid], settings)
        if uid in with_state
        else AssignedOperator.without_state(settings)
        for uid, settings in wanted.items()
    }


def _assign_operator(
    uid: str, state: StoredOperator, settings: OperatorSettings
) -> AssignedOperator:
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
        managed_keyed = _split_by_key_groups(managed_keyed, ranges)
        raw_keyed = _split_by_key_groups(raw_keyed, ranges)
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
        message = f"operator {uid!r} was stored with parallelism {state.parallelism}, but has state of subtasks {beyond}"
        raise CheckpointCorruptedError(message)
    fixed = state.max_parallelism
    if settings.parallelism > fixed:
        raise InvalidRequestError(
            f"operator {uid!r} has parallelism {settings.parallelism}, but its state was stored "
            f"with max parallelism {fixed}; reduce the parallelism to at most {fixed}",
            kind="parallelism",
        )
    if settings.max_parallelism not in {None, fixed}:
        raise InvalidRequestError(
            f"operator {uid!r} has max parallelism {settings.max_parallelism}, but its state was "
            f"stored with {fixed}, which can't be changed; set {fixed} or leave it out",
            kind="parallelism",
        )


def _split_by_key_groups(
    handles: Sequence[tuple[_Keyed, ...]], ranges: Sequence[KeyGroupRange]
) -> list[tuple[_Keyed, ...]]:
    """Return the parts of all handles that belong to each range of key groups."""
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


def redistribute(
    handles: Sequence[Sequence[OperatorStateHandle | None]], parallelism: int
) -> list[tuple[OperatorStateHandle, ...]]:
    """Redistribute managed operator state, each state by its mode.

    `SPLIT_DISTRIBUTE`: the elements of all subtasks, in order, are cut into one run per subtask.
        Over all such states, the elements of two subtasks differ in number by at most one.
        At an unchanged parallelism they stay where they were.
    `UNION`: every subtask gets all elements. The elements of each old subtask belong to one new subtask,
        which stores them even if the operator doesn't use the state; the other subtasks get them as copies.
    `BROADCAST`: every subtask gets one of the copies.

    A state without elements is assigned too, to at least one subtask, because its type is stored. The
    time is proportional to the number of states in the old and new handles, not to their elements.

    Args:
        handles: The handles of each old subtask, in order; None counts as absent.
        parallelism: The new number of subtasks. Raises `InvalidRequestError` if it is below 1.

    Returns:
        The handles of each new subtask: at most one for each old handle, and in the same order,
        so that the elements of each state keep theirs.
    """
    sources = _with_subtasks(handles, parallelism)
    holders: dict[tuple[OperatorStateMode, str], list[int]] = {}
    for number, (_, handle) in enumerate(sources):
        for name, partitions in handle.states.items():
            holders.setdefault((partitions.mode, name), []).append(number)

    # By the old handle's number, because parts of one handle become one handle.
    given: list[dict[int, dict[str, StatePartitions]]] = [{} for _ in range(parallelism)]
    start = 0
    for (mode, name), numbers in holders.items():
        stored = [sources[number][1].states[name] for number in numbers]
        counts = [partitions.count for partitions in stored]
        match mode:
            case OperatorStateMode.UNION:
                runs = _copy_to_all(counts, [sources[number][0] for number in numbers], parallelism)
            case OperatorStateMode.BROADCAST:
                runs = _round_robin(counts, parallelism)
            case _ if len(handles) == parallelism:
                runs = _keep_subtasks(counts, [sources[number][0] for number in numbers])
            case _:
                runs = _split_evenly(counts, parallelism, start)
                # The next state begins where the remainder of this one ended, else the first
                # subtasks would get an additional element of each.
                start = (start + sum(counts)) % parallelism
        for subtask, source, first, count, is_copy in runs:
            whole = stored[source]
            part = replace(whole, first=whole.first + first, count=count, is_copy=is_copy)
            given[subtask].setdefault(numbers[source], {})[name] = part
    return [
        tuple(
            OperatorStateHandle(states, sources[number][1].stream)
            for number, states in sorted(of_subtask.items())
        )
        for of_subtask in given
    ]


def redistribute_raw(
    handles: Sequence[Sequence[RawOperatorStateHandle | None]], parallelism: int
) -> list[tuple[RawOperatorStateHandle, ...]]:
    """Redistribute raw operator state: partitions as `redistribute` does with the elements of one state."""
    sources = _with_subtasks(handles, parallelism)
    counts = [len(handle.partitions) for _, handle in sources]
    if len(handles) == parallelism:
        runs = _keep_subtasks(counts, [subtask for subtask, _ in sources])
    else:
        runs = _split_evenly(counts, parallelism, start=0)
    given: list[list[RawOperatorStateHandle]] = [[] for _ in range(parallelism)]
    for subtask, source, first, count, _ in runs:
        handle = sources[source][1]
        part = replace(handle, partitions=handle.partitions[first : first + count])
        given[subtask].append(part)
    return [tuple(of_subtask) for of_subtask in given]


class _Run(NamedTuple):
    """Consecutive elements of one source for one subtask; `first` counts from the source's first element."""

    subtask: int
    source: int
    first: int
    elements: int
    is_copy: bool = False


def _with_subtasks(
    handles: Sequence[Sequence[_Handle | None]], parallelism: int
) -> list[tuple[int, _Handle]]:
    """Return the handles that are not None, each with its old subtask."""
    if parallelism < 1:
        raise InvalidRequestError(f"parallelism must be >= 1, got {parallelism}")
    return [
        (subtask, handle)
        for subtask, of_subtask in enumerate(handles)
        for handle in of_subtask
        if handle is not None
    ]


def _split_evenly(counts: Sequence[int], parallelism: int, start: int) -> Iterator[_Run]:
    """Give each subtask one run of elements, starting at subtask `start` and wrapping around.

    Sources without elements go with the elements that follow them, or with the last ones.
    """
    total = sum(counts)
    share, remainder = divmod(total, parallelism)
    subtask, source, first = start, 0, 0
    for offset in range(min(total, parallelism)):
        subtask = (start + offset) % parallelism
        wanted = share + (offset < remainder)
        while wanted:
            count = min(wanted, counts[source] - first)
            yield _Run(subtask, source, first, count)
            wanted -= count
            first += count
            if first == counts[source]:
                source, first = source + 1, 0
    for empty in range(source, len(counts)):
        yield _Run(subtask, empty, 0, 0)


def _keep_subtasks(counts: Sequence[int], subtasks: Sequence[int]) -> Iterator[_Run]:
    """Give each source to its old subtask."""
    for source, (subtask, count) in enumerate(zip(subtasks, counts, strict=True)):
        yield _Run(subtask, source, 0, count)


def _copy_to_all(
    counts: Sequence[int], subtasks: Sequence[int], parallelism: int
) -> Iterator[_Run]:
    """Give each source to every subtask. Its old subtask stores it, if that subtask still exists."""
    for subtask in range(parallelism):
        for source, (before, count) in enumerate(zip(subtasks, counts, strict=True)):
            yield _Run(subtask, source, 0, count, is_copy=before % parallelism != subtask)


def _round_robin(counts: Sequence[int], parallelism: int) -> Iterator[_Run]:
    """Give every subtask one source."""
    for subtask in range(parallelism):
        source = subtask % len(counts)
        yield _Run(subtask, source, 0, counts[source])
