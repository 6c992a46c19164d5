"""The trigger of windows of event time: when windows are emitted, and when they expire.

A window has a timer for its last millisecond, one for its expiry, and one for its next early result.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.functions import BatchTimes
from holdfast.backends.keyed import KeyedStateBackend, ReducingState, Timers
from holdfast.errors import InvalidRequestError
from holdfast.spark.windows.assigners import (
    Assigned,
    FixedSpans,
    Spans,
    positive_ms,
    positive_rows,
)
from holdfast.spark.windows.sessions import SessionSpans

NEW_ROWS = "new_rows"
"""The name of the state with the number of rows of each window since its last result."""

Emit = Literal["append", "update"]
Early = int | timedelta
"""The cause of an early result of a window: a number of rows, or an interval of event time."""

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Emission:
    """Rules for emitting and keeping windows of event time.

    Attributes:
        emits_open: Whether windows are emitted in each batch that has rows of them, and never by the watermark.
        lateness_ms: Time from the end of a window to its expiry.
        early_rows: The number of new rows after which a window is emitted early; None for no number.
        early_ms: The interval of event time after which a window is emitted early; None for no interval.
    """

    emits_open: bool
    lateness_ms: int
    early_rows: int | None
    early_ms: int | None

    @classmethod
    def of(cls, emit: Emit, allowed_lateness: timedelta, early: Early | None) -> Self:
        """Return the rules that a user declares. Raises `InvalidRequestError`."""
        if emit not in ("append", "update"):
            raise InvalidRequestError(f"emit must be 'append' or 'update', got {emit!r}")
        if early is not None and emit == "update":
            raise InvalidRequestError(
                f"emit='update' emits windows in each batch that has rows of them; leave out early={early!r}, or emit"
            )
        return cls(
            emit == "update",
            positive_ms("allowed lateness", allowed_lateness) if allowed_lateness else 0,
            *_early_of(early),
        )

    def new_rows_state(
        self, store: KeyedStateBackend, namespace: pa.Schema
    ) -> ReducingState | None:
        """Return the state with the number of new rows of each window, if this run or an earlier one counts them."""
        if self.early_rows is None and NEW_ROWS not in store.specs():
            return None
        descriptor = ReducingStateDescriptor(NEW_ROWS, "sum", pa.int64())
        return store.get_reducing_state(descriptor, namespace)


def _early_of(early: Early | None) -> tuple[int | None, int | None]:
    """Return the number of rows or the interval in milliseconds. Raises `InvalidRequestError`."""
    if early is None:
        return None, None
    if isinstance(early, timedelta):
        return None, positive_ms("interval of early results", early)
    return positive_rows("threshold of early results", early), None


class EventTimeTrigger:
    """Emits windows when the watermark completes them, and earlier by their new rows or by the watermark.

    In a batch `add` is called first, then `fire`.

    Args:
        emission: When windows are emitted.
        times: The times of the batch.
        windows: The windows.
        store: The store of their keys.
        timers: Their timers.
        new_rows: The number of rows of each since its last result, if it is counted.

    Source:
        Flink, EventTimeTrigger, CountTrigger and ContinuousEventTimeTrigger.
    """

    def __init__(
        self,
        emission: Emission,
        times: BatchTimes,
        windows: FixedSpans | SessionSpans,
        store: KeyedStateBackend,
        timers: Timers,
        *,
        new_rows: ReducingState | None,
    ) -> None:
        self._emission = emission
        self._times = times
        self._windows = windows
        self._store = store
        self._timers = timers
        self._new_rows = None if new_rows is None else new_rows.columns

    def add(self, assigned: Assigned) -> Spans:
        """Return the windows to emit because of rows that were added to them."""
        spans = assigned.spans
        every = np.arange(len(spans))
        last_ms = spans.ends - 1
        expiry_ms = last_ms + self._emission.lateness_ms
        if self._emission.emits_open:
            self._timers.register(spans.keys, expiry_ms, every)
            return spans
        is_open = last_ms > self._times.late_watermark
        self._timers.register(spans.keys, last_ms[is_open], every[is_open])
        if self._emission.lateness_ms:
            self._timers.register(spans.keys, expiry_ms, every)
        self._wait(spans, is_open)
        due = spans.take(~is_open | self._reaches_early_rows(spans))
        self._restart_count(due)
        return due

    def fire(self) -> tuple[Spans, Spans]:
        """Return the windows to emit because of the batch's watermark, and the expired ones."""
        fired = self._timers.fire(self._times.watermark)
        windows = self._windows.look_up(self._store.keys(list(fired.key)), list(fired.namespace))
        spans = windows.spans
        last_ms = spans.ends - 1
        times_ms, last_of_row = fired.times_ms[windows.rows], last_ms[spans.keys.codes]
        is_complete = spans.with_any(times_ms == last_of_row)
        is_expired = spans.with_any(times_ms >= last_of_row + self._emission.lateness_ms)
        kept = is_complete & ~is_expired
        if kept.any():  # the lateness may be new to windows of an earlier run
            expiry_ms = last_ms[kept] + self._emission.lateness_ms
            self._timers.register(spans.keys, expiry_ms, np.flatnonzero(kept))
        is_due = is_complete
        if self._emission.early_ms is not None:
            is_due = is_due | spans.with_any(times_ms < last_of_row)
        self._restart_count(spans.take(is_due | is_expired))
        due = np.zeros_like(is_due) if self._emission.emits_open else is_due
        return spans.take(due), spans.take(is_expired)

    def _wait(self, spans: Spans, is_open: _Flags) -> None:
        """Set the timers of early results: the next multiple of the interval, unless the window ends before."""
        interval_ms = self._emission.early_ms
        if interval_ms is not None:
            next_ms = (self._times.late_watermark // interval_ms + 1) * interval_ms
            waiting = np.flatnonzero(is_open & (spans.ends - 1 > next_ms))
            self._timers.register(spans.keys, np.full(len(waiting), next_ms), waiting)

    def _reaches_early_rows(self, spans: Spans) -> _Flags:
        """Count new rows, and return the windows to emit because of their number."""
        if self._emission.early_rows is None or self._new_rows is None:
            return np.zeros(len(spans), np.bool_)
        self._new_rows.add(spans.keys, pa.array(np.ones(len(spans.keys.codes), np.int64)))
        counts = self._new_rows.get(spans.keys).to_numpy()
        is_reached: _Flags = counts >= self._emission.early_rows
        return is_reached

    def _restart_count(self, spans: Spans) -> None:
        if self._new_rows is not None and len(spans):
            self._new_rows.clear(spans.keys)
