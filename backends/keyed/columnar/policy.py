"""The merge policy: which runs are merged, and when. Pure decisions, by sizes in bytes.

A flush is the data that a batch changes. Runs have levels by size, each `fan_in` times the one below. A full small
level is merged at once, if that costs no more than the batch justifies. Runs from the sweep level on are merged into
the bottom step by step, in a sweep over the sort keys, so that no batch merges more than a step. Levels depend on the
present size of flushes: a run that was small among large flushes is swept among small ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_SWEEP_BATCHES = 1024.0
_MIN_SWEEP_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """Bounds on the merges of a snapshot.

    Attributes:
        fan_in: Number of runs of a level that are merged into one.
        level_bytes: Maximum size of a run of level 0, unless flushes are larger.
        tier_bytes: Maximum bytes that a merge of small levels reads, unless `fan_in` runs of the size of the
            batch's own flush are more.
        min_step_bytes: Minimum bytes that a step of the sweep reads.
        max_step_bytes: Maximum bytes that a step of the sweep reads.
        sweep_factor: A sweep over all sort keys takes this times sqrt(bottom / flush) batches, which balances the
            bytes that are read and the bytes that are rewritten.
        rewrite_factor: Everything is merged if the older runs together are at most this many times the new one, so
            that small states stay one run.
    """

    fan_in: int = 8
    level_bytes: float = 0.5e6
    tier_bytes: float = 32e6
    min_step_bytes: float = 8e6
    max_step_bytes: float = 64e6
    sweep_factor: float = 5.0
    rewrite_factor: float = 3.0

    def level(self, size: float, flush: float) -> int:
        """Return the level of a run of this size."""
        unit = self._unit(flush)
        return 0 if size <= unit else math.ceil(math.log(size / unit, self.fan_in) - 1e-9)

    def sweep_level(self, flush: float) -> int:
        """Return the first level whose runs are swept, not merged at once."""
        levels = math.log(self.tier_bytes / self._unit(flush), self.fan_in)
        return 1 + max(0, math.floor(levels + 1e-9) - 1)

    def credit(self, *, total: float, bottom: float, flush: float) -> float:
        """Return the bytes that a batch adds to the sweep's credit."""
        batches = self.sweep_factor * math.sqrt(max(1.0, bottom / max(flush, 1.0)))
        return total / min(_MAX_SWEEP_BATCHES, max(self.fan_in, batches))

    def step_bytes(self, total: float, earned: float) -> float:
        """Return the wanted bytes of a step of the sweep.

        Args:
            total: Bytes of all swept runs.
            earned: Bytes that the batch has added to the credit: smaller steps would never complete the sweep.
        """
        wanted = max(total / _MIN_SWEEP_STEPS, self.min_step_bytes, earned)
        return min(wanted, self.max_step_bytes)

    def window(
        self, sizes: Sequence[float], levels: Sequence[int], *, new: float, flush: float
    ) -> tuple[int, int] | None:
        """Return the adjacent runs to merge now, the first and the end, exclusive; None for none.

        Args:
            sizes: The sizes of the runs, newest first.
            levels: Their levels by the present size of flushes.
            new: Size of the first run if it is new, else 0.
            flush: Estimated bytes that a batch changes.
        """
        count = len(sizes)
        if new and count > 1 and sum(sizes[1:]) <= self.rewrite_factor * new:
            return 0, count
        max_total = max(self.tier_bytes, self.fan_in * self._unit(new))
        for level in range(self.sweep_level(flush)):
            end = next((at for at in range(count) if levels[at] > level), count)
            full = [at for at in range(end) if levels[at] == level]
            if len(full) < self.fan_in:
                continue
            first = full[0] if sum(sizes[full[0] : end]) <= max_total else full[-self.fan_in]
            total = sum(sizes[first:end])
            if total > max_total:  # a larger batch follows, or these runs are swept later
                return None
            while end < count and sizes[end] <= total and total + sizes[end] <= self.tier_bytes:
                total += sizes[end]
                end += 1
            return first, end
        return None

    def _unit(self, flush: float) -> float:
        """Return the maximum size of a run of level 0, which a usual flush does not exceed."""
        return max(self.level_bytes, 1.5 * flush)
