"""Entries of RocksDB's blocks whose keys and values are all equally long, read many at a time.

A key is whole at each restart, and has a part in common with the key before it elsewhere. So the first entries behind
all restarts are read at once, then the second ones, and so on.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.flink.serializers import Rows

_Numbers = npt.NDArray[np.int64]

_HEAD_BYTES, _MOST_OF_A_BYTE = 3, 0x7F
# More entries behind a restart are read faster one by one, unless there are many restarts.
_MOST_BEHIND_A_RESTART = 64


def equal_entries(
    blocks: Sequence[tuple[bytes, bytes]], width: int, value_width: int
) -> tuple[Rows, Rows] | None:
    """Keys and values of blocks, in order, as rows.

    Args:
        blocks: Entries and restarts of each block.
        width: How many bytes each key has, with what RocksDB adds.
        value_width: How many bytes each value has.

    Returns:
        None if some entry has other lengths, if a length takes more than a byte, or a restart isn't where an entry
        begins: then the entries have to be read one by one, which also says what is damaged.
    """
    if max(width, value_width) > _MOST_OF_A_BYTE:
        return None
    # What a key has in common with others may be more than what stands before its first byte.
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
        if len(steps) == _MOST_BEHIND_A_RESTART or (at + _HEAD_BYTES > ends).any():
            return None
        shared = data[at]
        # Their sum is less than 128: so is each, and takes a byte.
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
        goes_on = at < ends
        if not goes_on.all():
            active, at, ends, keys = active[goes_on], at[goes_on], ends[goes_on], keys[goes_on]
    return _in_order(data, counts, steps, value_width)


def _starts(blocks: Sequence[tuple[bytes, bytes]]) -> _Numbers | None:
    """Where entries with whole keys begin in the entries of all blocks; None if they don't follow each other."""
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
    """Keys and values in the order of the file, of which `counts` stand behind each restart."""
    firsts = np.cumsum(counts) - counts
    keys = np.empty((counts.sum(), steps[0][1].shape[1]), np.uint8)
    values_at = np.empty(len(keys), np.int64)
    for step, (active, rows, value_at) in enumerate(steps):
        places = firsts[active] + step
        keys[places] = rows
        values_at[places] = value_at
    return keys, _windows(data, values_at, value_width)


def _windows(data: Rows, starts: _Numbers, width: int) -> Rows:
    """So many bytes from each of some places on."""
    if not width:
        return np.empty((len(starts), 0), np.uint8)
    windows = np.ndarray(len(data) - width + 1, f"V{width}", data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(-1, width)
