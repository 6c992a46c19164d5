"""Entries of RocksDB blocks whose keys and values all have the same length, read many at a time.

A key is complete at each restart and shares a prefix with the previous key elsewhere. So the first entries after
all restarts are read at once, then the second ones, and so on.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.flink.serializers import Rows

_Numbers = npt.NDArray[np.int64]

_HEAD_BYTES, _MAX_SINGLE_BYTE = 3, 0x7F
# More entries per restart are read faster one by one, unless there are many restarts.
_MAX_ENTRIES_PER_RESTART = 64


def fixed_width_entries(
    blocks: Sequence[tuple[bytes, bytes]], width: int, value_width: int
) -> tuple[Rows, Rows] | None:
    """Return keys and values of blocks, in order, as rows.

    Args:
        blocks: Entries and restarts of each block.
        width: Number of bytes of each key with RocksDB's suffix.
        value_width: Number of bytes of each value.

    Returns:
        None if an entry has other lengths, a length takes more than a byte, or a restart isn't the start of an
        entry. Then the entries must be read one by one, which also reports corruption.
    """
    if max(width, value_width) > _MAX_SINGLE_BYTE:
        return None
    # The shared prefix of a key may be longer than the bytes before its first own byte.
    data = np.frombuffer(b"".join([bytes(width), *(entries for entries, _ in blocks)]), np.uint8)
    starts = _starts(blocks)
    if starts is None:
        return None
    at = starts + width
    ends = np.append(at[1:], len(data))
    active = np.arange(len(at))
    counts = np.zeros(len(at), np.int64)
    columns = np.arange(width, dtype=np.uint8)
    keys: Rows = np.empty((0, width), np.uint8)
    steps: list[tuple[_Numbers, Rows, _Numbers]] = []
    while len(active):
        if len(steps) == _MAX_ENTRIES_PER_RESTART or (at + _HEAD_BYTES > ends).any():
            return None
        shared = data[at]
        # Their sum is less than 128, so each of them is and takes a byte.
        if (shared.astype(np.int64) + data[at + 1] != width).any():
            return None
        if (data[at + 2] != value_width).any() or (not steps and shared.any()):
            return None
        first_byte = at + _HEAD_BYTES - shared
        value_at = first_byte + width
        at = value_at + value_width
        if (at > ends).any():
            return None
        rows = _windows(data, first_byte, width)
        if steps:
            np.copyto(rows, keys, where=columns < shared[:, None])
        steps.append((active, rows, value_at))
        counts[active] += 1
        keys = rows
        has_more = at < ends
        if not has_more.all():
            active, at, ends, keys = active[has_more], at[has_more], ends[has_more], keys[has_more]
    return _in_order(data, counts, steps, value_width)


def _starts(blocks: Sequence[tuple[bytes, bytes]]) -> _Numbers | None:
    """Return the starts of entries with complete keys in all blocks, or None if they are not in order."""
    lengths = np.array([len(entries) for entries, _ in blocks])
    counts = np.array([len(restarts) // 4 for _, restarts in blocks])
    if not counts.all():
        return None
    ends = np.cumsum(lengths)
    places = np.frombuffer(b"".join([restarts for _, restarts in blocks]), "<u4")
    starts: _Numbers = places.astype(np.int64) + np.repeat(ends - lengths, counts)
    is_whole = not places[np.cumsum(counts) - counts].any()
    if not is_whole or starts[-1] >= ends[-1] or (np.diff(starts) <= 0).any():
        return None
    return starts


def _in_order(
    data: Rows, counts: _Numbers, steps: list[tuple[_Numbers, Rows, _Numbers]], value_width: int
) -> tuple[Rows, Rows]:
    """Return keys and values in the order of the file; `counts` has their number per restart."""
    firsts = np.cumsum(counts) - counts
    keys = np.empty((counts.sum(), steps[0][1].shape[1]), np.uint8)
    values_at = np.empty(len(keys), np.int64)
    for step, (active, rows, value_at) in enumerate(steps):
        places = firsts[active] + step
        keys[places] = rows
        values_at[places] = value_at
    return keys, _windows(data, values_at, value_width)


def _windows(data: Rows, starts: _Numbers, width: int) -> Rows:
    """Return `width` bytes from each start."""
    if not width:
        return np.empty((len(starts), 0), np.uint8)
    windows = np.ndarray(len(data) - width + 1, f"V{width}", data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(-1, width)
