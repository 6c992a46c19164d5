"""Raw state in a checkpoint: bytes of the user's own format, by partition or key group."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.inspection.shown_column import ShownColumn
from holdfast.backends.inspection.state_parts import (
    KEY_GROUP,
    MOST_BYTES,
    MOST_ROWS,
    PARTITION,
    VALUE,
    Extent,
)
from holdfast.backends.raw import raw_key_groups, raw_operator_partitions
from holdfast.locations.handles import KeyGroupsStateHandle, RawOperatorStateHandle


@dataclass(frozen=True, slots=True)
class RawPart:
    """A subtask's part of a raw state: a row for each partition or key group.

    Attributes:
        subtask: The subtask that has stored it.
        handle: Leads to the partitions or key groups.
    """

    subtask: int
    handle: RawOperatorStateHandle | KeyGroupsStateHandle

    @property
    def elements(self) -> int:
        return sum(unit is not None for unit in self.handle.partitions)

    def extents(self) -> list[Extent]:
        return [(self.handle.stream, *unit) for unit in self.handle.partitions if unit is not None]

    def stored(self) -> pa.Schema:
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
            if size >= MOST_BYTES or len(contents) >= MOST_ROWS:
                yield pa.record_batch([numbers, contents], schema=stored)
                numbers, contents, size = [], [], 0
        yield pa.record_batch([numbers, contents], schema=stored)
