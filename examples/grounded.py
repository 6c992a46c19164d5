"""An operator that reports aircraft that have not flown for some time, by timers of event time."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

from holdfast import KeyedProcessFunction
from holdfast.backends import FunctionInitializationContext, ListStateDescriptor

_MILLISECOND = timedelta(milliseconds=1)


class Grounded(KeyedProcessFunction):
    """Reports a flight that was an aircraft's last for longer than it should be.

    A report is made when, by the watermark, no earlier flight is still to come. So it makes no
    difference which flights come in which batch, nor that late departures are not in the order of the schedule.

    Args:
        after: How long an aircraft may stay on the ground.
    """

    time_mode = "event"

    def __init__(self, after: timedelta) -> None:
        self._after_ms = after // _MILLISECOND

    def open(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("times", int)
        self._times = context.keyed_state_store.get_list_state(descriptor)

    def process_key(self, key: Any, rows: pa.RecordBatch) -> None:  # noqa: ARG002  # states know it
        times_us = rows["time_hour"].cast(pa.int64()).to_pylist()
        times = sorted({*self._times.get(), *(time_us // 1000 for time_us in times_us)})
        self._times.update(times)
        for time_ms, following_ms in pairwise([*times, math.inf]):
            if following_ms > time_ms + self._after_ms:
                self.register_event_time_timer(time_ms + self._after_ms)

    def on_timer(self, key: Any, time_ms: int, domain: str) -> Iterator[tuple[str, datetime]]:  # noqa: ARG002
        last_ms = time_ms - self._after_ms
        later = [other_ms for other_ms in self._times.get() if other_ms > last_ms]
        self._times.update(later)  # timers to come are of these
        if not later or later[0] > time_ms:
            yield key.tailnum, datetime.fromtimestamp(last_ms / 1000, UTC)
