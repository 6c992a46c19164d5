"""What every kind of state has in common: its parts, one for each subtask, and rows that are read of them.

    StatePart      one subtask's part of a state, where it is stored
    ReadableState  parts of a state whose columns are known: rows of it

A new kind of state is a class that has the methods of `StatePart`, and a line in `catalogue.READERS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import StreamStateHandle

_PLAIN = message_pack_decoder(list[Any])


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a stored column is shown.

    Attributes:
        name: The column's name.
        state: The state, for errors.
        stored: The serializer that wrote the column; None if only the operator knows what its bytes are.
        stored_type: Arrow type of the stored column.
    """

    name: str
    state: str
    stored: StoredSerializer | None
    stored_type: pa.DataType

    @classmethod
    def of(cls, field: pa.Field, name: str, state: str) -> "ShownColumn":
        """The way to show a stored column.

        Raises:
            CheckpointCorruptedError: The column's note about its serializer can't be read.
        """
        return cls(name, state, stored_serializer(field, state), field.type)

    @property
    def kind(self) -> Kind | Literal["raw"]:
        """How the column is stored; `raw` if only the operator knows what its bytes are."""
        return "raw" if self.stored is None else self.stored.kind

    @property
    def stored_name(self) -> str:
        """Name of the elements' type as it is stored, for people."""
        return "bytes" if self.stored is None else self.stored.name

    @property
    def form(self) -> str:
        """A text that tells types of classes apart; empty for other types."""
        return "" if self.stored is None else self.stored.form

    @property
    def is_arrow(self) -> bool:
        """Return whether elements are Arrow's own, so that the column's type says all about them."""
        return self.kind == "arrow" and not self.form

    @property
    def type(self) -> pa.DataType:
        """Arrow type of what is shown: pickles as they are, and what MessagePack holds as JSON text."""
        match self.kind:
            case "arrow" | "raw":
                return self.stored_type
            case "pickle":
                return pa.binary()
            case "messagepack":
                return pa.string()


def shown(how: ShownColumn, stored: pa.Array) -> pa.Array:
    """The column as it is shown.

    Raises:
        CheckpointCorruptedError: The stored values are not of the type that the column names.
    """
    if how.kind in {"arrow", "raw"}:
        return stored
    if how.kind == "pickle":
        return stored.cast(pa.binary())
    try:
        texts = list(map(json_text, _PLAIN.decode(pack_elements(stored))))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        message = f"elements of state {how.state!r} can't be decoded ({type(error).__name__})"
        raise CheckpointCorruptedError(message) from None
    return pa.array(texts, pa.string())


SUBTASK, PARTITION, KEY_GROUP, KEY, VALUE = "subtask", "partition", "key_group", "key", "value"

CHANGED = "changed"
"""Column that says when a row of a state with a time to live was changed last."""

POSITIONS = (SUBTASK, PARTITION, KEY_GROUP)
"""Columns that say where a row is stored, and not what is in it."""

MAX_ROWS = 1 << 16
MAX_BYTES = 64 << 20
"""At most so much is in a batch, unless a single row has more."""

Extent: TypeAlias = tuple[StreamStateHandle, int, int]
"""Bytes in a stream: the stream, a number that tells them from others there, as their offset does, and the length."""


class StatePart(Protocol):
    """One subtask's part of a state, where it is stored; values only, so that it can be sent to a task."""

    @property
    def subtask(self) -> int:
        """The subtask that has stored it."""
        ...

    @property
    def elements(self) -> int:
        """Number of elements, entries, rows, partitions or key groups."""
        ...

    def extents(self) -> Iterable[Extent]:
        """Where the bytes of the part are."""
        ...

    def stored(self) -> pa.Schema:
        """How the columns are stored; for some kinds it is read.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
        """
        ...

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        """How each stored column is shown.

        Raises:
            CheckpointCorruptedError: No such state has these columns.
        """
        ...

    def split(self) -> Sequence["StatePart"]:
        """The part, or if it is large smaller parts that can be read beside each other."""
        ...

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        """Rows of the part, as they are stored.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
            StateMigrationError: Rows are stored with other types than `stored` says.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableState:
    """A state that can be read, for its columns are known; values only, so that it can be sent to a task.

    Attributes:
        kind: The kind of the state, as in `StoredState`.
        parts: Where the state is; one copy of a state that every subtask has.
        columns: How the columns are shown.
        stored: How they are stored, by the first part.
        has_subtasks: Whether rows say which subtask has stored them.
    """

    kind: str
    parts: tuple[StatePart, ...]
    columns: tuple[ShownColumn, ...]
    stored: pa.Schema
    has_subtasks: bool

    @property
    def content(self) -> tuple[ShownColumn, ...]:
        """The columns that say what is in the state, and not where in it."""
        return tuple(column for column in self.columns if column.name not in {*POSITIONS, CHANGED})

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that the state is read as."""
        subtask = [(SUBTASK, pa.int32())] if self.has_subtasks else []
        return pa.schema([*subtask, *((column.name, column.type) for column in self.columns)])

    def split(self) -> list[StatePart]:
        """Parts that can be read beside each other. Of large parts it is read how they are divided."""
        return [piece for part in self.parts for piece in part.split()]

    def batches(self, parts: Sequence[StatePart] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of some parts, by default of all, in order; none of the batches is empty.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
            StateMigrationError: Subtasks have stored it in different ways.
            InvalidRequestError: A value has no room in the type that it is read as.
        """
        for part in self.parts if parts is None else parts:
            for batch in part.batches(self.stored):
                for rows in filter(len, _pieces(batch)):
                    yield self._shown(rows, part.subtask)

    def _shown(self, rows: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
        arrays = [
            shown(how, column) for how, column in zip(self.columns, rows.columns, strict=True)
        ]
        if self.has_subtasks:
            arrays.insert(0, pa.repeat(pa.scalar(subtask, pa.int32()), len(rows)))
        return pa.record_batch(arrays, schema=self.schema)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of a size that can be handled."""
    rows = min(MAX_ROWS, max(1, len(batch) * MAX_BYTES // max(1, size_of(batch))))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)
