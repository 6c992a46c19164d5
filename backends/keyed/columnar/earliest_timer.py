"""The earliest timer of a table: those of each key group lie by time, so only where they begin is looked at."""

from collections.abc import Sequence

import numpy as np

from holdfast.backends.keyed.segments import NEVER, Layer, rows_between
from holdfast.backends.keyed.table import SortKeys, TableSpec
from holdfast.backends.keyed.times import GROUP, STEP, advance_to_time


def earliest_time(
    layers: Sequence[Layer], spec: TableSpec, sort_keys: tuple[int, int]
) -> int | None:
    """The least time of all timers that count; None if there is none.

    Args:
        layers: Newest first.
        spec: What the table holds.
        sort_keys: The least sort key of the subtask, and the least above its own.
    """
    groups = np.arange(sort_keys[0], sort_keys[1], GROUP, dtype=np.uint64)
    low, width = 0, STEP
    while True:
        low = min((_first_from(low, layer, groups) for layer in layers), default=GROUP)
        if low >= GROUP:
            return None
        low -= low % STEP
        high = min(low + width, GROUP)
        rows = rows_between(layers, spec, groups + np.uint64(low), groups + np.uint64(high))
        if rows.rows:
            times = rows.ids[-1]
            return int(times.min())
        low, width = high, 2 * width  # all of these were deleted


def _first_from(low: int, layer: Layer, groups: SortKeys) -> int:
    """Where in its key group the first row lies that is not before `low`; `GROUP` if there is none."""
    begins = np.maximum(groups + np.uint64(low), np.uint64(layer.first))
    if layer.dead_up_to_ms != NEVER:
        begins = advance_to_time(begins, layer.dead_up_to_ms)
    sort_keys = layer.source.sort_keys
    rows = sort_keys.searchsorted(begins)
    inside = rows < sort_keys.searchsorted(np.uint64(layer.end))
    # A row of another key group lies beyond its own.
    places = sort_keys[rows[inside]] - groups[inside]
    return int(places.min(initial=GROUP))
