"""Compact a table for a snapshot: recent writes become a run, and some runs are merged.

Merged rows live longer than recent writes, so each get separate segments. Most batches merge everything that
they write, or nothing, and make one segment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.backends.keyed.segments.columnar_table import ColumnarTable
from holdfast.backends.keyed.segments.manifest import END, Run, Slice, TableManifest
from holdfast.backends.keyed.segments.merging import Arena, merge_in_chunks
from holdfast.backends.keyed.segments.rows import RowRange, SortedRows
from holdfast.backends.keyed.segments.segment_writer import MAX_SEGMENT_BYTES, SegmentWriter
from holdfast.locations.file_systems import BytesLike

_MAX_SWEEP_BATCHES = 1024.0
_MIN_SWEEP_STEPS = 64
_MAX_POSTPONED_BATCHES = 64
"""A step of the sweep waits for up to this many batches until its segments are on this host, so that no batch fetches them."""

_BOTTOM_LEVEL = 99
_NEW_FLUSH_WEIGHT = 0.2
_MAX_BUDGET_SHARE = 1.25
"""Bound of a step's size relative to its budget, which is estimated by rows of different sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """The decision which runs are merged, and when, by sizes in bytes. Pure.

    A flush is the data that a batch changes. Runs have levels by size, each `fan_in` times the one below. A full small
    level is merged at once, if that costs no more than the batch justifies. Runs from the sweep level on are merged
    into the bottom step by step, in a sweep over the sort keys, so that no batch merges more than a step. Levels depend
    on the present size of flushes: a run that was small among large flushes is swept among small ones.

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
        """Return the wanted bytes of a step of the sweep over `total` bytes.

        Smaller steps than the credit that a batch has `earned` would never complete the sweep.
        """
        wanted = max(total / _MIN_SWEEP_STEPS, self.min_step_bytes, earned)
        return min(wanted, self.max_step_bytes)

    def window(
        self, sizes: Sequence[float], levels: Sequence[int], *, new: float, flush: float
    ) -> tuple[int, int] | None:
        """Return the adjacent runs to merge now, the first and the end, exclusive; None for none.

        Runs are given newest first, by their sizes and their levels by the present size of flushes. `new` is the size
        of the first one if it is new, else 0.
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


class NewSegment(SegmentWriter):
    """A segment in progress, whose buffers are kept until it is stored."""

    def __init__(self) -> None:
        self.buffers: list[BytesLike] = []
        super().__init__(self.buffers.append)


class NewSegments:
    """Segments in progress, each written until the next rows would make it too large."""

    def __init__(self) -> None:
        self.all: list[NewSegment] = []

    def writer_for(self, size: float) -> NewSegment:
        """Return the segment for rows of this size in bytes."""
        if not self.all or self.all[-1].size + size > MAX_SEGMENT_BYTES:
            self.all.append(NewSegment())
        return self.all[-1]


class Compaction:
    """The compaction of a table, into segments for recent writes and for merged rows; it doesn't change the table."""

    def __init__(
        self,
        table: ColumnarTable,
        policy: MergePolicy,
        *,
        new: NewSegments,
        merged: NewSegments,
        arena: Arena,
    ) -> None:
        self._table = table
        self._policy = policy
        self._new = new
        self._merged = merged
        self._arena = arena
        self._old = table.manifest
        self._flush = self._old.flush_bytes
        self._spec = len(self._old.specs) - 1

    def compact(self) -> TableManifest:
        """Write segments, and return the new manifest of the table. Raises `InvalidRequestError` if a sum overflows its type."""
        rows = self._table.merge_recent()
        if rows is not None and not rows.rows:
            rows = None
        size = 0.0 if rows is None else float(rows.size)
        if rows is not None:
            weight = _NEW_FLUSH_WEIGHT if self._flush else 1.0
            self._flush += weight * (size - self._flush)
        old = self._old
        recent = [] if rows is None else [size]
        sizes = [*recent, *(run.size for run in old.runs)]
        levels = [self._policy.level(size, self._flush) for size in recent]
        levels += map(self._level, old.runs)
        window: tuple[int, int] | None = (0, len(sizes))
        if not (sizes and self._table.is_rewritten):
            window = self._policy.window(sizes, levels, new=size, flush=self._flush)
        if window is not None:
            new = msgspec.structs.replace(old, runs=self._merge_runs(rows, *window))
        else:
            swept = self._sweep()
            new = msgspec.structs.replace(swept, runs=(*self._write_recent(rows), *swept.runs))
        return msgspec.structs.replace(new, flush_bytes=self._flush).without_unused_specs()

    def _write_recent(self, rows: SortedRows | None) -> tuple[Run, ...]:
        """Write recent writes, if there are some, as a separate run."""
        if rows is None:
            return ()
        slices = self._write(self._new, rows, self._table.sort_keys, is_bottom=not self._old.runs)
        return (Run(self._policy.level(rows.size, self._flush), slices),)

    def _merge_runs(self, rows: SortedRows | None, first: int, end: int) -> tuple[Run, ...]:
        """Merge the runs from `first` up to `end` into one; return all runs. The recent writes, if any, are number 0."""
        old, shift = self._old.runs, int(rows is not None)
        ranges = [] if first or rows is None else [RowRange.whole(rows)]
        newer = self._write_recent(rows) if first else ()
        first, end = max(0, first - shift), end - shift  # from here on among the old runs
        ranges += self._table.open_ranges(old[first:end])
        merged = self._merge(ranges, is_bottom=end == len(old))
        runs = [*newer, *old[:first]]
        if merged.rows:
            slices = self._write(
                self._merged, merged, self._table.sort_keys, is_bottom=end == len(old)
            )
            runs.append(Run(self._policy.level(merged.size, self._flush), slices))
        return (*runs, *old[end:])

    def _sweep(self) -> TableManifest:
        """Return the old runs; if there is credit, with a step of the swept runs merged into the last."""
        old, policy = self._old, self._policy
        sweep_level = policy.sweep_level(self._flush)
        levels = [self._level(run) for run in old.runs]
        first = next((at for at, level in enumerate(levels) if level >= sweep_level), len(levels))
        swept = old.runs[first:]
        if len(swept) < 2:
            return old
        total = sum(run.size for run in swept)
        earned = policy.credit(total=total, bottom=swept[-1].size, flush=self._flush)
        credit = old.credit + earned
        budget = policy.step_bytes(total, earned)
        if credit < min(budget, total):
            return msgspec.structs.replace(old, credit=credit)
        patience = _MAX_POSTPONED_BATCHES * earned
        if credit < budget + patience and not self._table.is_local(swept):
            return msgspec.structs.replace(old, credit=credit)
        start, end = self._table.sort_keys
        low = old.cursor if start <= old.cursor < end else start
        high = self._step_end(swept, low, budget)
        within = [step for run in swept if (step := run.within(low, high)) is not None]
        ranges = self._table.open_ranges(within)
        merged = self._merge(ranges, is_bottom=True)
        row_bytes = merged.size / merged.rows if merged.rows else 32
        read = sum(range_.rows for range_ in ranges) * row_bytes
        runs = [*old.runs[:first]]
        for run in swept:
            slices = [
                slice_
                for whole in run.slices
                for slice_ in (whole.within(0, low), whole.within(high, END))
                if slice_ is not None
            ]
            level = run.level
            if run is swept[-1] and merged.rows:
                slices += self._write(self._merged, merged, (low, high), is_bottom=True)
                slices.sort(key=lambda slice_: slice_.first)
                level = _BOTTOM_LEVEL
            if slices:
                runs.append(Run(level, tuple(slices)))
        return msgspec.structs.replace(
            old,
            runs=tuple(runs),
            credit=max(0.0, credit - read),
            cursor=high if high < end else start,
        )

    def _step_end(self, runs: Sequence[Run], low: int, budget: float) -> int:
        """Return the sort key up to which the runs have about `budget` bytes from `low` on."""
        high = self._step_end_by_largest(runs, low, budget)
        while True:  # the rows of other runs may be distributed differently
            steps = filter(None, (run.within(low, high) for run in runs))
            slices = [slice_ for step in steps for slice_ in step.slices]
            row_bytes = [slice_.row_bytes for slice_ in slices]
            sized = list(zip(self._table.sort_keys_of(slices), row_bytes, strict=True))
            size = sum(len(sort_keys) * row_bytes for sort_keys, row_bytes in sized)
            if size <= _MAX_BUDGET_SHARE * budget:
                return high
            largest, _ = max(sized, key=lambda each: len(each[0]) * each[1])
            high = max(low + 1, int(largest[int(len(largest) * budget / size)]))
            if high == low + 1:
                return high

    def _step_end_by_largest(self, runs: Sequence[Run], low: int, budget: float) -> int:
        """Return the sort key up to which the largest run has its share of `budget` bytes."""
        largest = max(runs, key=lambda run: run.size)
        left = budget * largest.size / sum(run.size for run in runs)
        within = largest.within(low, END)
        for slice_ in within.slices if within else ():
            (sort_keys,) = self._table.sort_keys_of([slice_])
            if len(sort_keys) * slice_.row_bytes > left:
                row = max(1, int(left / slice_.row_bytes))
                if row >= len(sort_keys):
                    return slice_.end
                return max(low + 1, int(sort_keys[row]))
            left -= len(sort_keys) * slice_.row_bytes
        return self._table.sort_keys[1]

    def _level(self, run: Run) -> int:
        """Return the level of a run by the present size of flushes, which may be smaller than when it was made."""
        return max(run.level, self._policy.level(run.size, self._flush))

    def _merge(self, ranges: Sequence[RowRange], *, is_bottom: bool) -> SortedRows:
        spec, now_ms = self._table.spec, self._table.now_ms()
        return merge_in_chunks(ranges, spec, self._arena, is_bottom=is_bottom, now_ms=now_ms)

    def _write(
        self,
        segments: NewSegments,
        rows: SortedRows,
        sort_keys: tuple[int, int],
        *,
        is_bottom: bool,
    ) -> tuple[Slice, ...]:
        """Write the rows, which are all rows of a range of sort keys; return slices of the range."""
        spec = self._table.spec
        first, end = sort_keys
        slices: list[Slice] = []
        for part in rows.split(rows.rows, MAX_SEGMENT_BYTES):
            segment = segments.writer_for(part.size)
            number = segment.add_section(
                spec.name, part.sort_keys, part.columns(spec), has_filter=not is_bottom
            )
            if slices:
                first = int(part.sort_keys[0])
                slices[-1] = msgspec.structs.replace(slices[-1], end=first)
            row_bytes = part.size / part.rows
            slices.append(Slice(segment.name, number, first, end, part.rows, row_bytes, self._spec))
        return tuple(slices)
