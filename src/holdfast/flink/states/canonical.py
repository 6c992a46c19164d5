"""Key groups in the canonical format, which savepoints of all backends share.

    group  short state, then entries { int n, key, int n, value }

If the highest bit of a key's first byte is set, a short follows the entry: the next state, or ffff at the end.

Source:
    Flink, FullSnapshotAsyncWriter and FullSnapshotRestoreOperation (2.3.0).
"""

import struct

import numpy as np

from holdfast.flink.binary import corrupted_error
from holdfast.flink.states.entries import Entries, EntryReader

_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_LAST, _BIT = 0xFFFF, 0x80
_CHUNK_ROWS = 1 << 12


def entries_of(data: bytes, wanted: int, reader: EntryReader | None, states: int) -> Entries | None:
    """Return the entries of a state in a key group, or None.

    Args:
        data: Bytes of the group.
        wanted: Number of the state.
        reader: Reader of the entries.
        states: Number of states.

    Raises:
        CheckpointCorruptedError: The examined part of the group is corrupted.
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


def check_group(data: bytes, states: int) -> None:
    """Check that the whole group is in this format.

    Raises:
        CheckpointCorruptedError, struct.error: It is in another format.
    """
    entries_of(data, -1, None, states)


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
    lengths = np.frombuffer(
        _INT.pack(width) + _INT.pack(value_width), np.uint8
    )  # lengths of key and value, which precede them
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
