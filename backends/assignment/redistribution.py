"""Which operator state each subtask gets when a job goes on at another parallelism. Pure functions.

Nothing is read or copied: the new handles lead to parts of the old streams.

Source:
    Flink, RoundRobinOperatorStateRepartitioner.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import (
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
)

_Handle = TypeVar("_Handle", OperatorStateHandle, RawOperatorStateHandle)


def redistribute(
    handles: Sequence[Sequence[OperatorStateHandle | None]], parallelism: int
) -> list[tuple[OperatorStateHandle, ...]]:
    """Spread managed operator state, each state by its mode.

    `SPLIT_DISTRIBUTE`: the elements of all subtasks, in order, are cut into one run per subtask.
        Over all such states, the elements of two subtasks differ in number by at most one.
        At an unchanged parallelism they stay where they were.
    `UNION`: every subtask gets all elements. The elements of each old subtask belong to one new subtask,
        which stores them if nobody asks for the state; the other subtasks get them as copies.
    `BROADCAST`: every subtask gets one of the copies.

    A state without elements is carried on too, by one subtask at least: its type is stored. The
    time is proportional to the states in the handles given and returned, not to their elements.

    Args:
        handles: The handles of each old subtask, in order; None counts as absent.
        parallelism: The new number of subtasks, at least 1.

    Returns:
        The handles of each new subtask: at most one for each old handle, and in the same order,
        so that the elements of each state keep theirs.

    Raises:
        InvalidRequestError: The parallelism is below 1.
    """
    sources = _present(handles, parallelism)
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
                pieces = _to_all(counts, [sources[number][0] for number in numbers], parallelism)
            case OperatorStateMode.BROADCAST:
                pieces = _one_each(counts, parallelism)
            case _ if len(handles) == parallelism:
                pieces = _as_before(counts, [sources[number][0] for number in numbers])
            case _:
                pieces = _dealt(counts, parallelism, start)
                # The next state begins where the remainder of this one ended, else the first
                # subtasks would get one element more of each.
                start = (start + sum(counts)) % parallelism
        for subtask, source, first, count, is_copy in pieces:
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
    """Spread raw operator state: partitions as `redistribute` spreads elements of one state.

    Raises:
        InvalidRequestError: The parallelism is below 1.
    """
    sources = _present(handles, parallelism)
    counts = [len(handle.partitions) for _, handle in sources]
    if len(handles) == parallelism:
        pieces = _as_before(counts, [subtask for subtask, _ in sources])
    else:
        pieces = _dealt(counts, parallelism, start=0)
    given: list[list[RawOperatorStateHandle]] = [[] for _ in range(parallelism)]
    for subtask, source, first, count, _ in pieces:
        handle = sources[source][1]
        part = replace(handle, partitions=handle.partitions[first : first + count])
        given[subtask].append(part)
    return [tuple(of_subtask) for of_subtask in given]


class _Piece(NamedTuple):
    """Elements of one source for one subtask; `first` counts from the first that the source has."""

    subtask: int
    source: int
    first: int
    elements: int
    is_copy: bool = False


def _present(
    handles: Sequence[Sequence[_Handle | None]], parallelism: int
) -> list[tuple[int, _Handle]]:
    """The handles that are not None, each with the subtask that it comes from."""
    if parallelism < 1:
        raise InvalidRequestError(f"parallelism {parallelism} is below 1")
    return [
        (subtask, handle)
        for subtask, of_subtask in enumerate(handles)
        for handle in of_subtask
        if handle is not None
    ]


def _dealt(counts: Sequence[int], parallelism: int, start: int) -> Iterator[_Piece]:
    """One run of elements for each subtask, beginning at subtask `start` and wrapping around.

    Sources without elements go with the elements that follow them, or with the last ones.
    """
    total = sum(counts)
    share, remainder = divmod(total, parallelism)
    subtask, source, first = start, 0, 0
    for turn in range(min(total, parallelism)):
        subtask = (start + turn) % parallelism
        wanted = share + (turn < remainder)
        while wanted:
            count = min(wanted, counts[source] - first)
            yield _Piece(subtask, source, first, count)
            wanted -= count
            first += count
            if first == counts[source]:
                source, first = source + 1, 0
    for empty in range(source, len(counts)):
        yield _Piece(subtask, empty, 0, 0)


def _as_before(counts: Sequence[int], subtasks: Sequence[int]) -> Iterator[_Piece]:
    """Each source goes to the subtask that it comes from."""
    for source, (subtask, count) in enumerate(zip(subtasks, counts, strict=True)):
        yield _Piece(subtask, source, 0, count)


def _to_all(counts: Sequence[int], subtasks: Sequence[int], parallelism: int) -> Iterator[_Piece]:
    """Each source goes to every subtask. The subtask that it comes from stores it, if that subtask still exists."""
    for subtask in range(parallelism):
        for source, (before, count) in enumerate(zip(subtasks, counts, strict=True)):
            yield _Piece(subtask, source, 0, count, is_copy=before % parallelism != subtask)


def _one_each(counts: Sequence[int], parallelism: int) -> Iterator[_Piece]:
    """Every subtask gets one source, in turn."""
    for subtask in range(parallelism):
        source = subtask % len(counts)
        yield _Piece(subtask, source, 0, counts[source])
