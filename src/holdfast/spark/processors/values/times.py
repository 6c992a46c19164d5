"""Dates, instants, times without a zone, and durations."""

import datetime as dt
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.spark.processors.values.column_objects import objects_of
from holdfast.spark.processors.values.value_type import NoValueError, ValueType, plain

_MOST_DAYS = (1 << 63) // (24 * 60 * 60 * 1_000_000)
"""As many days as 64 bits of microseconds have."""

_Time = TypeVar("_Time", dt.date, dt.datetime, dt.timedelta)


class _TimeType(ValueType):
    """A type whose values are times of some class of `datetime`."""

    def _time(self, value: Any, kind: type[_Time]) -> _Time:
        """The value as an object of the class. Raises `NoValueError`, for NaT, too."""
        time = plain(value)
        if not isinstance(time, kind) or time != time:  # noqa: PLR0124  # NaT
            raise NoValueError(value, self.name)
        return time


class Dates(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is dt.date:
            return value
        date = self._time(value, dt.date)
        return dt.date(date.year, date.month, date.day)


class Timestamps(_TimeType):
    """Instants; processors get them without a zone, as the clocks of the worker's zone show them."""

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return _local(_instant(self._time(value, dt.datetime)))
        except (ArithmeticError, OSError, ValueError):
            raise NoValueError(
                value, self.name
            ) from None  # beyond Python's calendar in the worker's zone

    def hashable(self, value: Any) -> Any:
        return None if value is None else _instant(value)  # clocks show some times twice

    def column(self, values: list[Any]) -> pa.Array:
        numbers = [None if value is None else _instant(value) for value in values]
        return pa.array(numbers, pa.int64()).view(self.arrow)

    def objects(self, column: pa.Array) -> list[Any]:
        numbers = objects_of(column.view(pa.int64()))
        return [None if number is None else _local(number) for number in numbers]


def _instant(time: dt.datetime) -> int:
    """Microseconds since 1970; a time without a zone is one of the process's zone."""
    return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


def _local(instant: int) -> dt.datetime:
    seconds, microseconds = divmod(instant, 1_000_000)
    return dt.datetime.fromtimestamp(seconds).replace(microsecond=microseconds)  # noqa: DTZ006


class LocalTimestamps(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        time = self._time(value, dt.datetime)
        date, clock = dt.date(time.year, time.month, time.day), time.time()
        return dt.datetime.combine(date, clock.replace(fold=0))


class Durations(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        time = self._time(value, dt.timedelta)
        if not -_MOST_DAYS < time.days < _MOST_DAYS:
            raise NoValueError(value, self.name)
        return dt.timedelta(time.days, time.seconds, time.microseconds)
