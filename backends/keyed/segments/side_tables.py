"""Side tables of a section: indexes that find rows by sort key without reading all sort keys.

A prefix is a sort key without its low bits. A directory has the first row of each prefix, and is fast if most
lookup keys are present. A filter has the prefixes that occur, and is fast if most are absent. Samples are some of the
sort keys. They are used instead of a directory where many rows have one prefix, such as timers of the same days.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columns import Rows
from holdfast.backends.keyed.table import SortKeys

MIN_ROWS = 4096
"""Sections with fewer rows have no side tables: a binary search is as fast."""

STEP_ROWS = 1 << 15
"""Rows that are counted at a time, so that they stay in the processor's cache."""

_ROWS_PER_BUCKET = 2
_BITS_PER_ROW = 8
_MIN_SAMPLE_ROWS = 1024
_MAX_SAMPLES = 4096
_MAX_PER_ROW = 4
"""Bound of buckets, or bytes of a filter, per row: sort keys that are clustered get no side table."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The first row of each prefix.

    Attributes:
        starts: The position of the first row of each prefix, from the first row's prefix on, then the number of
            rows; uint32.
        shift: Number of low bits of the distance from `first` that are not in a prefix.
        first: The first row's sort key.
    """

    starts: npt.NDArray[np.uint32]
    shift: int
    first: int


@dataclass(frozen=True, slots=True)
class Samples:
    """The sort key of every `step`-th row, from the first row on; uint64."""

    sort_keys: SortKeys
    step: int

    def steps_between(self, first: SortKeys, last: SortKeys) -> tuple[Rows, Rows]:
        """Return, for ranges of sort keys, the step with the first row, and the end of the steps with rows."""
        low = np.maximum(self.sort_keys.searchsorted(first) - 1, 0)
        return low, self.sort_keys.searchsorted(last, "right")


@dataclass(frozen=True, slots=True)
class Filter:
    """The prefixes that occur.

    Attributes:
        bits: Prefix p occurs if bit p % 8, counted from the lowest, of byte p // 8 - `first_byte` is set; uint8.
        shift: Number of low bits of a sort key that are not in a prefix.
        first_byte: Number of the first byte.
    """

    bits: npt.NDArray[np.uint8]
    shift: int
    first_byte: int


def build_directory(sort_keys: SortKeys) -> Directory | None:
    """Build a directory of at least one row, with about two rows per prefix; None if the sort keys are too clustered.

    They are if there are too many prefixes, or most rows have the same prefix as more than a thousand others.
    """
    rows, first, last = len(sort_keys), int(sort_keys[0]), int(sort_keys[-1])
    span = last - first + 1
    shift = max(0, (span // max(1, rows // _ROWS_PER_BUCKET)).bit_length() - 1)
    prefixes = ((last - first) >> shift) + 1
    distances = np.diff(sort_keys[::_MIN_SAMPLE_ROWS])
    is_close = int((distances < np.uint64(1 << shift)).sum())
    if prefixes > _MAX_PER_ROW * rows or 2 * is_close > len(distances) > 0:
        return None
    starts = np.zeros(prefixes + 1, np.uint32)
    for row in range(0, rows, STEP_ROWS):
        distances = sort_keys[row : row + STEP_ROWS] - np.uint64(first)
        numbers = (distances >> np.uint64(shift)).view(np.int64)
        first_number = int(numbers[0])
        counts = np.bincount(numbers - first_number)
        starts[first_number + 1 : first_number + 1 + len(counts)] += counts.astype(np.uint32)
    np.cumsum(starts, out=starts, dtype=np.uint32)
    return Directory(starts, shift, first)


def build_samples(sort_keys: SortKeys) -> Samples:
    step = max(_MIN_SAMPLE_ROWS, -(-len(sort_keys) // _MAX_SAMPLES))
    return Samples(np.ascontiguousarray(sort_keys[::step]), step)


def build_filter(sort_keys: SortKeys) -> Filter | None:
    """Build a filter of 8 to 16 bits per row that passes 1 of 8 to 16 absent keys; None if keys are too clustered."""
    rows, first, last = len(sort_keys), int(sort_keys[0]), int(sort_keys[-1])
    shift = max(0, ((last - first + 1) // (_BITS_PER_ROW * rows)).bit_length() - 1)
    first_byte = first >> shift >> 3
    size = (last >> shift >> 3) + 1 - first_byte
    if size > _MAX_PER_ROW * rows:
        return None
    bits = np.zeros(size, np.uint8)
    for row in range(0, rows, STEP_ROWS):
        prefixes = (sort_keys[row : row + STEP_ROWS] >> np.uint64(shift)).view(np.int64)
        first_prefix = int(prefixes[0]) & ~7
        occurs = np.zeros((int(prefixes[-1]) | 7) + 1 - first_prefix, bool)
        occurs[prefixes - first_prefix] = True
        packed = np.packbits(occurs, bitorder="little")
        at = (first_prefix >> 3) - first_byte
        bits[at : at + len(packed)] |= packed
    return Filter(bits, shift, first_byte)
