"""The catalogue of a checkpoint: each state of each operator, from its metadata and the manifests of keyed state.

Start here to show, compare, check or read states. `READERS` has the reader of each type of handle; a new kind of state is
a line there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.backends.inspection.keyed_parts import Table, tables_of
from holdfast.backends.inspection.state_parts import (
    KINDS,
    RawPart,
    ReadableState,
    SectionPart,
    ShownColumn,
    StatePart,
)
from holdfast.backends.keyed import TableSpec
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import (
    FileStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator

Reader: TypeAlias = Callable[[int, Any], Iterable[tuple[str | None, str, StatePart]]]
"""Lists the states of a subtask's handle: the name of each, or None, its kind, and this part of it."""


def _sections(subtask: int, handle: OperatorStateHandle) -> Iterator[tuple[str, str, SectionPart]]:
    for name, partitions in handle.states.items():
        yield name, KINDS[partitions.mode], SectionPart(subtask, name, handle.stream, partitions)


def _raw_part(kind: str) -> Reader:
    return lambda subtask, handle: [(None, kind, RawPart(subtask, handle))]


READERS: dict[str, dict[type, Reader]] = {
    "managed_operator": {OperatorStateHandle: _sections},
    "raw_operator": {RawOperatorStateHandle: _raw_part("raw operator")},
    "managed_keyed": {KeyGroupsStateHandle: _raw_part("keyed"), SegmentsStateHandle: tables_of},
    "raw_keyed": {KeyGroupsStateHandle: _raw_part("raw keyed")},
}
"""The readers of handles, by field in `StoredSubtask` and type."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """One state of one operator in a checkpoint.

    Attributes:
        operator: The operator's uid.
        name: The name of the state; None for raw state, which has one state for operator state and one for keyed state.
        kind: `list`, `union`, `broadcast`, `raw operator`, `raw keyed`; of keyed state `keyed value`, `keyed list`,
            `keyed map`, `keyed reducing`, `keyed aggregating` or `keyed timers`, and `keyed` if only that is known.
        parts: The parts of the state, by subtask.
    """

    operator: str
    name: str | None
    kind: str
    parts: tuple[StatePart, ...]

    @property
    def label(self) -> str:
        """The state for people: its name or, as in `<raw keyed>`, its kind."""
        return f"<{self.kind}>" if self.name is None else self.name

    @property
    def is_keyed(self) -> bool:
        """Return whether it is managed keyed state, whose names are separate from those of operator state."""
        return self.kind.startswith("keyed")

    @property
    def table_spec(self) -> TableSpec | None:
        """The table specification of managed keyed state; None for other state, or if the manifest can't be read."""
        first = self.parts[0]
        return first.table.spec if isinstance(first, Table) else None

    @property
    def subtasks(self) -> int:
        """Number of subtasks that have stored the state."""
        return len({part.subtask for part in self.parts})

    @property
    def elements(self) -> int:
        """Number of elements, entries, rows, partitions or key groups; of one copy, if every subtask has a copy."""
        return sum(part.elements for part in self._to_read())

    @property
    def bytes(self) -> int:
        """Length of the stored state; bytes that several subtasks refer to are counted once."""
        extents = {
            (_identity(stream), offset, length)
            for part in self.parts
            for stream, offset, length in part.extents()
        }
        return sum(length for _, _, length in extents)

    def readable(self) -> ReadableState:
        """Read the stored columns of the state, and no elements.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
        """
        first = self.parts[0]
        stored = first.stored_schema()
        return ReadableState(
            kind=self.kind,
            parts=self._to_read(),
            columns=first.columns(stored),
            stored=stored,
            has_subtasks=not self._is_copied,
        )

    def row(self, columns: Sequence[ShownColumn]) -> dict[str, Any]:
        """Return the properties of the state, under the names that all lists of states have.

        Args:
            columns: The state's `ReadableState.content`; empty if the stored columns can't be read.
        """
        return {
            "operator": self.operator,
            "state": self.name,
            "kind": self.kind,
            "subtasks": self.subtasks,
            "stored_elements": self.elements,
            "bytes": self.bytes,
            "type": " to ".join(column.stored_name for column in columns) or None,
            "arrow_type": " to ".join(str(column.type) for column in columns) or None,
            "stored_as": " to ".join(column.kind for column in columns) or None,
        }

    @property
    def _is_copied(self) -> bool:
        return self.kind == KINDS[OperatorStateMode.BROADCAST]

    def _to_read(self) -> tuple[StatePart, ...]:
        return self.parts[:1] if self._is_copied else self.parts


def stored_states(metadata: CheckpointMetadata) -> list[StoredState]:
    """Return all states of a checkpoint, by operator. Reads only manifests of keyed state that are not inline."""
    return [
        state for uid, operator in metadata.operators.items() for state in states_of(uid, operator)
    ]


def states_of(uid: str, operator: StoredOperator) -> list[StoredState]:
    """Return all states of an operator: managed operator state first. Reads the same files as `stored_states`."""
    states: dict[tuple[str, str | None, str], list[StatePart]] = {}
    for field, readers in READERS.items():
        for subtask, stored in sorted(operator.subtasks.items()):
            for handle in getattr(stored, field):
                for name, kind, part in readers[type(handle)](subtask, handle):
                    states.setdefault((field, name, kind), []).append(part)
    return [StoredState(uid, name, kind, tuple(parts)) for (_, name, kind), parts in states.items()]


def find_state(
    metadata: CheckpointMetadata,
    operator: str | None,
    name: str | None,
    *,
    raw: str | None,
    kind: str | None = None,
    is_keyed: bool = False,
) -> StoredState:
    """Find a state by name; a name may be left out if there is only one.

    Args:
        metadata: The checkpoint.
        operator: The operator's uid.
        name: The state's name.
        raw: `operator` or `keyed` for the operator's raw state, which has no name.
        kind: The state's kind, if operator state and keyed state have the same name.
        is_keyed: Whether to prefer keyed state if there is neither name nor kind.

    Raises:
        InvalidRequestError: There is no such state, or the name is missing and there are several.
        CheckpointNotFoundError: A manifest of keyed state is gone.
        CheckpointCorruptedError: A manifest of keyed state is damaged.
    """
    if raw is not None and (raw not in {"operator", "keyed"} or name is not None):
        message = f"raw must be 'operator' or 'keyed', without a state, got {raw!r}"
        raise InvalidRequestError(message)
    uid = _choose("operator", operator, list(metadata.operators))
    states = states_of(uid, metadata.operators[uid])
    wanted_kind = kind if raw is None else f"raw {raw}"
    if wanted_kind is None or wanted_kind.startswith("keyed"):
        _check_whole(states, name)
    if wanted_kind is not None:
        states = [state for state in states if state.kind == wanted_kind]
        if not states:
            raise InvalidRequestError(f"operator {uid!r} has no {wanted_kind} state")
    if raw is not None:
        return states[0]
    if is_keyed and name is None:
        states = [state for state in states if state.is_keyed] or states
    named: dict[str, list[StoredState]] = {}
    for state in states:
        if state.name is not None:
            named.setdefault(state.name, []).append(state)
    chosen = named[_choose(f"state of operator {uid!r}", name, list(named))]
    if len(chosen) > 1:
        kinds = [state.kind for state in chosen]
        message = f"operator {uid!r} has several states {chosen[0].name!r}; choose one of the kinds {kinds}"
        raise InvalidRequestError(message)
    return chosen[0]


def _check_whole(states: list[StoredState], name: str | None) -> None:
    """Raise the error of an unreadable manifest, unless the name belongs to operator state only."""
    namesakes = [state for state in states if name is not None and state.name == name]
    if namesakes and not any(state.is_keyed for state in namesakes):
        return
    for state in states:
        if state.is_keyed and state.name is None:
            state.readable()


def _choose(subject: str, wanted: str | None, names: list[str]) -> str:
    """Return the wanted name, or the only name."""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted not in names:
        choice = f"choose one of {names}" if names else "there are no names to choose from"
        problem = "needs a name" if wanted is None else f"{wanted!r} does not exist"
        raise InvalidRequestError(f"{subject} {problem}; {choice}")
    return wanted


def _identity(stream: StreamStateHandle) -> object:
    """Return a value that identifies a stream; two inline streams are never the same."""
    return stream.uri if isinstance(stream, FileStateHandle) else id(stream)
