"""A processor with all kinds of state, which says all that it remembers; a module of its own for executors."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SCHEMA = "name string, at long, remembered string"


class Remembering(StatefulProcessor):
    """Counts and keeps the rows of each key, and registers a timer for each batch that has some.

    Args:
        ttl_ms: How long all states live.
        wait_ms: How long after the watermark, or the time of the batch, the timer is.
    """

    def __init__(self, ttl_ms: int | None = None, wait_ms: int = 15_000) -> None:
        self._ttl_ms = ttl_ms
        self._wait_ms = wait_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long, at timestamp", self._ttl_ms)
        self._ids = handle.getListState("ids", "id long, half decimal(10, 1)", self._ttl_ms)
        self._names = handle.getMapState(
            "names", "id long, even boolean", "name string, parts array<string>", self._ttl_ms
        )

    def handleInputRows(  # noqa: N802  # PySpark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        count = (self._count.get() or (0, None))[0]
        for row in rows:
            count += 1
            self._count.update((count, row.at))
            self._ids.appendValue((row.id, row.half))
            self._names.updateValue((row.id, row.id % 2 == 0), (row.name, row.name.split()))
        now = timerValues.getCurrentWatermarkInMs()
        if self._ttl_ms is not None:
            now = timerValues.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(now + self._wait_ms)
        yield self._remembered(key, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(  # noqa: N802  # PySpark's names
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        yield self._remembered(key, expiredTimerInfo.getExpiryTimeInMs())

    def _remembered(self, key: Any, at: int) -> Row:
        everything = [
            self._count.get(),
            list(self._ids.get()),
            sorted(self._names.iterator()),
            sorted(self._handle.listTimers()),
        ]
        return Row(name=key[0], at=at, remembered=repr(everything))

    def close(self) -> None:
        """Nothing to close."""
