"""What a checkpoint's states are, without reading their elements."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.backends.sections import MAP_COLUMNS, read_schema
from holdfast.backends.serializers import stored_in
from holdfast.errors import CheckpointCorruptedError, CheckpointError
from holdfast.locations.handles import FileStateHandle, OperatorStateMode, StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata, OperatorState, SubtaskState

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
        schema: JSON schema of what MessagePack holds; else empty.
    """

    name: str
    arrow_type: str
    serializer: str
    type: str
    schema: str


@dataclass(frozen=True, slots=True)
class StateDescription:
    """One state of an operator, in all its subtasks.

    Attributes:
        uid: Its operator.
        name: The state; empty for those that have none, because an operator has one of the kind.
        kind: Raw ones and keyed ones are bytes that their operator alone can read. `unknown` if how
            it is stored could not be read.
        mode: How it is spread over subtasks; empty for keyed ones.
        elements: Number of its elements or entries, for raw and keyed ones of their partitions. Of a
            broadcast state, which all subtasks have, those of one.
        state_bytes: Bytes that it takes, in files and inline.
        columns: How they are stored, as the first subtask has them; none if only their operator can
            read them.
        failure: Why how they are stored can't be read; None if it can.
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
        return " to ".join(one.type for one in self.columns)


def describe(metadata: CheckpointMetadata) -> list[StateDescription]:
    """All states of a checkpoint, by operator; of each, how it is stored is read, and no element.

    A state file that is gone or damaged is told in the states that it holds.
    """
    return [one for uid, state in metadata.operators.items() for one in _states(uid, state)]


def _states(uid: str, operator: OperatorState) -> Iterator[StateDescription]:
    subtasks = list(operator.subtasks.values())
    names = [name for one in subtasks for handle in one.managed_operator for name in handle.states]
    for name in dict.fromkeys(names):
        yield _managed(uid, name, subtasks)
    raw = [handle for one in subtasks for handle in one.raw_operator]
    if raw:
        partitions = sum(len(handle.partitions) for handle in raw)
        size = _distinct_bytes([handle.stream for handle in raw])
        mode = OperatorStateMode.SPLIT_DISTRIBUTE.name
        yield StateDescription(uid, "", "raw", mode, partitions, size)
    for kind in ("keyed", "raw keyed"):
        keyed = [
            handle
            for one in subtasks
            for handle in (one.managed_keyed if kind == "keyed" else one.raw_keyed)
        ]
        if keyed:
            groups = sum(part is not None for handle in keyed for part in handle.partitions)
            size = _distinct_bytes([handle.stream for handle in keyed])
            yield StateDescription(uid, "", kind, "", groups, size)


def _managed(uid: str, name: str, subtasks: list[SubtaskState]) -> StateDescription:
    found = [
        (handle.stream, handle.states[name])
        for one in subtasks
        for handle in one.managed_operator
        if name in handle.states
    ]
    stream, first = found[0]
    counts = [partitions.count for _, partitions in found]
    # After a change of parallelism several subtasks may have parts of one section.
    sections = {
        (_identity(stream), partitions.offset): partitions.length for stream, partitions in found
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
    try:
        schema = stored.schema.decode()
    except UnicodeDecodeError as error:
        message = f"state {state!r} does not say how it was stored ({error})"
        raise CheckpointCorruptedError(message) from error
    return ColumnDescription(field.name, str(field.type), stored.kind, stored.name, schema)


def _distinct_bytes(streams: list[StreamStateHandle]) -> int:
    return sum({_identity(stream): stream.size for stream in streams}.values())


def _identity(stream: StreamStateHandle) -> object:
    """What tells a stream from others; two that travel in handles are never one."""
    return stream.uri if isinstance(stream, FileStateHandle) else id(stream)
