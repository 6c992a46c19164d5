"""What a checkpoint's states are, without reading their elements."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.backends.sections import MAP_COLUMNS, read_schema
from holdfast.backends.serializers import stored_in
from holdfast.errors import CheckpointError
from holdfast.locations.handles import (
    FileStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator

StateKind = Literal["list", "map", "raw", "keyed", "raw keyed", "unknown"]


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """How one column of a state's elements is stored.

    Attributes:
        name: `element`; or `key` and `value`, in a map.
        arrow_type: Arrow's type of the column, as text.
        serializer: `arrow` if the column holds the elements themselves; `messagepack` or `pickle` if
            it holds the bytes of each.
        type: Type of the elements, for people.
        form: What tells types of classes apart; empty for others.
    """

    name: str
    arrow_type: str
    serializer: str
    type: str
    form: str


@dataclass(frozen=True, slots=True)
class StateDescription:
    """One state of an operator, in all its subtasks.

    Attributes:
        uid: The operator.
        name: The state's name; empty for raw and keyed state, which has no names.
        kind: What kind of state it is. Raw and keyed state is bytes that only the operator can read.
            `unknown` if it could not be read how the state is stored.
        mode: How the state is spread over subtasks; empty for keyed state.
        elements: Number of elements or entries. Raw operator state: number of partitions; keyed state:
            of key groups. Broadcast state, which all subtasks have: of the entries of one subtask.
        state_bytes: Bytes of the state, in files and inline.
        columns: How the columns are stored, as the first subtask has them; empty if only the operator
            can read the state.
        failure: Why it can't be read how the state is stored; None if it can.
    """

    uid: str
    name: str
    kind: StateKind
    mode: str
    elements: int
    state_bytes: int
    columns: tuple[ColumnDescription, ...] = ()
    failure: CheckpointError | None = None

    @property
    def type(self) -> str:
        """Type of the elements, for people."""
        return " to ".join(column.type for column in self.columns)


def describe(metadata: CheckpointMetadata) -> list[StateDescription]:
    """All states of a checkpoint, by operator. Reads how each state is stored, and no elements.

    A state whose file is gone or damaged says so in its description.
    """
    return [
        description
        for uid, operator in metadata.operators.items()
        for description in _states(uid, operator)
    ]


def _states(uid: str, operator: StoredOperator) -> Iterator[StateDescription]:
    subtasks = list(operator.subtasks.values())
    handles = [handle for subtask in subtasks for handle in subtask.managed_operator]
    for name in dict.fromkeys(name for handle in handles for name in handle.states):
        yield _managed(uid, name, handles)
    raw = [handle for subtask in subtasks for handle in subtask.raw_operator]
    if raw:
        partitions = sum(len(handle.partitions) for handle in raw)
        mode = OperatorStateMode.SPLIT_DISTRIBUTE.name
        yield StateDescription(uid, "", "raw", mode, partitions, _distinct_bytes(raw))
    managed_keyed = [handle for subtask in subtasks for handle in subtask.managed_keyed]
    if managed_keyed:
        groups = sum(
            last - first + 1 for first, last in (keyed.key_groups for keyed in managed_keyed)
        )
        yield StateDescription(uid, "", "keyed", "", groups, _distinct_bytes(managed_keyed))
    raw_keyed = [handle for subtask in subtasks for handle in subtask.raw_keyed]
    if raw_keyed:
        groups = sum(part is not None for handle in raw_keyed for part in handle.partitions)
        yield StateDescription(uid, "", "raw keyed", "", groups, _distinct_bytes(raw_keyed))


def _managed(uid: str, name: str, handles: list[OperatorStateHandle]) -> StateDescription:
    parts = [(handle.stream, handle.states[name]) for handle in handles if name in handle.states]
    stream, first = parts[0]
    counts = [partitions.count for _, partitions in parts]
    # After a change of parallelism several subtasks may have parts of one section.
    sections = {
        (_identity(stream), partitions.offset): partitions.length for stream, partitions in parts
    }
    is_broadcast = first.mode is OperatorStateMode.BROADCAST
    kind: StateKind = "unknown"
    columns: tuple[ColumnDescription, ...] = ()
    failure = None
    try:
        schema = read_schema(stream, first.offset, first.length, name=name)
        columns = tuple(_column(field, name) for field in schema)
        kind = "map" if tuple(schema.names) == MAP_COLUMNS else "list"
    except CheckpointError as error:
        failure = error
    return StateDescription(
        uid,
        name,
        kind,
        first.mode.name,
        max(counts) if is_broadcast else sum(counts),
        sum(sections.values()),
        columns,
        failure,
    )


def _column(field: pa.Field, state: str) -> ColumnDescription:
    stored = stored_in(field, state)
    return ColumnDescription(field.name, str(field.type), stored.kind, stored.name, stored.form)


def _distinct_bytes(handles: Iterable[StateHandle]) -> int:
    streams = [stream for handle in handles for stream in handle.streams()]
    return sum({_identity(stream): stream.size for stream in streams}.values())


def _identity(stream: StreamStateHandle) -> object:
    """What tells a stream from others; two that travel in their handles are never the same."""
    return stream.uri if isinstance(stream, FileStateHandle) else id(stream)
