"""Rows of ranges of sort keys, merged from all layers of a table."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.backends.keyed.columns import Rows, to_arrow
from holdfast.backends.keyed.segments.manifest import END, NEVER
from holdfast.backends.keyed.segments.merging import Part, merged, whole
from holdfast.backends.keyed.segments.rows import RowSource, SortedRows, rows_at
from holdfast.backends.keyed.table import Flags, Identities, SortKeys, TableRows, TableSpec
from holdfast.backends.keyed.times import advance_to_time
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import CheckpointCorruptedError


def sort_key_range(key_groups: KeyGroupRange) -> tuple[int, int]:
    """The least sort key of the key groups, and the least above them."""
    return key_groups.start_key_group << 48, (key_groups.end_key_group + 1) << 48


@dataclass(frozen=True, slots=True)
class Layer:
    """Rows of a source that count.

    Attributes:
        source: Their source.
        first: Least sort key.
        end: Least sort key above it.
        dead_up_to_ms: Timers of at most this time don't count.
    """

    source: RowSource
    first: int = 0
    end: int = END
    dead_up_to_ms: int = NEVER

    def part(self) -> Part:
        """The rows, side by side: a copy if there are dead timers among them."""
        edges = np.array([self.first, self.end], np.uint64)
        first, end = self.source.sort_keys.searchsorted(edges).tolist()
        if self.dead_up_to_ms == NEVER:
            return Part(self.source, first, end)
        rows = np.arange(first, end)
        return whole(rows_at(self.source, rows[self.is_living(rows)]))

    def part_of(self, first: SortKeys, end: SortKeys, endings: Flags | None = None) -> Part:
        """The rows of several ranges, one behind the other; of those whose sort key ends so, if `endings` are given."""
        low = np.maximum(first, np.uint64(self.first))
        if self.dead_up_to_ms != NEVER:
            low = advance_to_time(low, self.dead_up_to_ms)
        edges = np.empty(2 * len(low), np.uint64)
        edges[::2], edges[1::2] = low, np.minimum(end, np.uint64(self.end))
        rows = self.source.sort_keys.searchsorted(edges)  # the end of a range lies where it begins
        starts, ends = rows[::2], rows[1::2]
        lengths = np.maximum(ends, starts) - starts
        if len(lengths) == 1 and self.dead_up_to_ms == NEVER and endings is None:
            return Part(self.source, int(starts[0]), int(starts[0] + lengths[0]))
        rows = np.repeat(starts + lengths - np.cumsum(lengths), lengths)
        rows += np.arange(len(rows))
        if endings is not None:
            ends_so = endings.take(self.source.sort_keys.take(rows).astype(np.uint16))
            rows = rows.compress(ends_so)
        if self.dead_up_to_ms != NEVER:
            rows = rows[self.is_living(rows)]
        return whole(rows_at(self.source, rows))

    def is_living(self, rows: Rows) -> Flags:
        """Which of the timers at these rows count."""
        times = self.source.ids[-1]
        if not isinstance(times, np.ndarray):
            raise CheckpointCorruptedError("a timer has no time")
        is_living: Flags = times.take(rows) > self.dead_up_to_ms
        return is_living


def rows_between(
    layers: Iterable[Layer],
    spec: TableSpec,
    first: SortKeys,
    end: SortKeys,
    *,
    endings: Flags | None = None,
    now_ms: int | None = None,
) -> SortedRows:
    """The rows whose sort keys are in one of the ranges `first[i] <= key < end[i]`, which ascend and don't overlap.

    Args:
        layers: Newest first.
        spec: What the table holds.
        first: Least sort key of each range.
        end: Least sort key above each range.
        endings: For each number of 16 bits whether rows count whose sort key ends in it; None if all do.
        now_ms: The time by which rows expire; None if none does.
    """
    parts = [layer.part_of(first, end, endings) for layer in layers]
    return merged(parts, spec, is_bottom=True, now_ms=now_ms)


def scan(
    layers: Callable[[int, int], Iterable[Layer]],
    spec: TableSpec,
    *,
    rows: int,
    step_rows: int,
    first: int,
    end: int,
    now_ms: int | None = None,
) -> Iterator[SortedRows]:
    """All rows between two sort keys, in steps of equal ranges.

    Args:
        layers: Returns the layers that have rows between two sort keys, newest first.
        spec: What the table holds.
        rows: About how many rows there are.
        step_rows: About how many rows come at a time.
        first: Least sort key.
        end: Least sort key above.
        now_ms: The time by which rows expire; None if none does.
    """
    steps = max(1, -(-rows // step_rows))
    edges = [first + (end - first) * step // steps for step in range(steps + 1)]
    for low, high in itertools.pairwise(edges):
        bounds = np.array([low], np.uint64), np.array([high], np.uint64)
        step = rows_between(layers(low, high), spec, *bounds, now_ms=now_ms)
        if step.rows:
            yield step


def table_rows(rows: SortedRows, spec: TableSpec) -> TableRows:
    """The rows as a table gives them."""
    ids = zip(rows.ids, spec.id_fields, strict=True)
    values = zip(rows.values, spec.values, strict=True)
    return TableRows(
        Identities(rows.sort_keys, tuple(to_arrow(column, field.type) for column, field in ids)),
        tuple(to_arrow(column, field.type) for column, field in values),
        rows.times_ms if spec.ttl_ms is not None else None,
    )
