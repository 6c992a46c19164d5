"""Keyed state of a subtask, one key group at a time, in the heap backend's format or the canonical one of all backends.

    canonical group  short state, then entries { int n, key, int n, value }

If the highest bit of a key's first byte is set, a short follows the entry: the next state, or ffff at the end.

Source:
    Flink, KeyGroupsStateHandle, FullSnapshotAsyncWriter and FullSnapshotRestoreOperation (2.3.0).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import CheckpointCorruptedError
from holdfast.flink.binary import corrupted_error, decompress_streams
from holdfast.flink.handles import KeyGroupsHandle
from holdfast.flink.serializers import reading
from holdfast.flink.state_files import StateFiles, StateStream
from holdfast.flink.states.descriptions import KeyedDescription, keyed_description
from holdfast.flink.states.entries import Entries, EntryReader
from holdfast.flink.states.heap import KeyGroup, heap_columns, order_of_empty

_SAMPLED_GROUPS = 3  # groups whose format is checked; all have the same
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_LAST, _BIT = 0xFFFF, 0x80
_CHUNK_ROWS = 1 << 12


def prefix_bytes(max_parallelism: int) -> int:
    return 1 if max_parallelism <= 128 else 2


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Keyed state of a subtask in one stream, described but not read."""

    handle: KeyGroupsHandle
    description: KeyedDescription
    max_parallelism: int

    @classmethod
    def of(cls, handle: KeyGroupsHandle, files: StateFiles, max_parallelism: int) -> "KeyGroups":
        """Read only the description. Raises `CheckpointError`."""
        with files.open(handle.stream) as stream:
            end = min([offset for offset in handle.offsets if offset > 0], default=stream.size)
            return cls(handle, keyed_description(files.input(stream, 0, end)), max_parallelism)

    def columns(self, state: int, files: StateFiles) -> Iterator[tuple[int, list[pa.Array]]]:
        """Return the columns of a state in each key group with entries. Raises `CheckpointError`."""
        with files.open(self.handle.stream) as stream:
            groups = self.handle.extents(stream.size, min_offset=1)
            if not groups:
                return
            read = self._heap_reader if self._is_heap(stream, groups) else self._canonical_reader
            columns_of = read(state, stream, groups)
            for group, start, end in groups:
                with reading(f"key group {group}"):
                    columns = columns_of(group, stream.read(start, end))
                if columns is not None:
                    yield group, columns

    def _heap_reader(
        self, state: int, stream: StateStream, groups: list[tuple[int, int, int]]
    ) -> "_GroupReader":
        order: tuple[int, ...] = ()
        if not self.description.is_compressed:  # the smallest group may show the order of states
            _, start, end = min(groups, key=lambda group: group[2] - group[1])
            order = order_of_empty(stream.read(start, end), len(self.description.states))

        def columns(group: int, data: bytes) -> list[pa.Array] | None:
            place = KeyGroup(group, self.max_parallelism)
            return heap_columns(data, place, self.description, state, order)

        return columns

    def _canonical_reader(
        self, state: int, _stream: StateStream, _groups: list[tuple[int, int, int]]
    ) -> "_GroupReader":
        states = self.description.states
        prefix = prefix_bytes(self.max_parallelism)
        reader = EntryReader(states[state], self.description.key, prefix)

        def columns(group: int, data: bytes) -> list[pa.Array] | None:
            entries = _entries_of(self._decompress(data), state, reader, len(states))
            return None if entries is None else reader.columns(group, entries)

        return columns

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
            data = self._decompress(stream.read(start, end))
            _entries_of(data, -1, None, len(self.description.states))
        except (CheckpointCorruptedError, struct.error):
            return True
        return False

    def _decompress(self, data: bytes) -> bytes:
        if not self.description.is_compressed:
            return data
        [whole] = decompress_streams(data)
        return whole.data


_GroupReader = Callable[[int, bytes], list[pa.Array] | None]
"""Returns the columns of a key group from its bytes, or None without entries."""


def _entries_of(
    data: bytes, wanted: int, reader: EntryReader | None, states: int
) -> Entries | None:
    """Return the entries of a state in a key group of `states` states, or None.

    The examined part of the group must be in the canonical format: up to the state, or the whole group if it has none.
    """
    position = 2
    (state,) = _SHORT.unpack_from(data, 0)
    while state != _LAST:
        if state >= states:
            raise corrupted_error(f"a key group has state {state} of {states}")
        if state == wanted and reader is not None:
            equal = _equally_long(data, position, reader)
            return _read_state(data, position)[0] if equal is None else equal
        position = _read_state(data, position, keep=False)[1]
        (state,) = _SHORT.unpack_from(data, position)
        position += 2
    return None


def _read_state(data: bytes, position: int, *, keep: bool = True) -> tuple[Entries, int]:
    """Return the entries of the state at a position, and their end."""
    keys: list[bytes] = []
    values: list[bytes] = []
    unpack = _INT.unpack_from
    while True:
        (length,) = unpack(data, position)
        start = position + 4
        key_end = start + length
        if length < 1:
            raise corrupted_error(f"a key has {length} bytes")
        (value_length,) = unpack(data, key_end)
        position = key_end + 4 + value_length
        if value_length < 0 or position > len(data):
            raise corrupted_error(f"a value has {value_length} bytes")
        is_last = data[start] & _BIT
        if keep:
            keys.append(data[start:key_end])
            values.append(data[key_end + 4 : position])
        if is_last:
            if keep:
                keys[-1] = bytes([keys[-1][0] & ~_BIT]) + keys[-1][1:]
            return Entries(keys, values), position


def _equally_long(data: bytes, position: int, reader: EntryReader) -> Entries | None:
    """Return the entries of the state at a position if all have the reader's widths, otherwise None."""
    width, value_width = reader.key_width, reader.value_width
    if not width or value_width < 0:
        return None
    stride = 8 + width + value_width
    # The lengths of key and value precede them.
    lengths = np.frombuffer(_INT.pack(width) + _INT.pack(value_width), np.uint8)
    chunks = []
    while True:
        count = min((len(data) - position) // stride, _CHUNK_ROWS)
        if not count:
            return None  # a wrong end, which reading entry by entry reports
        rows = np.frombuffer(data, np.uint8, count * stride, position).reshape(count, stride)
        last = np.flatnonzero(rows[:, 4] & _BIT)
        rows = rows[: last[0] + 1] if len(last) else rows
        heads = np.concatenate((rows[:, :4], rows[:, 4 + width : 8 + width]), axis=1)
        if not (heads == lengths).all():
            return None
        chunks.append(rows)
        if len(last):
            break
        position += count * stride
    rows = np.concatenate(chunks)
    keys = rows[:, 4 : 4 + width].copy()
    keys[-1, 0] &= ~_BIT & 0xFF
    return Entries(keys, rows[:, 8 + width :])
