"""Processors that go from Holdfast back to Spark; a module of its own, so that executors can import it."""

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

ALL_TYPES = (
    "b byte, s short, i int, l long, f float, d double, n decimal(20, 3), t string, x binary, o boolean, day date, "
    "at timestamp, local timestamp_ntz, span interval day to second, "
    "items array<struct<id long, at timestamp>>, by map<string, struct<half decimal(3, 1), tags array<string>>>"
)
"""Fields of a state, of every type that one can have."""


class Waiting(StatefulProcessor):
    """Keeps the rows of a compound key in all kinds of state, and tells them again some seconds after each batch's last.

    Rows have the columns `value`, `part`, `id`, `at` and `half`; the first two are the key.
    """

    schema = "value string, part long, told string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "n long, at timestamp")
        self._ids = handle.getListState("ids", "id long, half decimal(10, 1)")
        self._days = handle.getMapState("days", "day date, even boolean", "at timestamp")

    def handleInputRows(  # noqa: N802  # PySpark's names
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        count = (self._last.get() or (0, None))[0]
        for row in rows:
            count += 1
            self._last.update((count, row.at))
            self._ids.appendValue((row.id, row.half))
            self._days.updateValue((row.at.date(), row.id % 2 == 0), (row.at,))
        self._handle.registerTimer(int(row.at.timestamp() * 1000) + 15_000)
        yield self._told(key)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        yield self._told(key, "timer", expiredTimerInfo.getExpiryTimeInMs())

    def _told(self, key: Any, *also: Any) -> Row:
        everything = [
            self._last.get(),
            list(self._ids.get()),
            sorted(self._days.iterator()),
            sorted(self._handle.listTimers()),
            *also,
        ]
        return Row(value=key[0], part=key[1], told=repr(everything))

    def close(self) -> None:
        """Nothing to close."""


class AllTypes(StatefulProcessor):
    """Keeps values of all types where a row has a number, and tells for each key what it keeps.

    Rows have the columns `k`, the key, and `v`, the number.

    Args:
        is_pandas: Whether it is given and gives frames.
        ttl_ms: How long what it keeps lives.
    """

    schema = "out string"

    def __init__(self, *, is_pandas: bool = False, ttl_ms: int | None = None) -> None:
        self._is_pandas = is_pandas
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", ALL_TYPES, self._ttl_ms)
        self._list = handle.getListState("changed", ALL_TYPES, self._ttl_ms)
        self._map = handle.getMapState("map", "l long, at timestamp", ALL_TYPES, self._ttl_ms)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        for row in rows:
            for number in row["v"].dropna().astype(int) if self._is_pandas else [row.v]:
                if number is not None:
                    self._keep(int(number))
        kept = [self._value.get(), list(self._list.get()), sorted(self._map.iterator(), key=repr)]
        yield self._output(repr((key, kept)))

    def _keep(self, number: int) -> None:
        nulls = (None,) * 16
        self._value.update(of_all_types(number))
        self._list.appendList([nulls, of_all_types(-number), of_all_types(number + 1)])
        self._map.updateValue((None, None), nulls)
        self._map.updateValue((number, of_all_types(number)[11]), of_all_types(number + 2))

    def _output(self, text: str) -> Any:
        if not self._is_pandas:
            return Row(out=text)
        import pandas as pd  # the other flavour does without

        return pd.DataFrame({"out": [text]})

    def close(self) -> None:
        """Nothing to close."""


def of_all_types(number: int) -> tuple[Any, ...]:
    """A value of `ALL_TYPES`; whole numbers are none that a float could hold, and it is an hour that comes twice."""
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
        dt.datetime(9999, 12, 31, 23, 59, 59, number % 7),  # noqa: DTZ001  # a time of no zone
        dt.timedelta(days=number, microseconds=1),
        [(number, at), None, ((1 << 60) + 1, None)],
        {"": (decimal.Decimal("0.5"), [None, "tag"]), "none": None},
    )
