"""The states of a checkpoint, found by its metadata and by how they say that they are stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from holdfast.backends.inspection.columns import ShownColumn, shown
from holdfast.backends.raw import raw_key_groups, raw_operator_partitions
from holdfast.backends.sections import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    are_alike,
    blocks_and_rows,
    location_of,
    read_blocks,
    read_schema,
)
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StateMigrationError
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
    StreamStateHandle,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator

KINDS = {
    OperatorStateMode.SPLIT_DISTRIBUTE: "list",
    OperatorStateMode.UNION: "union",
    OperatorStateMode.BROADCAST: "broadcast",
}
RAW_OPERATOR, RAW_KEYED = "raw operator", "raw keyed"

SUBTASK, KEY, VALUE, PARTITION, KEY_GROUP = "subtask", "key", "value", "partition", "key_group"

_ROWS = 1 << 16
_BYTES = 64 << 20
"""At most so much is in a batch, unless a single row has more."""

_PARALLEL_BYTES = 64 << 20
"""What one reader of several reads of a section, about."""


@dataclass(frozen=True, slots=True)
class Section:
    """Where a part of a managed state is.

    Attributes:
        subtask: The subtask that has stored it.
        stream: The file, or the bytes.
        partitions: Where in the stream it is, and which elements count.
        blocks: Index of the first block of rows, and of the block behind the last; None for all.
    """

    subtask: int
    stream: StreamStateHandle
    partitions: StatePartitions
    blocks: tuple[int, int] | None = None

    def schema(self, name: str) -> pa.Schema:
        """How the section's columns are stored."""
        where = self.partitions
        return read_schema(self.stream, where.offset, where.length, name=name)

    def split(self, name: str) -> list["Section"]:
        """The section, or parts of it that can be read beside each other, if it is large."""
        where = self.partitions
        wanted = -(-where.length // _PARALLEL_BYTES)
        if wanted < 2 or where.first:
            return [self]
        count, rows = blocks_and_rows(self.stream, where.offset, where.length, name=name)
        if where.count != rows:  # blocks alone don't say which of their rows count
            return [self]
        bounds = sorted({count * number // wanted for number in range(wanted + 1)})
        return [
            Section(self.subtask, self.stream, where, (first, end))
            for first, end in pairwise(bounds)
        ]

    def batches(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The section's elements, as they are stored.

        Raises:
            CheckpointCorruptedError: There are too few.
            StateMigrationError: They are stored in another way than those of other subtasks.
        """
        where = self.partitions
        blocks = read_blocks(self.stream, where.offset, where.length, name=name, blocks=self.blocks)
        # A subtask stores whole sections; parts of a section are given out at a restore alone.
        skip, left = where.first, where.count
        for block in blocks:
            if not are_alike(block.schema, schema, name):
                message = (
                    f"state {name!r} is stored by subtask {self.subtask} in another way than by "
                    "the first one; let every subtask of the job ask for it, and read it in the "
                    "next checkpoint"
                )
                raise StateMigrationError(message)
            batch = block.slice(skip, left)
            skip = max(0, skip - len(block))
            left -= len(batch)
            yield batch
        if left and self.blocks is None:
            message = f"state {name!r} has {where.count - left} elements, expected {where.count}"
            raise CheckpointCorruptedError(message, location_of(self.stream))


@dataclass(frozen=True, slots=True)
class RawPart:
    """A part of a raw state.

    Attributes:
        subtask: The subtask that has stored it.
        handle: Leads to the partitions or key groups.
    """

    subtask: int
    handle: RawOperatorStateHandle | KeyGroupsStateHandle

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A row for each partition or key group."""
        if isinstance(self.handle, KeyGroupsStateHandle):
            units = ((stream.key_group, stream.read()) for stream in raw_key_groups([self.handle]))
        else:
            partitions = raw_operator_partitions([self.handle])
            units = ((number, stream.read()) for number, stream in enumerate(partitions))
        numbers: list[int] = []
        contents: list[bytes] = []
        size = 0
        for number, content in units:
            numbers.append(number)
            contents.append(content)
            size += len(content)
            if size >= _BYTES or len(contents) >= _ROWS:
                yield self._batch(numbers, contents, schema)
                numbers, contents, size = [], [], 0
        yield self._batch(numbers, contents, schema)

    def _batch(
        self, numbers: list[int], contents: list[bytes], schema: pa.Schema
    ) -> pa.RecordBatch:
        columns = [[self.subtask] * len(numbers), numbers, contents]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        return pa.record_batch(arrays, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """One state of one operator in a checkpoint; values only, so that it can be sent elsewhere.

    Attributes:
        operator: The operator's uid.
        name: The state's name; None for raw state.
        kind: `list`, `union`, `broadcast`, `raw operator` or `raw keyed`.
        subtasks: Number of subtasks that have stored it.
        elements: Number of elements, entries, partitions or key groups.
        bytes: Size of what is stored.
        parts: Where the state is; of a broadcast state one copy.
        columns: The columns as they are shown; empty for raw state.
        stored: Schema of the columns as they are stored; None for raw state.
    """

    operator: str
    name: str | None
    kind: str
    subtasks: int
    elements: int
    bytes: int
    parts: tuple[Section | RawPart, ...]
    columns: tuple[ShownColumn, ...] = ()
    stored: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that the state is read as."""
        fields = [(column.name, column.type) for column in self.columns]
        if self.kind == RAW_OPERATOR:
            fields = [(PARTITION, pa.int32()), (VALUE, pa.binary())]
        if self.kind == RAW_KEYED:
            fields = [(KEY_GROUP, pa.int32()), (VALUE, pa.binary())]
        if self.kind == KINDS[OperatorStateMode.BROADCAST]:
            return pa.schema(fields)
        return pa.schema([(SUBTASK, pa.int32()), *fields])

    def split(self) -> list[Section | RawPart]:
        """Parts that can be read beside each other. Of large parts it is read how they are divided."""
        return [
            part
            for stored_part in self.parts
            for part in (
                stored_part.split(str(self.name))
                if isinstance(stored_part, Section)
                else [stored_part]
            )
        ]

    def batches(self, parts: Sequence[Section | RawPart] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of some parts, by default of all, in order; none of the batches is empty.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: What was read is not what was written.
            StateMigrationError: Subtasks have stored it in different ways.
            InvalidRequestError: A value has no room in the type that it is read as.
        """
        for part in self.parts if parts is None else parts:
            if isinstance(part, RawPart):
                yield from filter(len, part.batches(self.schema))
                continue
            for batch in part.batches(str(self.name), self.stored):
                for rows in filter(len, _pieces(batch)):
                    yield self._shown(rows, part.subtask)

    def _shown(self, rows: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
        arrays = [
            shown(how, column) for how, column in zip(self.columns, rows.columns, strict=True)
        ]
        if self.kind != KINDS[OperatorStateMode.BROADCAST]:
            arrays.insert(0, pa.repeat(pa.scalar(subtask, pa.int32()), len(rows)))
        return pa.record_batch(arrays, schema=self.schema)


def stored_states(metadata: CheckpointMetadata) -> Iterator[StoredState]:
    """All states of a checkpoint, by operator. Reads how each state is stored; no elements.

    Raises:
        CheckpointNotFoundError: A state file is gone.
        CheckpointCorruptedError: What was read is not what was written.
    """
    for uid, operator in metadata.operators.items():
        for name in state_names(operator):
            yield managed_state(uid, name, operator)
        for raw in (raw_state(uid, RAW_OPERATOR, operator), raw_state(uid, RAW_KEYED, operator)):
            if raw.parts:
                yield raw


def state_names(operator: StoredOperator) -> list[str]:
    """Names of the managed states of an operator."""
    handles = (
        handle for subtask in operator.subtasks.values() for handle in subtask.managed_operator
    )
    return list(dict.fromkeys(name for handle in handles for name in handle.states))


def managed_state(uid: str, name: str, operator: StoredOperator) -> StoredState:
    """A state that an operator has. Reads and raises what `stored_states` does."""
    sections = [
        Section(subtask, handle.stream, handle.states[name])
        for subtask, state in sorted(operator.subtasks.items())
        for handle in state.managed_operator
        if name in handle.states
    ]
    mode = sections[0].partitions.mode
    stored = sections[0].schema(name)
    columns = tuple(stored.names)
    is_map = mode is OperatorStateMode.BROADCAST
    if columns != (MAP_COLUMNS if is_map else LIST_COLUMNS):
        message = f"state {name!r} has columns {columns}, which no {KINDS[mode]} state has"
        raise CheckpointCorruptedError(message)
    parts = sections[:1] if is_map else sections  # all copies are the same
    shown_names = (KEY, VALUE) if is_map else (VALUE,)
    return StoredState(
        operator=uid,
        name=name,
        kind=KINDS[mode],
        subtasks=len({section.subtask for section in sections}),
        elements=sum(section.partitions.count for section in parts),
        bytes=sum(section.partitions.length for section in sections),
        parts=tuple(parts),
        columns=tuple(
            ShownColumn.of(field, shown_name, name)
            for field, shown_name in zip(stored, shown_names, strict=True)
        ),
        stored=stored,
    )


def raw_state(uid: str, kind: str, operator: StoredOperator) -> StoredState:
    """The raw state of an operator, of one kind; without parts if it has none."""
    parts = [
        RawPart(subtask, handle)
        for subtask, state in sorted(operator.subtasks.items())
        for handle in (state.raw_operator if kind == RAW_OPERATOR else state.raw_keyed)
    ]
    units = [unit for part in parts for unit in part.handle.partitions if unit is not None]
    return StoredState(
        operator=uid,
        name=None,
        kind=kind,
        subtasks=len({part.subtask for part in parts}),
        elements=len(units),
        bytes=sum(length for _, length in units),
        parts=tuple(parts),
    )


def find_state(
    metadata: CheckpointMetadata,
    operator: str | None,
    state: str | None,
    *,
    raw: str | None,
) -> StoredState:
    """The state that somebody names; a name may be left out where there is one only.

    Raises:
        InvalidRequestError: There is no such state, or no name where there are several.
    """
    if raw is not None and (raw not in _RAW or state is not None):
        message = f"raw is {raw!r}; it is 'operator' or 'keyed', and without a state"
        raise InvalidRequestError(message)
    uid = _the_one("operator", operator, list(metadata.operators))
    stored = metadata.operators[uid]
    if raw is not None:
        raw_parts = raw_state(uid, _RAW[raw], stored)
        if not raw_parts.parts:
            raise InvalidRequestError(f"operator {uid!r} has no {_RAW[raw]} state")
        return raw_parts
    name = _the_one(f"state of operator {uid!r}", state, state_names(stored))
    return managed_state(uid, name, stored)


_RAW = {"operator": RAW_OPERATOR, "keyed": RAW_KEYED}


def _the_one(what: str, wanted: str | None, names: list[str]) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted not in names:
        there = f"name one of {names}" if names else "there is none"
        which = "not named" if wanted is None else f"not {wanted!r}"
        raise InvalidRequestError(f"{what} is {which}; {there}")
    return wanted


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of a size that can be handled."""
    rows = min(_ROWS, max(1, len(batch) * _BYTES // max(1, batch.nbytes)))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)
