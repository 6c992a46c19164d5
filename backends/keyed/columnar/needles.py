"""Sorted sort keys that are looked for, in one sorted source after the other."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columns import Rows
from holdfast.backends.keyed.segments import Directory, Filter, RowSource
from holdfast.backends.keyed.table import SortKeys

_Prefixes = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


@dataclass(slots=True)
class Needles:
    """Sort keys that are looked for, and what filters are asked about them.

    Attributes:
        sort_keys: Ascending.
    """

    sort_keys: SortKeys
    _prefixes: dict[int, _Prefixes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sort_keys)

    def prefixes(self, shift: int) -> _Prefixes:
        """Byte and bit of each in filters of that shift: they are computed once for all of them."""
        prefixes = self._prefixes.get(shift)
        if prefixes is None:
            numbers = self.sort_keys >> np.uint64(shift)
            byte = (numbers >> np.uint64(3)).view(np.int64)
            bit = np.left_shift(np.uint8(1), numbers.astype(np.uint8) & np.uint8(7))
            prefixes = self._prefixes[shift] = byte, bit
        return prefixes


def first_rows(
    source: RowSource, needles: Needles, first: int, end: int, *, with_filter: bool
) -> tuple[Rows, Rows] | None:
    """Which of the needles from `first` up to `end` a source has, and the first row of each; None if none.

    Args:
        source: Where to look.
        needles: The identities to look for.
        first: The first of them that can be there.
        end: The one behind the last.
        with_filter: Whether most are absent, so that a filter is asked before.
    """
    sort_keys = source.sort_keys
    directory, filter_ = source.directory, source.filter if with_filter else None
    if directory is not None or filter_ is not None:  # neither knows of keys outside
        first, end = _between(needles.sort_keys, first, end, sort_keys)
    if first == end or not len(sort_keys):
        return None
    at = None if filter_ is None else _passed(filter_, needles, first, end)
    wanted = needles.sort_keys[first:end] if at is None else needles.sort_keys.take(at)
    if directory is not None and len(sort_keys) > len(wanted) >> 1:
        rows = _rows_by_directory(directory, sort_keys, wanted)
    else:
        rows = sort_keys.searchsorted(wanted)
    hits = (sort_keys.take(rows, mode="clip") == wanted).nonzero()[0]
    if not len(hits):
        return None
    if len(hits) < len(rows):
        rows = rows.take(hits)
        return (hits + first if at is None else at.take(hits)), rows
    return (hits + first if at is None else at), rows


def rows_by_number(
    directory: Directory,
    numbers: npt.NDArray[np.integer],
    wanted: SortKeys,
    wanted_numbers: npt.NDArray[np.integer],
) -> tuple[Rows, Rows]:
    """Which of the identities a source has, and the row of each, where a single whole number is the identity.

    Rows of a prefix are told apart by that number, which has to be looked at anyway, and no sort key is touched.

    Args:
        directory: The source's directory.
        numbers: The identity of each row.
        wanted: Sort keys of the identities, ascending.
        wanted_numbers: The identities.
    """
    low = int(wanted.searchsorted(np.uint64(directory.first)))
    distances = wanted[low:] - np.uint64(directory.first)
    buckets = (distances >> np.uint64(directory.shift)).view(np.int64)
    rows = directory.starts.take(buckets, mode="clip").astype(np.int64)
    wanted_numbers = wanted_numbers[low:]
    is_there = numbers.take(rows, mode="clip") == wanted_numbers
    left = (~is_there).nonzero()[0]
    at = rows.take(left)
    ends = directory.starts.take(buckets.take(left) + 1, mode="clip")
    while len(left):
        at += 1
        is_within = at < ends
        is_same = numbers.take(at, mode="clip") == wanted_numbers.take(left)
        is_same &= is_within
        hits = left.compress(is_same)
        rows[hits] = at.compress(is_same)
        is_there[hits] = True
        goes_on = is_within ^ is_same
        left, at, ends = left.compress(goes_on), at.compress(goes_on), ends.compress(goes_on)
    hits = is_there.nonzero()[0]
    if len(hits) < len(rows):
        rows = rows.take(hits)
    return hits + low, rows


def _between(wanted: SortKeys, first: int, end: int, sort_keys: SortKeys) -> tuple[int, int]:
    """The needles from `first` up to `end` that are not outside of a source's sort keys."""
    if wanted[first] < sort_keys[0]:
        first += int(wanted[first:end].searchsorted(sort_keys[0]))
    if first < end and wanted[end - 1] > sort_keys[-1]:
        end = first + int(wanted[first:end].searchsorted(sort_keys[-1], "right"))
    return first, end


def _passed(filter_: Filter, needles: Needles, first: int, end: int) -> Rows:
    """The needles from `first` up to `end` whose prefix occurs."""
    byte, bit = needles.prefixes(filter_.shift)
    byte = byte[first:end]
    if filter_.first_byte:
        byte = byte - filter_.first_byte
    passed: Rows = (filter_.bits.take(byte, mode="clip") & bit[first:end]).nonzero()[0]
    if first:
        passed += first
    return passed


def _rows_by_directory(directory: Directory, sort_keys: SortKeys, wanted: SortKeys) -> Rows:
    """The first row that is not before each key that is wanted: in a bucket few rows are passed over."""
    distances = wanted - np.uint64(directory.first)
    buckets = (distances >> np.uint64(directory.shift)).view(np.int64)
    rows = directory.starts.take(buckets, mode="clip").astype(np.int64)
    before = (sort_keys.take(rows, mode="clip") < wanted).nonzero()[0]
    while len(before):
        after = rows.take(before) + 1
        rows[before] = after
        goes_on = sort_keys.take(after, mode="clip") < wanted.take(before)
        goes_on &= after < len(sort_keys)
        before = before.compress(goes_on)
    return rows
