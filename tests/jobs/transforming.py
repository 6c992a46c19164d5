"""A processor for `transformWithState`; a module of its own, so that executors can import it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class Totals(StatefulProcessor):
    """The sum for each key, and how many rows it had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long, rows long")

    def handleInputRows(  # noqa: N802  # PySpark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803
    ) -> Iterator[Row]:
        total, count = self.total.get() or (0, 0)
        for row in rows:
            total, count = total + row.value, count + 1
        self.total.update((total, count))
        yield Row(key=key[0], total=total, rows=count)

    def close(self) -> None:
        """Nothing to close."""


def transformed_sums(rows: DataFrame) -> DataFrame:
    """The sums by key, through `transformWithState`."""
    return rows.groupBy("key").transformWithState(
        statefulProcessor=Totals(),
        outputStructType="key long, total long, rows long",
        outputMode="Update",
        timeMode="None",
    )
