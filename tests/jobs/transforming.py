"""A processor for `transformWithState`; a module of its own, so that executors can import it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class Totals(StatefulProcessor):
    """The sum for each key, and how many rows it had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long, rows long")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: object,
    ) -> Iterator[Row]:
        total, count = self.total.get() or (0, 0)
        for row in rows:
            total, count = total + row.value, count + 1
        self.total.update((total, count))
        yield Row(key=key[0], total=total, rows=count)

    def close(self) -> None:
        """Nothing to close."""


class TotalsFromThere(Totals):
    """Totals that begin with rows of initial state; a timer tells these keys once more."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.handle = handle

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        total, count = self.total.get() or (0, 0)
        self.total.update((total + initialState.amount, count + initialState.n))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield from self.handleInputRows(key, iter(()), timerValues)


def transformed_sums(rows: DataFrame) -> DataFrame:
    """The sums by key, through `transformWithState`."""
    return rows.groupBy("key").transformWithState(
        statefulProcessor=Totals(),
        outputStructType="key long, total long, rows long",
        outputMode="Update",
        timeMode="None",
    )
