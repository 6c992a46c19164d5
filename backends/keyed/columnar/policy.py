"""When runs are merged: pure decisions, by sizes in bytes.

A flush is what a batch changes. Runs are of levels by size, each `fan_in` times the one below. Small levels
are merged at once when a level is full, if that is no more than the batch itself justifies; from the heavy
level on runs are swept into the bottom, slice by slice of the sort keys, so that no batch merges more than a
slice. What was small among large flushes is heavy among small ones: levels are those of the flushes of now.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_TURNS = 1024.0
_SLICES_OF_A_TURN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """How much is merged, and when.

    Attributes:
        fan_in: Runs of a level that become one.
        level_bytes: Most bytes of a run of level 0, if a flush is not larger.
        tier_bytes: Most bytes that a merge of small levels reads, or `fan_in` runs as large as the batch's own
            flush if that is more.
        least_slice_bytes: Least bytes that a step of the sweep reads.
        most_slice_bytes: Most bytes that a step of the sweep reads.
        turn: The sweep passes all sort keys in so many times sqrt(bottom / flush) batches: that balances
            what is read against what is written again.
        rewrite: Everything is merged if all of it is at most so many flushes: small states stay one run.
    """

    fan_in: int = 8
    level_bytes: float = 0.5e6
    tier_bytes: float = 32e6
    least_slice_bytes: float = 8e6
    most_slice_bytes: float = 64e6
    turn: float = 5.0
    rewrite: float = 3.0

    def level(self, size: float, flush: float) -> int:
        """The level of a run of that size."""
        unit = self._unit(flush)
        return 0 if size <= unit else math.ceil(math.log(size / unit, self.fan_in) - 1e-9)

    def heavy(self, flush: float) -> int:
        """The level from which on runs are swept, not merged at once."""
        levels = math.log(self.tier_bytes / self._unit(flush), self.fan_in)
        return 1 + max(0, math.floor(levels + 1e-9) - 1)

    def credit(self, *, total: float, bottom: float, flush: float) -> float:
        """Bytes that a batch adds to what the sweep may read."""
        turns = self.turn * math.sqrt(max(1.0, bottom / max(flush, 1.0)))
        return total / min(_MOST_TURNS, max(self.fan_in, turns))

    def slice_bytes(self, total: float, earned: float) -> float:
        """About how many bytes a step of the sweep reads.

        Args:
            total: Bytes of all that is swept.
            earned: Bytes that the batch has added to the credit: with shorter steps the sweep would fall behind.
        """
        wanted = max(total / _SLICES_OF_A_TURN, self.least_slice_bytes, earned)
        return min(wanted, self.most_slice_bytes)

    def window(
        self, sizes: Sequence[float], levels: Sequence[int], *, new: float, flush: float
    ) -> tuple[int, int] | None:
        """Which adjacent runs to merge now: the first, and the one behind the last; None if none.

        Args:
            sizes: The sizes of the runs, newest first.
            levels: The levels of the runs, by the flushes of now.
            new: Size of the first if it is new, else 0.
            flush: About how many bytes a batch changes.
        """
        count = len(sizes)
        if new and count > 1 and sum(sizes[1:]) <= self.rewrite * new:
            return 0, count
        most = max(self.tier_bytes, self.fan_in * self._unit(new))
        for level in range(self.heavy(flush)):
            end = next((at for at in range(count) if levels[at] > level), count)
            full = [at for at in range(end) if levels[at] == level]
            if len(full) < self.fan_in:
                continue
            first = full[0] if sum(sizes[full[0] : end]) <= most else full[-self.fan_in]
            total = sum(sizes[first:end])
            if total > most:  # a larger batch will come, or these runs become heavy
                return None
            while end < count and sizes[end] <= total and total + sizes[end] <= self.tier_bytes:
                total += sizes[end]
                end += 1
            return first, end
        return None

    def _unit(self, flush: float) -> float:
        """Most bytes of a run of level 0: a usual flush is of it."""
        return max(self.level_bytes, 1.5 * flush)
