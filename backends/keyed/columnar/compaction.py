"""What a snapshot does to a table: recent writes become a run, and some runs are merged.

Merged rows live longer than recent writes, so each get a segment of their own. Most batches
merge all that they write, or merge nothing, and make one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.backends.keyed.columnar.chunked_merging import merged_by_chunks
from holdfast.backends.keyed.columnar.columnar_table import ColumnarTable
from holdfast.backends.keyed.columnar.policy import MergePolicy
from holdfast.backends.keyed.columnar.workspace import Arena
from holdfast.backends.keyed.segments import (
    END,
    Needles,
    Part,
    Run,
    SegmentWriter,
    Slice,
    SortedRows,
    TableManifest,
    new_segment_name,
    whole,
)
from holdfast.locations.file_systems import BytesLike

_BOTTOM_LEVEL = 99
_SHARE_OF_NEW_FLUSH = 0.2
_MOST_OF_BUDGET = 1.25
"""What a slice may have of its budget: it is measured by rows, and those are not alike."""


@dataclass(slots=True)
class NewSegment:
    """A segment in the making: its parts are kept as they are until it is stored.

    Attributes:
        name: The segment's name.
        parts: The segment's bytes.
    """

    name: str = field(default_factory=new_segment_name)
    parts: list[BytesLike] = field(default_factory=list)
    writer: SegmentWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = SegmentWriter(self.parts.append)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the table, or of rows that were just written or merged.

    Attributes:
        size: About how many bytes.
        run: The run; None while it is in memory alone.
    """

    size: float
    level: int
    run: Run | None = None


class Compaction:
    """Makes the new manifest of a table. Nothing of the table changes.

    Args:
        table: The table.
        policy: What is merged.
        new: Where rows go that were just written.
        merged: Where rows go that were merged.
        arena: Memory for merging.
    """

    def __init__(
        self,
        table: ColumnarTable,
        policy: MergePolicy,
        *,
        new: NewSegment,
        merged: NewSegment,
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

    def manifest(self) -> TableManifest:
        """The table's runs, with what was written.

        Raises:
            CheckpointCorruptedError: A segment is damaged.
            InvalidRequestError: A sum is not among the numbers of its type.
        """
        rows = self._table.settle()
        rows = rows if rows is not None and rows.rows else None
        size = 0.0 if rows is None else float(rows.size)
        if rows is not None:
            share = _SHARE_OF_NEW_FLUSH if self._flush else 1.0
            self._flush += share * (size - self._flush)
        old = self._old
        new_runs = [] if rows is None else [_Run(size, self._policy.level(size, self._flush))]
        runs = [*new_runs, *(_Run(run.size, self._level(run), run) for run in old.runs)]
        window: tuple[int, int] | None = (0, len(runs))
        if not (runs and self._table.is_rewritten):
            window = self._policy.window(
                [run.size for run in runs],
                [run.level for run in runs],
                new=size,
                flush=self._flush,
            )
        if window is not None:
            merged = self._merge_runs(rows, runs, *window)
            return self._pruned(msgspec.structs.replace(old, runs=merged, flush_bytes=self._flush))
        added: tuple[Run, ...] = ()
        if rows is not None:
            written = self._write(self._new, rows, is_bottom=not old.runs)
            added = (Run(new_runs[0].level, (written,)),)
        swept = self._sweep()
        return self._pruned(
            msgspec.structs.replace(swept, runs=(*added, *swept.runs), flush_bytes=self._flush)
        )

    def _merge_runs(
        self, rows: SortedRows | None, runs: Sequence[_Run], first: int, end: int
    ) -> tuple[Run, ...]:
        """All runs, with those from `first` up to `end` as one."""
        parts: list[Part] = []
        for run in runs[first:end]:
            if run.run is not None:
                parts += [self._table.layer(piece).part() for piece in run.run.slices]
            elif rows is not None:
                parts.append(whole(rows))
        is_bottom = end == len(runs)
        merged = self._merge(parts, is_bottom=is_bottom)
        result: list[Run] = []
        for run in runs[:first]:
            if run.run is not None:
                result.append(run.run)
            elif rows is not None:
                result.append(Run(run.level, (self._write(self._new, rows, is_bottom=False),)))
        if merged.rows:
            piece = self._write(self._merged, merged, is_bottom=is_bottom)
            result.append(Run(self._policy.level(merged.size, self._flush), (piece,)))
        result += [run.run for run in runs[end:] if run.run is not None]
        return tuple(result)

    def _sweep(self) -> TableManifest:
        """The old runs; if there is credit, with a slice of the heavy ones merged into the last."""
        old, policy = self._old, self._policy
        heavy = policy.heavy(self._flush)
        levels = [self._level(run) for run in old.runs]
        first = next((at for at, level in enumerate(levels) if level >= heavy), len(levels))
        swept = old.runs[first:]
        if len(swept) < 2:
            return old
        total = sum(run.size for run in swept)
        earned = policy.credit(total=total, bottom=swept[-1].size, flush=self._flush)
        credit = old.credit + earned
        budget = policy.slice_bytes(total, earned)
        if credit < min(budget, total):
            return msgspec.structs.replace(old, credit=credit)
        least, above = self._table.sort_keys
        low = old.cursor if least <= old.cursor < above else least
        high = self._end_of_slice(swept, low, budget)
        within = [part for run in swept if (part := run.within(low, high)) is not None]
        parts = [self._table.layer(piece).part() for run in within for piece in run.slices]
        merged = self._merge(parts, is_bottom=True)
        row_bytes = merged.size / merged.rows if merged.rows else 32
        read = sum(part.rows for part in parts) * row_bytes
        runs = [*old.runs[:first]]
        for run in swept:
            slices = [
                piece
                for whole_piece in run.slices
                for piece in (whole_piece.within(0, low), whole_piece.within(high, END))
                if piece is not None
            ]
            level = run.level
            if run is swept[-1] and merged.rows:
                written = self._write(self._merged, merged, is_bottom=True)
                slices.append(msgspec.structs.replace(written, first=low, end=high))
                slices.sort(key=lambda piece: piece.first)
                level = _BOTTOM_LEVEL
            if slices:
                runs.append(Run(level, tuple(slices)))
        return msgspec.structs.replace(
            old,
            runs=tuple(runs),
            credit=max(0.0, credit - read),
            cursor=high if high < above else least,
        )

    def _end_of_slice(self, runs: Sequence[Run], low: int, budget: float) -> int:
        """The sort key up to which the runs have about that many bytes from `low` on."""
        high = self._end_by_largest(runs, low, budget)
        while True:  # other runs may have their rows elsewhere than the largest
            parts = [
                (self._table.layer(piece).part(), piece.row_bytes)
                for run in runs
                if (within := run.within(low, high)) is not None
                for piece in within.slices
            ]
            size = sum(part.rows * row_bytes for part, row_bytes in parts)
            if size <= _MOST_OF_BUDGET * budget:
                return high
            most, _ = max(parts, key=lambda part: part[0].rows * part[1])
            row = most.first + int(most.rows * budget / size)
            high = max(low + 1, int(most.source.sort_keys[row]))
            if high == low + 1:
                return high

    def _end_by_largest(self, runs: Sequence[Run], low: int, budget: float) -> int:
        """The sort key up to which the largest run has its share of so many bytes."""
        largest = max(runs, key=lambda run: run.size)
        left = budget * largest.size / sum(run.size for run in runs)
        within = largest.within(low, END)
        for piece in within.slices if within else ():
            part = self._table.layer(piece).part()
            if part.rows * piece.row_bytes > left:
                row = part.first + max(1, int(left / piece.row_bytes))
                if row >= part.end:
                    return piece.end
                return max(low + 1, int(part.source.sort_keys[row]))
            left -= part.rows * piece.row_bytes
        return self._table.sort_keys[1]

    def _level(self, run: Run) -> int:
        """The level of a run among flushes as they are now, which may be smaller than when it was made."""
        return max(run.level, self._policy.level(run.size, self._flush))

    def _merge(self, parts: Sequence[Part], *, is_bottom: bool) -> SortedRows:
        return merged_by_chunks(
            parts,
            self._table.spec,
            self._arena,
            is_bottom=is_bottom,
            now_ms=self._table.now_ms,
        )

    def _write(self, segment: NewSegment, rows: SortedRows, *, is_bottom: bool) -> Slice:
        """Add a section for the rows; gives the slice of all of it."""
        needles = Needles.MOSTLY_THERE if is_bottom else Needles.MOSTLY_ABSENT
        spec = self._table.spec
        columns = rows.columns(spec)
        number = segment.writer.add_section(spec.name, rows.sort_keys, columns, needles)
        first, end = self._table.sort_keys
        return Slice(segment.name, number, first, end, rows.rows, rows.size / rows.rows, self._spec)

    @staticmethod
    def _pruned(manifest: TableManifest) -> TableManifest:
        """The manifest without specs that no slice was written with."""
        used = {piece.spec for piece in manifest.slices()} | {len(manifest.specs) - 1}
        if len(used) == len(manifest.specs):
            return manifest
        numbers = {old: new for new, old in enumerate(sorted(used))}
        runs = tuple(
            Run(
                run.level,
                tuple(
                    msgspec.structs.replace(piece, spec=numbers[piece.spec]) for piece in run.slices
                ),
            )
            for run in manifest.runs
        )
        specs = tuple(manifest.specs[number] for number in sorted(used))
        return msgspec.structs.replace(manifest, specs=specs, runs=runs)
