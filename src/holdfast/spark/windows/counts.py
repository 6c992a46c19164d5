"""Count windows: the rows of each key are numbered, and a window ends with a row number.

A number takes the place of the time of fixed windows. State has the number of rows of each key so far.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.functions import NO_WATERMARK
from holdfast.backends.keyed import KeyedStateBackend, Keys
from holdfast.spark.row_order import order_by_time, places_by_key
from holdfast.spark.windows.assigners import (
    Assigned,
    CountWindows,
    FixedSpans,
    FixedWindows,
    Spans,
    Times,
)

COUNTS = "counts"
"""The name of the state with the number of rows of each key."""


class CountSpans:
    """The count windows of all keys, and their trigger; methods as those of `FixedSpans` and `EventTimeTrigger`.

    Args:
        windows: The windows of each row.
        store: The store of the number of rows of each key.
        time: The column that orders the rows of a key in a batch.
        emits_open: Whether windows are emitted in each batch that has rows of them, before they end.
    """

    namespace = FixedSpans.namespace

    def __init__(
        self, windows: CountWindows, store: KeyedStateBackend, time: str, *, emits_open: bool
    ) -> None:
        # Windows end after each `slide` rows, wherever they start.
        self._fixed = FixedSpans(FixedWindows(windows.size, windows.slide, -windows.size))
        descriptor = ReducingStateDescriptor(COUNTS, "sum", pa.int64())
        self._counts = store.get_reducing_state(descriptor).columns
        self._time = time
        self._emits_open = emits_open
        self._complete: Spans | None = None

    def assign(
        self,
        keys: Keys,
        parts: Sequence[pa.RecordBatch],
        times_ms: Times,  # noqa: ARG002  # numbers take their place
        expired_ms: int,  # noqa: ARG002  # no row is late
    ) -> Assigned:
        counts = self._counts.get(keys).fill_null(0).to_numpy()
        self._counts.add(keys, pa.array(np.ones(len(keys.codes), np.int64)))
        order = order_by_time(keys, parts, self._time)
        numbers = counts[keys.codes] + places_by_key(keys.codes, order)
        assigned = self._fixed.assign(keys, parts, numbers, NO_WATERMARK)
        spans = assigned.spans
        is_last = numbers[assigned.rows] == spans.ends[spans.keys.codes] - 1
        self._complete = spans.take(spans.with_any(is_last))
        return assigned

    def add(self, assigned: Assigned) -> Spans | None:
        return assigned.spans if self._emits_open else self._complete

    def fire(self) -> tuple[None, Spans | None]:
        return None, self._complete

    def forget(self, spans: Spans) -> None:
        """Forget complete windows."""
