"""Processors for `transformWithState`, in a module that executors can import."""

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any

from jobs.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql import DataFrame, Row

ALL_TYPES = (
    "b byte, s short, i int, l long, f float, d double, n decimal(20, 3), t string, x binary, o boolean, day date, "
    "at timestamp, local timestamp_ntz, span interval day to second, "
    "items array<struct<id long, at timestamp>>, by map<string, struct<half decimal(3, 1), tags array<string>>>"
)
"""Fields of a state, of every type that one can have."""


class TotalsProcessor(StatefulProcessor):
    """Keeps the sum and the number of rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long, rows long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        total, count = self.total.get() or (0, 0)
        for row in rows:
            total, count = total + row.value, count + 1
        self.total.update((total, count))
        yield Row(key=key[0], total=total, rows=count)

    def close(self) -> None:
        """Nothing to close."""


class InitializedTotals(TotalsProcessor):
    """Totals that begin with rows of initial state; a timer yields these keys once more."""

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
    """Sum up the values of each key with `transformWithState`."""
    return rows.groupBy("key").transformWithState(
        statefulProcessor=TotalsProcessor(),
        outputStructType="key long, total long, rows long",
        outputMode="Update",
        timeMode="None",
    )


class Remembering(StatefulProcessor):
    """Counts and keeps the rows of each key in all types of state, registers a timer for each batch, and yields all it has.

    Args:
        ttl_ms: The time to live of all states.
        wait_ms: Time between the watermark, or the time of the batch, and the timer.
    """

    schema = "name string, at long, remembered string"

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

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
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
        yield self._row(key, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self._row(key, expiredTimerInfo.getExpiryTimeInMs())

    def _row(self, key: Any, at: int) -> Row:
        everything = [
            self._count.get(),
            list(self._ids.get()),
            sorted(self._names.iterator()),
            sorted(self._handle.listTimers()),
        ]
        return Row(name=key[0], at=at, remembered=repr(everything))

    def close(self) -> None:
        """Nothing to close."""


class Waiting(StatefulProcessor):
    """Keeps the rows of a compound key in all types of state, and yields them again 15 s after each batch's last.

    Rows have the columns `value`, `part`, `id`, `at` and `half`; the first two are the key.
    """

    schema = "value string, part long, kept string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "n long, at timestamp")
        self._ids = handle.getListState("ids", "id long, half decimal(10, 1)")
        self._days = handle.getMapState("days", "day date, even boolean", "at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = (self._last.get() or (0, None))[0]
        for row in rows:
            count += 1
            self._last.update((count, row.at))
            self._ids.appendValue((row.id, row.half))
            self._days.updateValue((row.at.date(), row.id % 2 == 0), (row.at,))
        self._handle.registerTimer(int(row.at.timestamp() * 1000) + 15_000)
        yield self._row(key)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self._row(key, "timer", expiredTimerInfo.getExpiryTimeInMs())

    def _row(self, key: Any, *also: Any) -> Row:
        everything = [
            self._last.get(),
            list(self._ids.get()),
            sorted(self._days.iterator()),
            sorted(self._handle.listTimers()),
            *also,
        ]
        return Row(value=key[0], part=key[1], kept=repr(everything))

    def close(self) -> None:
        """Nothing to close."""


class AllTypes(StatefulProcessor):
    """Keeps values of all types where a row has a number, and yields for each key what it keeps.

    Rows have the columns `k`, the key, and `v`, the number.

    Args:
        is_pandas: Whether it takes and yields frames of pandas.
        ttl_ms: The time to live of all states.
    """

    schema = "out string"

    def __init__(self, *, is_pandas: bool = False, ttl_ms: int | None = None) -> None:
        self._is_pandas = is_pandas
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", ALL_TYPES, self._ttl_ms)
        self._list = handle.getListState("changed", ALL_TYPES, self._ttl_ms)
        self._map = handle.getMapState("map", "l long, at timestamp", ALL_TYPES, self._ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            for number in row["v"].dropna().astype(int) if self._is_pandas else [row.v]:
                if number is not None:
                    self._keep(int(number))
        kept = [self._value.get(), list(self._list.get()), sorted(self._map.iterator(), key=repr)]
        yield self._output(repr((key, kept)))

    def _keep(self, number: int) -> None:
        nulls = (None,) * 16
        self._value.update(value_of_all_types(number))
        self._list.appendList([nulls, value_of_all_types(-number), value_of_all_types(number + 1)])
        self._map.updateValue((None, None), nulls)
        self._map.updateValue(
            (number, value_of_all_types(number)[11]), value_of_all_types(number + 2)
        )

    def _output(self, text: str) -> Any:
        if not self._is_pandas:
            return Row(out=text)
        import pandas as pd  # the other flavour does without

        return pd.DataFrame({"out": [text]})

    def close(self) -> None:
        """Nothing to close."""


def value_of_all_types(number: int) -> tuple[Any, ...]:
    """Return a value of `ALL_TYPES`: integers too large for a float, and an hour that occurs twice in its time zone."""
    at = dt.datetime(2026, 10, 25, 0, 30, 0, number % 1000 + 1, tzinfo=dt.UTC)
    at += dt.timedelta(hours=number % 2)
    return (
        number % 100,
        -number % 100,
        number,
        (1 << 60) + number,
        number / 8,
        float("nan"),
        decimal.Decimal(number) / 8,
        f"number {number}",
        b"\0%d" % number,
        number % 2 == 0,
        dt.date(1, 1, 1) + dt.timedelta(number % 7),
        at,
        dt.datetime(9999, 12, 31, 23, 59, 59, number % 7),  # noqa: DTZ001  # a time without a zone
        dt.timedelta(days=number, microseconds=1),
        [(number, at), None, ((1 << 60) + 1, None)],
        {"": (decimal.Decimal("0.5"), [None, "tag"]), "none": None},
    )
