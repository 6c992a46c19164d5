"""The parts of a state, one for each subtask, and the rows that are read from them.

    StatePart      one subtask's part of a state, in storage
    SectionPart    a part of a list, a union list or a broadcast state
    RawPart        a part of a raw state, of operators or keyed
    ReadableState  the parts of a state with known columns, which are read as rows
    ShownColumn    a stored column in the form in which rows have it

`keyed_parts` has the parts of managed keyed state.

A new kind of state is a class with the methods of `StatePart`, and a line in `catalogue.READERS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import size_of
from holdfast.backends.serializers import (
    Kind,
    StoredSerializer,
    json_text,
    pack_elements,
    stored_serializer,
)
from holdfast.backends.snapshot import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    blocks_and_rows,
    has_same_form,
    location_of,
    raw_key_groups,
    raw_operator_partitions,
    read_blocks,
    read_schema,
)
from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointCorruptedError, StateMigrationError
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
    StreamStateHandle,
)

_PLAIN = message_pack_decoder(list[Any])


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A stored column, and the form in which it is read.

    Attributes:
        name: The column's name.
        state: The state, for errors.
        stored: The serializer that wrote the column; None if only the operator can read its bytes.
        stored_type: Arrow type of the stored column.
    """

    name: str
    state: str
    stored: StoredSerializer | None
    stored_type: pa.DataType

    @classmethod
    def of(cls, field: pa.Field, name: str, state: str) -> "ShownColumn":
        """Return the form of a stored column. Raises `CheckpointCorruptedError`."""
        return cls(name, state, stored_serializer(field, state), field.type)

    @property
    def kind(self) -> Kind | Literal["raw"]:
        """The serializer of the column; `raw` if only the operator can read its bytes."""
        return "raw" if self.stored is None else self.stored.kind

    @property
    def stored_name(self) -> str:
        """Name of the stored type, for people."""
        return "bytes" if self.stored is None else self.stored.name

    @property
    def form(self) -> str:
        """A string that is different for classes with different fields; empty for other types."""
        return "" if self.stored is None else self.stored.form

    @property
    def is_arrow(self) -> bool:
        """Return whether elements have an Arrow type, so that the column's type is enough to read them."""
        return self.kind == "arrow" and not self.form

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the column in rows: pickles stay bytes, and MessagePack becomes JSON text."""
        match self.kind:
            case "arrow" | "raw":
                return self.stored_type
            case "pickle":
                return pa.binary()
            case "messagepack":
                return pa.string()


def to_shown(column: ShownColumn, stored: pa.Array) -> pa.Array:
    """Convert a stored column to the form in which it is read. Raises `CheckpointCorruptedError`."""
    if column.kind in {"arrow", "raw"}:
        return stored
    if column.kind == "pickle":
        return stored.cast(pa.binary())
    try:
        texts = list(map(json_text, _PLAIN.decode(pack_elements(stored))))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        message = f"elements of state {column.state!r} can't be decoded ({type(error).__name__})"
        raise CheckpointCorruptedError(message) from None
    return pa.array(texts, pa.string())


SUBTASK, PARTITION, KEY_GROUP, KEY, VALUE = "subtask", "partition", "key_group", "key", "value"

CHANGED = "changed"
"""The column of the time at which a row of a state with a time to live was changed last."""

POSITIONS = (SUBTASK, PARTITION, KEY_GROUP)
"""Columns of a row's place in storage, which are not its content."""

MAX_ROWS = 1 << 16
MAX_BYTES = 64 << 20
"""Maximum size of a batch, unless a single row is larger."""

KINDS = {
    OperatorStateMode.SPLIT_DISTRIBUTE: "list",
    OperatorStateMode.UNION: "union",
    OperatorStateMode.BROADCAST: "broadcast",
}

PARALLEL_BYTES = 64 << 20
"""Approximate number of bytes of a section that each of several parallel readers reads."""

Extent: TypeAlias = tuple[StreamStateHandle, int, int]
"""Bytes in a stream: the stream, a number that identifies them there, such as their offset, and the length."""


class StatePart(Protocol):
    """One subtask's part of a state, in storage. It has only values, so that it can be sent to a task."""

    @property
    def subtask(self) -> int:
        """The subtask that has stored it."""
        ...

    @property
    def elements(self) -> int:
        """Number of elements, entries, rows, partitions or key groups."""
        ...

    def extents(self) -> Iterable[Extent]:
        """Return the places of the part's bytes."""
        ...

    def stored_schema(self) -> pa.Schema:
        """Return the stored columns, which may have to be read.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
        """
        ...

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        """Return the form in which each stored column is read. Raises `CheckpointCorruptedError`."""
        ...

    def split(self) -> Sequence["StatePart"]:
        """Return the part, or smaller parts of a large one, which can be read in parallel."""
        ...

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        """Read the stored rows of the part.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
            StateMigrationError: Rows are stored with types other than those of `stored`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableState:
    """A state with known columns. It has only values, so that it can be sent to a task.

    Attributes:
        kind: The kind of the state, as in `StoredState`.
        parts: The parts of the state; one copy of a state that every subtask has.
        columns: The columns of its rows, without that of the subtask.
        stored: The stored columns of the first part.
        has_subtasks: Whether rows have a column of the subtask that stored them.
        max_parallelism: Number of key groups of the operator; 0 if it is not known.
    """

    kind: str
    parts: tuple[StatePart, ...]
    columns: tuple[ShownColumn, ...]
    stored: pa.Schema
    has_subtasks: bool
    max_parallelism: int = 0

    @property
    def content(self) -> tuple[ShownColumn, ...]:
        """The columns of the state's content, without those of its place and time."""
        return tuple(column for column in self.columns if column.name not in {*POSITIONS, CHANGED})

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        subtask = [(SUBTASK, pa.int32())] if self.has_subtasks else []
        return pa.schema([*subtask, *((column.name, column.type) for column in self.columns)])

    def split(self) -> list[StatePart]:
        """Return parts that can be read in parallel. Large parts are split by their index, which is read."""
        return [piece for part in self.parts for piece in part.split()]

    def batches(self, parts: Sequence[StatePart] | None = None) -> Iterator[pa.RecordBatch]:
        """Read rows of some parts, by default of all, in order. No batch is empty.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
            StateMigrationError: Subtasks have stored it in different forms.
            InvalidRequestError: A value doesn't fit the type in which it is read.
        """
        for part in self.parts if parts is None else parts:
            for batch in part.batches(self.stored):
                for rows in filter(len, _split(batch)):
                    yield self._to_shown(rows, part.subtask)

    def _to_shown(self, rows: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
        arrays = [
            to_shown(column, stored)
            for column, stored in zip(self.columns, rows.columns, strict=True)
        ]
        if self.has_subtasks:
            arrays.insert(0, pa.repeat(pa.scalar(subtask, pa.int32()), len(rows)))
        return pa.record_batch(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True)
class SectionPart:
    """A subtask's part of a managed state.

    Attributes:
        partitions: The place in the stream, and the range of elements that belong to the state.
        blocks: Range of the indices of blocks of rows, without the end; None for all.
    """

    subtask: int
    name: str
    stream: StreamStateHandle
    partitions: StatePartitions
    blocks: tuple[int, int] | None = None

    @property
    def elements(self) -> int:
        return self.partitions.count

    def extents(self) -> list[Extent]:
        return [(self.stream, self.partitions.offset, self.partitions.length)]

    def stored_schema(self) -> pa.Schema:
        place = self.partitions
        return read_schema(self.stream, place.offset, place.length, name=self.name)

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        mode, names = self.partitions.mode, tuple(stored.names)
        is_map = mode is OperatorStateMode.BROADCAST
        if names != (MAP_COLUMNS if is_map else LIST_COLUMNS):
            message = (
                f"state {self.name!r} has columns {names}, which a {KINDS[mode]} state can't have"
            )
            raise CheckpointCorruptedError(message)
        shown_names = (KEY, VALUE) if is_map else (VALUE,)
        return tuple(
            ShownColumn.of(field, shown_name, self.name)
            for field, shown_name in zip(stored, shown_names, strict=True)
        )

    def split(self) -> list["SectionPart"]:
        place = self.partitions
        wanted = -(-place.length // PARALLEL_BYTES)
        if wanted < 2 or place.first:
            return [self]
        count, rows = blocks_and_rows(self.stream, place.offset, place.length, name=self.name)
        if place.count != rows:  # the range of elements is not a range of whole blocks
            return [self]
        bounds = sorted({count * number // wanted for number in range(wanted + 1)})
        return [replace(self, blocks=blocks) for blocks in pairwise(bounds)]

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        place, name = self.partitions, self.name
        blocks = read_blocks(self.stream, place.offset, place.length, name=name, blocks=self.blocks)
        # A subtask stores whole sections; only a restore distributes parts of a section.
        skip, left = place.first, place.count
        for block in blocks:
            if not has_same_form(block.schema, stored, name):
                raise form_error(name, self.subtask)
            batch = block.slice(skip, left)
            skip = max(0, skip - len(block))
            left -= len(batch)
            yield batch
        if left and self.blocks is None:
            message = f"state {name!r} has {place.count - left} elements, expected {place.count}"
            raise CheckpointCorruptedError(message, location_of(self.stream))


@dataclass(frozen=True, slots=True)
class RawPart:
    """A subtask's part of a raw state: a row for each partition or key group."""

    subtask: int
    handle: RawOperatorStateHandle | KeyGroupsStateHandle

    @property
    def elements(self) -> int:
        return sum(unit is not None for unit in self.handle.partitions)

    def extents(self) -> list[Extent]:
        return [(self.handle.stream, *unit) for unit in self.handle.partitions if unit is not None]

    def stored_schema(self) -> pa.Schema:
        is_keyed = isinstance(self.handle, KeyGroupsStateHandle)
        number = KEY_GROUP if is_keyed else PARTITION
        return pa.schema([(number, pa.int32()), (VALUE, pa.binary())])

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        number, value = stored
        return (
            ShownColumn.of(number, number.name, ""),
            ShownColumn(value.name, "", None, value.type),
        )

    def split(self) -> list["RawPart"]:
        return [self]

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
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
            if size >= MAX_BYTES or len(contents) >= MAX_ROWS:
                yield pa.record_batch([numbers, contents], schema=stored)
                numbers, contents, size = [], [], 0
        yield pa.record_batch([numbers, contents], schema=stored)


def form_error(state: str, subtask: int) -> StateMigrationError:
    """Return the error for a subtask's part of a state that is stored in another form than the first part."""
    message = (
        f"state {state!r} is stored by subtask {subtask} in another form than by the first one; declare it in every "
        "subtask of the job, and read it in the next checkpoint"
    )
    return StateMigrationError(message)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into batches of at most `MAX_ROWS` and `MAX_BYTES`."""
    rows = min(MAX_ROWS, max(1, len(batch) * MAX_BYTES // max(1, size_of(batch))))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)
