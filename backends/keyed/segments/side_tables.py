"""Tables beside a section that lead to rows by sort key, without a look at all rows.

A prefix is a sort key without its low bits. A directory says where the rows of each prefix begin, and is
quick where most keys that are asked for are there. A filter says which prefixes occur, and is quick where
most are not.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.table import SortKeys

LEAST_ROWS = 4096
"""Sections with fewer rows have no side tables: a search by halving is as quick."""

STEP_ROWS = 1 << 15
"""Rows that are counted at a time: they stay in the processor's cache."""

_ROWS_OF_A_BUCKET = 2
_BITS_OF_A_ROW = 8
_MOST_OF_A_ROW = 4
"""Most buckets, or bytes of a filter, for each row: sort keys that are crowded get no side table."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where rows begin, by prefix.

    Attributes:
        starts: For each prefix from the first row's on the position of its first row, and one behind the last;
            uint32.
        shift: Low bits of a sort key's distance from `first` that are not in a prefix.
        first: The first row's sort key.
    """

    starts: npt.NDArray[np.uint32]
    shift: int
    first: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which prefixes occur.

    Attributes:
        bits: Bit p % 8 of byte p // 8 - `first_byte`, counted from the lowest, says whether prefix p occurs; uint8.
        shift: Low bits of a sort key that are not in a prefix. Filters of equal shift are asked alike.
        first_byte: Number of the first byte.
    """

    bits: npt.NDArray[np.uint8]
    shift: int
    first_byte: int


def directory_of(sort_keys: SortKeys) -> Directory | None:
    """A directory of about two rows a prefix; None if the sort keys are too crowded for that.

    Args:
        sort_keys: The sort keys of the rows, ascending; at least one.
    """
    rows, first, last = len(sort_keys), int(sort_keys[0]), int(sort_keys[-1])
    span = last - first + 1
    shift = max(0, (span // max(1, rows // _ROWS_OF_A_BUCKET)).bit_length() - 1)
    prefixes = ((last - first) >> shift) + 1
    if prefixes > _MOST_OF_A_ROW * rows:
        return None
    starts = np.zeros(prefixes + 1, np.uint32)
    for row in range(0, rows, STEP_ROWS):
        distances = sort_keys[row : row + STEP_ROWS] - np.uint64(first)
        numbers = (distances >> np.uint64(shift)).view(np.int64)
        least = int(numbers[0])
        counts = np.bincount(numbers - least)
        starts[least + 1 : least + 1 + len(counts)] += counts.astype(np.uint32)
    np.cumsum(starts, out=starts, dtype=np.uint32)
    return Directory(starts, shift, first)


def filter_of(sort_keys: SortKeys) -> Filter | None:
    """A filter of 8 to 16 bits a row, which lets 1 of 8 to 16 absent keys pass; None if keys are too crowded.

    Args:
        sort_keys: The sort keys of the rows, ascending; at least one.
    """
    rows, first, last = len(sort_keys), int(sort_keys[0]), int(sort_keys[-1])
    shift = max(0, ((last - first + 1) // (_BITS_OF_A_ROW * rows)).bit_length() - 1)
    first_byte = first >> shift >> 3
    size = (last >> shift >> 3) + 1 - first_byte
    if size > _MOST_OF_A_ROW * rows:
        return None
    bits = np.zeros(size, np.uint8)
    for row in range(0, rows, STEP_ROWS):
        prefixes = (sort_keys[row : row + STEP_ROWS] >> np.uint64(shift)).view(np.int64)
        least = int(prefixes[0]) & ~7
        occurs = np.zeros((int(prefixes[-1]) | 7) + 1 - least, bool)
        occurs[prefixes - least] = True
        packed = np.packbits(occurs, bitorder="little")
        at = (least >> 3) - first_byte
        bits[at : at + len(packed)] |= packed
    return Filter(bits, shift, first_byte)
