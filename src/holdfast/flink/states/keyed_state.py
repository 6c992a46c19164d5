"""Keyed state of a subtask, one key group at a time, in the canonical or the heap backend's format.

Source:
    Flink, KeyGroupsStateHandle and what restores it (2.3.0).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from holdfast.errors import CheckpointCorruptedError
from holdfast.flink.binary import decompress_streams
from holdfast.flink.metadata import KeyGroupsHandle, StateFiles, StateStream
from holdfast.flink.serializers import reading
from holdfast.flink.states.canonical import check_group, entries_of
from holdfast.flink.states.descriptions import KeyedDescription, keyed_description
from holdfast.flink.states.entries import EntryReader
from holdfast.flink.states.heap import heap_columns, order_of_empty
from holdfast.flink.states.key_groups import KeyGroup

_SAMPLED_GROUPS = 3  # groups whose format is checked; all have the same


def prefix_bytes(max_parallelism: int) -> int:
    """Return the number of bytes of the key group in a key."""
    return 1 if max_parallelism <= 128 else 2


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Keyed state of a subtask in one stream, described but not read.

    Attributes:
        handle: Location of its key groups.
        description: The states.
        max_parallelism: Maximum parallelism of the operator.
    """

    handle: KeyGroupsHandle
    description: KeyedDescription
    max_parallelism: int

    @classmethod
    def of(cls, handle: KeyGroupsHandle, files: StateFiles, max_parallelism: int) -> "KeyGroups":
        """Read only the description. Raises `CheckpointError`."""
        with files.open(handle.stream) as stream:
            end = min([offset for offset in handle.offsets if offset > 0], default=stream.size)
            return cls(handle, keyed_description(files.input(stream, 0, end)), max_parallelism)

    def with_description(self, description: KeyedDescription) -> Self:
        """Return a copy with another description."""
        return replace(self, description=description)

    def columns(self, state: int, files: StateFiles) -> Iterator[tuple[int, list[pa.Array]]]:
        """Return the columns of a state in each key group with entries.

        Raises:
            CheckpointError: They can't be read.
        """
        info = self.description.states[state]
        with files.open(self.handle.stream) as stream:
            groups = self.handle.extents(stream.size, min_offset=1)
            if not groups:
                return
            if self._is_heap(stream, groups):
                order = self._order(stream, groups)
                for group, start, end in groups:
                    with reading(f"key group {group}"):
                        data = stream.read(start, end)
                        place = KeyGroup(group, self.max_parallelism)
                        columns = heap_columns(data, place, self.description, state, order)
                    if columns is not None:
                        yield group, columns
                return
            reader = EntryReader(info, self.description.key, prefix_bytes(self.max_parallelism))
            for group, start, end in groups:
                columns = None
                with reading(f"key group {group}"):
                    data = self._canonical(stream.read(start, end))
                    entries = entries_of(data, state, reader, len(self.description.states))
                    if entries is not None:
                        columns = reader.columns(group, entries)
                if columns is not None:
                    yield group, columns

    def _order(self, stream: StateStream, groups: list[tuple[int, int, int]]) -> tuple[int, ...]:
        """Return the order of states, if the smallest group of the heap backend shows it; otherwise empty."""
        if self.description.is_compressed:
            return ()
        _, start, end = min(groups, key=lambda group: group[2] - group[1])
        return order_of_empty(stream.read(start, end), len(self.description.states))

    def _is_heap(self, stream: StateStream, groups: list[tuple[int, int, int]]) -> bool:
        """Detect whether the groups are in the heap backend's format, which the handle does not specify."""
        if self.handle.is_canonical or len(groups) < len(self.handle.offsets):
            return False
        for group, start, end in groups[:_SAMPLED_GROUPS]:
            if end - start < 4 or stream.read(start, start + 4) != group.to_bytes(4, "big"):
                return False
        if len(groups) > 1 or groups[0][0]:
            return True
        # Not group 0, whose number looks like that of a state.
        [(_, start, end)] = groups
        try:
            data = self._canonical(stream.read(start, end))
            check_group(data, len(self.description.states))
        except (CheckpointCorruptedError, struct.error):
            return True
        return False

    def _canonical(self, data: bytes) -> bytes:
        if not self.description.is_compressed:
            return data
        [whole] = decompress_streams(data)
        return whole.data
