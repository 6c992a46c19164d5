"""Key groups in the canonical form, which savepoints of all backends have in common.

    group  short state, then entries { int n, key, int n, value }

The highest bit of a key's first byte says that a short follows the entry: the next state, or ffff at the end.

Source:
    Flink, FullSnapshotAsyncWriter and FullSnapshotRestoreOperation (2.3.0).
"""

import struct

import numpy as np

from holdfast.flink.binary import damaged
from holdfast.flink.states.entries import Entries, EntryReader

_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_LAST, _BIT = 0xFFFF, 0x80
_CHUNK_ROWS = 1 << 12


def entries_of(data: bytes, wanted: int, reader: EntryReader | None, states: int) -> Entries | None:
    """The entries of a state in a key group; None if it has none.

    Args:
        data: The group.
        wanted: The number of the state.
        reader: What will read them.
        states: How many states there are.

    Raises:
        CheckpointCorruptedError: The group is damaged, as far as it was looked at.
    """
    position = 2
    (state,) = _SHORT.unpack_from(data, 0)
    while state != _LAST:
        if state >= states:
            raise damaged(f"a key group has a state {state}, and there are {states}")
        if state == wanted and reader is not None:
            equal = _equally_long(data, position, reader)
            return _collected(data, position)[0] if equal is None else equal
        position = _collected(data, position, keep=False)[1]
        (state,) = _SHORT.unpack_from(data, position)
        position += 2
    return None


def check_group(data: bytes, states: int) -> None:
    """Look whether the group is in this form, to its end.

    Raises:
        CheckpointCorruptedError, struct.error: It is not.
    """
    entries_of(data, -1, None, states)


def _collected(data: bytes, position: int, *, keep: bool = True) -> tuple[Entries, int]:
    """The entries of the state that begins here, and where they end."""
    keys: list[bytes] = []
    values: list[bytes] = []
    unpack = _INT.unpack_from
    while True:
        (length,) = unpack(data, position)
        start = position + 4
        behind = start + length
        if length < 1:
            raise damaged(f"a key has {length} bytes")
        (value_length,) = unpack(data, behind)
        position = behind + 4 + value_length
        if value_length < 0 or position > len(data):
            raise damaged(f"a value has {value_length} bytes")
        is_last = data[start] & _BIT
        if keep:
            keys.append(data[start:behind])
            values.append(data[behind + 4 : position])
        if is_last:
            if keep:
                keys[-1] = bytes([keys[-1][0] & ~_BIT]) + keys[-1][1:]
            return Entries(keys, values), position


def _equally_long(data: bytes, position: int, reader: EntryReader) -> Entries | None:
    """The entries of the state that begins here, if all are as long as `reader` says; else None."""
    width, value_width = reader.key_width, reader.value_width
    if not width or value_width < 0:
        return None
    stride = 8 + width + value_width
    lengths = np.frombuffer(
        _INT.pack(width) + _INT.pack(value_width), np.uint8
    )  # of key and value, as they stand before them
    chunks = []
    while True:
        count = min((len(data) - position) // stride, _CHUNK_ROWS)
        if not count:
            return None  # it doesn't end as it should: who reads it entry by entry says so
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
