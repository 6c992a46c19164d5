"""Differences between two checkpoints. Only the types of states are read, no elements."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from holdfast.backends.inspection.catalogue import StoredState, stored_states
from holdfast.backends.inspection.state_parts import ShownColumn
from holdfast.errors import CheckpointError
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    StreamStateHandle,
    files_of,
    without_place,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask

Value: TypeAlias = str | int | tuple[str, ...]

_COMPARED = ("kind", "stored_elements", "bytes", "type", "arrow_type", "stored_as", "forms")


@dataclass(frozen=True, slots=True)
class Difference:
    """An operator or state that differs between two checkpoints.

    Attributes:
        operator: The operator's uid.
        state: The name of the state, or its kind, as in `<raw keyed>`, if it has no name; empty if the operator differs.
        change: Whether it was added, removed or changed, from the first to the second.
        changes: The properties that changed, by name: the value before and after.
    """

    operator: str
    state: str
    change: Literal["added", "removed", "changed"]
    changes: Mapping[str, tuple[Value, Value]]


@dataclass(frozen=True, slots=True)
class FileComparison:
    """Files of two checkpoints, compared by content with their checksums.

    Attributes:
        only_first: Files of the first with bytes that the second doesn't have.
        only_second: Files of the second with bytes that the first doesn't have.
        shared: Files that both refer to.
        copies: Files of the second with the same bytes as another file of the first.
        inline_differs: Whether state inside a `_metadata` has bytes that the other checkpoint doesn't have.
    """

    only_first: tuple[FileStateHandle, ...]
    only_second: tuple[FileStateHandle, ...]
    shared: tuple[FileStateHandle, ...]
    copies: tuple[FileStateHandle, ...]
    inline_differs: bool

    @property
    def is_same(self) -> bool:
        """Return whether both have the same bytes, in any places."""
        return not (self.only_first or self.only_second or self.inline_differs)


def compare_states(first: CheckpointMetadata, second: CheckpointMetadata) -> list[Difference]:
    """Compare the operators and states of two checkpoints. Reads the type of each state.

    Elements are counted, not compared: `compare_subtasks` returns the subtasks whose state differs.
    """
    operators = _differences(
        {(uid, ""): _operator_properties(state) for uid, state in first.operators.items()},
        {(uid, ""): _operator_properties(state) for uid, state in second.operators.items()},
    )
    states = _differences(
        {(state.operator, state.label): _state_properties(state) for state in stored_states(first)},
        {
            (state.operator, state.label): _state_properties(state)
            for state in stored_states(second)
        },
    )
    differences = [*operators, *states]
    return sorted(differences, key=lambda difference: (difference.operator, difference.state))


def compare_subtasks(first: CheckpointMetadata, second: CheckpointMetadata) -> dict[str, list[int]]:
    """Return the subtasks with different state, for each operator that both checkpoints have.

    State is the same if it has the same bytes, by their checksums, in the same places of the same states. Reads no file.
    """
    by_operator = {}
    for uid in sorted(first.operators.keys() & second.operators.keys()):
        old, new = _contents(first.operators[uid]), _contents(second.operators[uid])
        different = [index for index in sorted(old | new) if old.get(index) != new.get(index)]
        if different:
            by_operator[uid] = different
    return by_operator


def compare_files(
    first: Iterable[StreamStateHandle], second: Iterable[StreamStateHandle]
) -> FileComparison:
    """Compare the files of two checkpoints by their handles. Reads no file."""
    first, second = list(first), list(second)
    ours = {file.uri: file for file in files_of(first)}
    theirs = {file.uri: file for file in files_of(second)}
    shared = [ours[uri] for uri in ours if uri in theirs and ours[uri] == theirs[uri]]
    in_both = {file.uri for file in shared}
    left = [file for uri, file in ours.items() if uri not in in_both]
    right = [file for uri, file in theirs.items() if uri not in in_both]
    known, others = set(map(without_place, first)), set(map(without_place, second))
    same_bytes = known & others
    return FileComparison(
        only_first=tuple(file for file in left if without_place(file) not in others),
        only_second=tuple(file for file in right if without_place(file) not in known),
        shared=tuple(shared),
        copies=tuple(file for file in right if without_place(file) in known),
        inline_differs=any(
            without_place(stream) not in same_bytes
            for stream in [*first, *second]
            if isinstance(stream, ByteStreamStateHandle)
        ),
    )


def _differences(
    first: Mapping[tuple[str, str], Mapping[str, Value]],
    second: Mapping[tuple[str, str], Mapping[str, Value]],
) -> list[Difference]:
    differences = []
    for uid, state in dict.fromkeys([*first, *second]):
        old, new = first.get((uid, state)), second.get((uid, state))
        if old is None or new is None:
            differences.append(Difference(uid, state, "added" if old is None else "removed", {}))
        elif old != new:
            changes = {key: (old[key], new[key]) for key in old if old[key] != new[key]}
            differences.append(Difference(uid, state, "changed", changes))
    return differences


def _operator_properties(operator: StoredOperator) -> dict[str, Value]:
    return {
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "key": operator.key,
        "key_hash": operator.key_hash,
        "key_types": operator.key_types,
    }


def _state_properties(state: StoredState) -> dict[str, Value]:
    columns: tuple[ShownColumn, ...] = ()
    with suppress(CheckpointError):  # without its file, the known properties are compared
        columns = state.readable().content
    row = state.row(columns) | {"forms": tuple(column.form for column in columns)}
    return {name: "" if row[name] is None else row[name] for name in _COMPARED}


def _contents(operator: StoredOperator) -> dict[int, StoredSubtask]:
    """Return state by subtask, without its places and statistics."""
    return {
        index: msgspec.structs.replace(subtask.with_streams(without_place), statistics=None)
        for index, subtask in operator.subtasks.items()
        if subtask.streams()
    }
