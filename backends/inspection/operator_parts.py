"""Operator state in a checkpoint: sections of lists, union lists and broadcast states, and raw state of both kinds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from holdfast.backends.inspection.state_parts import (
    KEY,
    KEY_GROUP,
    MAX_BYTES,
    MAX_ROWS,
    PARTITION,
    VALUE,
    Extent,
    ShownColumn,
    form_error,
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
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import (
    KeyGroupsStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
    StreamStateHandle,
)

KINDS = {
    OperatorStateMode.SPLIT_DISTRIBUTE: "list",
    OperatorStateMode.UNION: "union",
    OperatorStateMode.BROADCAST: "broadcast",
}

PARALLEL_BYTES = 64 << 20
"""Approximate number of bytes of a section that each of several parallel readers reads."""


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
