"""Grouping of a batch's rows by identity, with one sort."""

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

MAX_COUNTING_SORT_RANGE = 1 << 16
"""Number of values of 16 bits."""

_SAMPLED_ROWS = 1 << 10
_REPEATED_SHARE = 0.95
"""The share of distinct values that a sample of a column with about 10,000 distinct values has."""
_MIN_SAMPLED_ROWS = 1 << 14
"""Sorting fewer rows takes no longer than sampling them."""


class Grouping:
    """The rows of a batch in groups with equal columns.

    Attributes:
        order: The rows, group by group, ascending by sort key; inside of a group in their order of arrival.
        starts: The start of each group in `order`.
    """

    def __init__(self, order: Positions, starts: Positions) -> None:
        self.order = order
        self.starts = starts

    @classmethod
    def of_codes(cls, codes: Positions, groups: int) -> "Grouping":
        """Group rows by the number of each one's group, 0 <= group < groups; no group is empty."""
        return _NumberedGrouping(codes, groups)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def firsts(self) -> Positions:
        return self.order.take(self.starts)

    @property
    def lasts(self) -> Positions:
        return (
            self.order[np.append(self.starts[1:], len(self.order)) - 1] if len(self) else self.order
        )

    @cached_property
    def counts(self) -> Positions:
        return np.diff(np.append(self.starts, len(self.order)))

    @cached_property
    def codes(self) -> Positions:
        """The group of each row."""
        codes = np.empty(len(self.order), np.int64)
        codes[self.order] = np.repeat(np.arange(len(self)), self.counts)
        return codes


class _NumberedGrouping(Grouping):
    """A grouping by group numbers, which sorts its rows on demand."""

    def __init__(self, codes: Positions, groups: int) -> None:
        counts = np.bincount(codes, minlength=groups)
        self.codes = codes
        self.counts = counts
        self.starts = np.cumsum(counts) - counts

    @cached_property
    def order(self) -> Positions:  # type: ignore[override]  # nothing sets it
        return order_of(self.codes, len(self))


def group_rows(
    sort_keys: SortKeys, columns: Sequence[pa.Array], *, by_counting: bool = False
) -> Grouping:
    """Group rows with equal columns. Equal rows have equal sort keys; unequal rows can collide.

    The counting sort has the same result. It is of use if NumPy has no vector instructions, for sort keys that are
    hashes, so that nearly all differ in their upper 32 bits.
    """
    order, ascending = _counting_sort(sort_keys) if by_counting else _sort(sort_keys)
    order, is_first = group_equal_rows(order, ascending, columns)
    return Grouping(order, np.flatnonzero(is_first))


def dictionary_encode_if_useful(column: pa.Array) -> tuple[pa.Array, Positions] | None:
    """Encode a column as distinct values and indices, if a sample shows few distinct values.

    Hashing and sorting only the distinct values is then several times faster than with all rows. Returns them,
    including null, and for each row the index of its value; None if there are many values.
    """
    rows = len(column)
    if rows < _MIN_SAMPLED_ROWS or pa.types.is_nested(column.type):
        return None
    dense = _encode_dense(column)
    if dense is not None:
        return dense
    sample = column.take(pa.array(np.arange(_SAMPLED_ROWS) * (rows // _SAMPLED_ROWS)))
    if len(_encode(sample).dictionary) > _REPEATED_SHARE * _SAMPLED_ROWS:
        return None
    encoded = _encode(column)
    if len(encoded.dictionary) > MAX_COUNTING_SORT_RANGE:  # the sample was not representative
        return None
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _encode_dense(column: pa.Array) -> tuple[pa.Array, Positions] | None:
    """Encode integers of a small range by their offsets: without hashing, in a quarter of the time."""
    if not pa.types.is_signed_integer(column.type) or column.null_count:
        return None
    numbers = column.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    # Distinct values never pass this check, so the values themselves are not encoded again.
    if high - low >= min(MAX_COUNTING_SORT_RANGE, len(numbers) // 2):
        return None
    offsets = np.subtract(numbers, low, dtype=np.int64)
    is_present = np.bincount(offsets) > 0
    values = pa.array(is_present.nonzero()[0] + low, column.type)
    return values, (np.cumsum(is_present) - 1).take(offsets)


def _encode(column: pa.Array) -> pa.DictionaryArray:
    return pc.dictionary_encode(column, null_encoding="encode")


@cache
def has_vector_sort() -> bool:
    """Return whether NumPy sorts 64-bit numbers with vector instructions on this processor."""
    config = np.show_config(mode="dicts") or {}
    extensions = config.get("SIMD Extensions", {})
    names = {"AVX512_SKX"}
    if not np.__version__.startswith("1."):
        names |= {"AVX2", "X86_V3", "X86_V4", "ASIMD"}
    return not names.isdisjoint((*extensions.get("baseline", ()), *extensions.get("found", ())))


def _sort(sort_keys: SortKeys) -> tuple[Positions, SortKeys]:
    """Return the rows by sort key, then by arrival; and the sort key of each.

    Sort keys and row numbers are sorted as one 64-bit number. With vector instructions that is several times
    faster than `argsort`; without them it takes twice as long as the counting sort.
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
    return _finish_sort(order, sort_keys, packed)


def _counting_sort(sort_keys: SortKeys) -> tuple[Positions, SortKeys]:
    """Do as `_sort` does, for sort keys that nearly all differ in their upper 32 bits.

    NumPy sorts 16-bit numbers by counting: two passes take half the time of a sort without vector instructions,
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
    return _finish_sort(order, sort_keys, upper.take(order))


def _finish_sort(
    order: Positions, sort_keys: SortKeys, upper: npt.NDArray[np.unsignedinteger[Any]]
) -> tuple[Positions, SortKeys]:
    """Sort rows by all bits of their sort keys; return them with their sort keys.

    `order` has them by `upper` bits, ascending, and by arrival where these are equal.
    """
    ascending = sort_keys.take(order)
    descents = np.flatnonzero(ascending[1:] < ascending[:-1])
    if not len(descents):
        return order, ascending
    runs = np.unique(upper[descents])
    starts, ends = upper.searchsorted(runs), upper.searchsorted(runs, "right")
    if 8 * int((ends - starts).sum()) > len(order):
        order = np.argsort(sort_keys, kind="stable")
    else:
        at = np.concatenate([np.arange(*run) for run in zip(starts, ends, strict=True)])
        order[at] = order[at].take(np.argsort(sort_keys.take(order[at]), kind="stable"))
    return order, sort_keys.take(order)
