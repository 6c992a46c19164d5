"""Pairs of rows by key and time. Keys are numbers, and times are microseconds since 1970."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed import positions_between

Rows = npt.NDArray[np.int64]
"""Positions of rows, numbers of keys, or times."""


class Pairs(NamedTuple):
    """The positions of rows that belong together."""

    first: Rows
    second: Rows


class SortedTimes:
    """Rows sorted by key and time, for look-ups of many keys and times at once.

    Args:
        keys: The key of each row.
        times: The time of each row.
        numbers: Numbers that order rows of equal times.
    """

    def __init__(self, keys: Rows, times: Rows, *numbers: Rows) -> None:
        self.order = np.lexsort((*numbers, times, keys))
        self._times = np.unique(times)
        self._places = self._place(keys[self.order], self._times.searchsorted(times[self.order]))

    def count_before(self, keys: Rows, times: Rows) -> Rows:
        """Return how many rows are sorted before a row of each key and time."""
        return self._places.searchsorted(self._place(keys, self._times.searchsorted(times)))

    def count_until(self, keys: Rows, times: Rows) -> Rows:
        """Return how many rows are sorted before a row of each key and time, or have both."""
        ranks = self._times.searchsorted(times, "right")
        return self._places.searchsorted(self._place(keys, ranks))

    def _place(self, keys: Rows, ranks: Rows) -> Rows:
        return keys * (len(self._times) + 1) + ranks


def match_intervals(
    first: tuple[Rows, Rows], second: tuple[Rows, Rows], lower: int, upper: int
) -> Pairs:
    """Return the pairs of rows of one key whose times differ by at least `lower` and at most `upper`.

    Args:
        first: Keys and times of the first rows.
        second: Keys and times of the second rows.
        lower: The least difference, second time minus first time.
        upper: The greatest difference.
    """
    keys, times = first
    sorted_second = SortedTimes(*second)
    starts = sorted_second.count_before(keys, times + lower)
    ends = sorted_second.count_until(keys, times + upper)
    positions = positions_between(starts, ends)
    return Pairs(np.repeat(np.arange(len(keys)), ends - starts), sorted_second.order[positions])


def match_latest(first: tuple[Rows, Rows], second: tuple[Rows, Rows, Rows]) -> Rows:
    """Return for each first row the latest second row of its key that is not later; -1 without one.

    Args:
        first: Keys and times of the first rows.
        second: Keys and times of the second rows, and numbers: of several with the latest time it is the greatest.
    """
    keys, times = first
    second_keys, *_ = second
    sorted_second = SortedTimes(*second)
    last = sorted_second.count_until(keys, times) - 1
    latest = np.full(len(keys), -1, np.int64)
    some = np.flatnonzero(last >= 0)
    rows = sorted_second.order[last[some]]
    is_same = second_keys[rows] == keys[some]
    latest[some[is_same]] = rows[is_same]
    return latest
