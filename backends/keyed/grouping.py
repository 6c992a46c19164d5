"""Rows of a batch brought together by their identity, with one sort."""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import order_of
from holdfast.backends.keyed.columns import group_equal_rows
from holdfast.backends.keyed.table import SortKeys

Positions = npt.NDArray[np.int64]

_U = np.uint64

MOST_COUNTED = 1 << 16
"""So many groups have numbers of 16 bits."""

_SAMPLED_ROWS = 1 << 10
_REPEATED_SHARE = 0.95
"""Up to this share of a sample's values may be different where there are some 10,000 in all."""
_LEAST_ROWS = 1 << 14
"""Fewer rows are sorted as quickly as a sample of them is looked at."""


class Grouping:
    """Which rows of a batch belong together: those with equal columns.

    Args:
        order: The rows, group by group, ascending by sort key; inside of a group in their order of arrival.
        starts: Where in `order` each group starts.

    Attributes:
        order: The rows, as they were given.
        starts: Where in `order` each group starts.
    """

    def __init__(self, order: Positions, starts: Positions) -> None:
        self.order = order
        self.starts = starts

    @classmethod
    def of_codes(cls, codes: Positions, groups: int) -> "Grouping":
        """The grouping of rows whose groups are known.

        Args:
            codes: For each row its group, 0 <= group < groups; each group has a row.
            groups: The number of groups.
        """
        return _NumberedGrouping(codes, groups)

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.starts)

    @cached_property
    def firsts(self) -> Positions:
        """The first row of each group."""
        return self.order.take(self.starts)

    @property
    def lasts(self) -> Positions:
        """The last row of each group."""
        return (
            self.order[np.append(self.starts[1:], len(self.order)) - 1] if len(self) else self.order
        )

    @cached_property
    def counts(self) -> Positions:
        """The number of rows of each group."""
        return np.diff(np.append(self.starts, len(self.order)))

    @cached_property
    def codes(self) -> Positions:
        """The group of each row."""
        codes = np.empty(len(self.order), np.int64)
        codes[self.order] = np.repeat(np.arange(len(self)), self.counts)
        return codes


class _NumberedGrouping(Grouping):
    """A grouping by the groups of rows, whose order is sorted out when somebody asks for it."""

    def __init__(self, codes: Positions, groups: int) -> None:
        counts = np.bincount(codes, minlength=groups)
        self.codes = codes
        self.counts = counts
        self.starts = np.cumsum(counts) - counts

    @cached_property
    def order(self) -> Positions:  # type: ignore[override]  # it is set nowhere
        return order_of(self.codes, len(self))


def grouped(
    sort_keys: SortKeys, columns: Sequence[pa.Array], *, by_counting: bool = False
) -> Grouping:
    """Bring rows with equal columns together.

    Args:
        sort_keys: The sort key of each row: equal for equal rows. Unequal rows may have the same.
        columns: The columns that decide whether rows are equal.
        by_counting: Whether sort keys that differ nearly always differ in their upper 32 bits, as those do that are
            hashes, and NumPy has no vector instructions. It decides how they are sorted, not what comes of it.
    """
    order, ascending = _sorted_by_counting(sort_keys) if by_counting else _sorted(sort_keys)
    order, is_first = group_equal_rows(order, ascending, columns)
    return Grouping(order, np.flatnonzero(is_first))


def encoded_if_repeated(column: pa.Array) -> tuple[pa.Array, Positions] | None:
    """The distinct values of a column and which of them each row has, if there are so few that this is worth it.

    Whether there are few is told by a sample. To hash and sort these is several times as fast then as to do so with all rows.

    Returns:
        The values, null among them, and for each row the index of its value; None if there are many.
    """
    rows = len(column)
    if rows < _LEAST_ROWS or pa.types.is_nested(column.type):
        return None
    dense = _dense(column)
    if dense is not None:
        return dense
    sample = column.take(pa.array(np.arange(_SAMPLED_ROWS) * (rows // _SAMPLED_ROWS)))
    if len(_encoded(sample).dictionary) > _REPEATED_SHARE * _SAMPLED_ROWS:
        return None
    encoded = _encoded(column)
    if len(encoded.dictionary) > MOST_COUNTED:  # the sample was unlike the rest
        return None
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _dense(column: pa.Array) -> tuple[pa.Array, Positions] | None:
    """The distinct values and which of them each row has, of integers that lie so close that each has its place.

    That takes no hashing: a quarter of the time.
    """
    if not pa.types.is_signed_integer(column.type) or column.null_count:
        return None
    numbers = column.to_numpy()
    least, most = int(numbers.min()), int(numbers.max())
    # Distinct values are never so close, so they aren't looked at in this way again.
    if most - least >= min(MOST_COUNTED, len(numbers) // 2):
        return None
    places = np.subtract(numbers, least, dtype=np.int64)
    is_there = np.bincount(places) > 0
    values = pa.array(is_there.nonzero()[0] + least, column.type)
    return values, (np.cumsum(is_there) - 1).take(places)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return pc.dictionary_encode(column, null_encoding="encode")


@cache
def sorts_by_vectors() -> bool:
    """Whether NumPy sorts numbers of 64 bits by vector instructions on this processor."""
    config = np.show_config(mode="dicts") or {}
    extensions = config.get("SIMD Extensions", {})
    names = {"AVX512_SKX"}
    if not np.__version__.startswith("1."):
        names |= {"AVX2", "X86_V3", "X86_V4", "ASIMD"}
    return not names.isdisjoint((*extensions.get("baseline", ()), *extensions.get("found", ())))


def _sorted(sort_keys: SortKeys) -> tuple[Positions, SortKeys]:
    """The rows by sort key, and by arrival where sort keys are equal; and the sort key of each.

    Sort keys and row numbers are sorted as one number of 64 bits: NumPy does that with vector instructions,
    several times as fast as it finds the order alone; without these it takes twice as long as to count.
    """
    rows = len(sort_keys)
    if not rows:
        return np.empty(0, np.int64), sort_keys
    first = sort_keys.min()
    bits = int(sort_keys.max() - first).bit_length()
    if not bits:
        return np.arange(rows), sort_keys
    number_bits = (rows - 1).bit_length()
    numbers = _U((1 << number_bits) - 1)
    packed = sort_keys - first
    packed <<= _U(64 - bits)
    packed &= ~numbers
    packed |= np.arange(rows, dtype=np.uint64)
    packed.sort()
    order: Positions = (packed & numbers).view(np.int64)
    packed &= ~numbers
    return _sorted_further(order, sort_keys, packed)


def _sorted_by_counting(sort_keys: SortKeys) -> tuple[Positions, SortKeys]:
    """The same as `_sorted`, of sort keys whose upper 32 bits tell nearly all rows apart.

    NumPy counts numbers of 16 bits into place: to do so twice takes half of the time of one sort without vector instructions,
    and two to three times as long as one with them.
    """
    if not len(sort_keys):
        return np.empty(0, np.int64), sort_keys
    distances = sort_keys - sort_keys.min()
    low_bits = max(0, int(distances.max()).bit_length() - 32)
    upper = (distances >> _U(low_bits)).astype(np.uint32)
    order = np.argsort(upper.astype(np.uint16), kind="stable")
    order = order.take(
        np.argsort((upper >> np.uint32(16)).astype(np.uint16).take(order), kind="stable")
    )
    return _sorted_further(order, sort_keys, upper.take(order))


def _sorted_further(
    order: Positions, sort_keys: SortKeys, upper: npt.NDArray[np.unsignedinteger[Any]]
) -> tuple[Positions, SortKeys]:
    """Rows that lie by the upper bits of their sort key, by all bits; and the sort key of each.

    Args:
        order: The rows; by arrival where the upper bits are equal.
        sort_keys: The sort key of each row.
        upper: The upper bits, ascending.
    """
    ascending = sort_keys.take(order)
    falls = np.flatnonzero(ascending[1:] < ascending[:-1])
    if not len(falls):
        return order, ascending
    runs = np.unique(upper[falls])
    starts, ends = upper.searchsorted(runs), upper.searchsorted(runs, "right")
    if 8 * int((ends - starts).sum()) > len(order):
        order = np.argsort(sort_keys, kind="stable")
    else:
        at = np.concatenate([np.arange(*run) for run in zip(starts, ends, strict=True)])
        order[at] = order[at].take(np.argsort(sort_keys.take(order[at]), kind="stable"))
    return order, sort_keys.take(order)
