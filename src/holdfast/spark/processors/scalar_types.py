"""Types without fields or elements: numbers, truth values, text, bytes and times."""

import datetime as dt
import decimal
import math
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import is_valid_text, objects_of


class InvalidValueError(Exception):
    """An object is not a valid value of the type. The path has the fields that contain the object, from the inside."""

    def __init__(self, value: Any, type_name: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(value, type_name, path)
        self.value = value
        self.type_name = type_name
        self.path = path

    def inside(self, field: str) -> "InvalidValueError":
        """Return the same error for the value that contains this one as a field."""
        return InvalidValueError(self.value, self.type_name, (*self.path, field))

    def __str__(self) -> str:
        field = f"field {'.'.join(reversed(self.path))!r} " if self.path else "it "
        return f"{field}must be of type {self.type_name}, got {self.value!r} of type {type(self.value).__name__}"


class ValueType:
    """A Spark type, with immutable Python objects as values that are those of Arrow's column.

    Attributes:
        arrow: The Arrow type of columns.
        name: Spark's name of the type.
        is_immutable: Whether processors can get values without a copy.
    """

    is_immutable = True

    def __init__(self, arrow: pa.DataType, name: str) -> None:
        self.arrow = arrow
        self.name = name

    def convert(self, value: Any) -> Any:
        """Convert an object to the value that a processor will read back; None stays None. Raises `InvalidValueError`."""
        raise NotImplementedError

    def column(self, values: list[Any]) -> pa.Array:
        """Return the column of converted values."""
        column = pa.array(values, self.arrow)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def objects(self, column: pa.Array) -> list[Any]:
        """Return the values of a column."""
        return objects_of(column)

    def copy(self, value: Any) -> Any:
        """Return a copy that a processor may change."""
        return value

    def hashable(self, value: Any) -> Any:
        """Return what dictionaries have in place of a value: equal for equal values."""
        return value


def plain(value: Any) -> Any:
    """Convert a scalar of NumPy or pandas to a Python object."""
    if isinstance(value, np.generic):
        return value.tolist()
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


_DECIMALS = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Integers(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._min, self._max = -(1 << arrow.bit_width - 1), (1 << arrow.bit_width - 1) - 1

    def convert(self, value: Any) -> Any:
        if type(value) is not int:
            if value is None:
                return None
            number = plain(value)
            if isinstance(number, bool) or not isinstance(number, int):
                raise InvalidValueError(value, self.name)
            value = int(number)
        if not self._min <= value <= self._max:
            raise InvalidValueError(value, self.name)
        return value


class Floats(ValueType):
    def convert(self, value: Any) -> Any:
        if type(value) is not float:
            if value is None:
                return None
            number = plain(value)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise InvalidValueError(value, self.name)
            try:
                value = float(number)
            except OverflowError:
                raise InvalidValueError(value, self.name) from None
        if self.arrow.bit_width == 64:
            return value
        with np.errstate(over="ignore"):  # as in Spark, too large numbers become infinite
            return float(np.float32(value))

    def hashable(self, value: Any) -> Any:
        return math.nan if value is not None and math.isnan(value) else value


class Booleans(ValueType):
    def convert(self, value: Any) -> Any:
        if value is None or type(value) is bool:
            return value
        flag = plain(value)
        if not isinstance(flag, bool):
            raise InvalidValueError(value, self.name)
        return flag


class Strings(ValueType):
    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        text = value if type(value) is str else plain(value)
        if isinstance(text, int) and not isinstance(text, bool):
            return str(int(text))  # as Spark does
        if not isinstance(text, str) or not is_valid_text(text):
            raise InvalidValueError(value, self.name)
        return text if type(text) is str else str.__str__(text)


class Binaries(ValueType):
    def convert(self, value: Any) -> Any:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, str) and is_valid_text(value):
            return value.encode()  # as Spark does
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidValueError(value, self.name)
        return bytes(value)


class Decimals(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._unit = decimal.Decimal(1).scaleb(-arrow.scale)

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        number = plain(value)
        if isinstance(number, int) and not isinstance(number, bool):
            number = decimal.Decimal(number)
        if not isinstance(number, decimal.Decimal) or not number.is_finite():
            raise InvalidValueError(value, self.name)
        try:
            number = number.quantize(self._unit, context=_DECIMALS)
        except decimal.InvalidOperation:
            raise InvalidValueError(value, self.name) from None
        if len(number.as_tuple().digits) > self.arrow.precision:
            raise InvalidValueError(value, self.name)
        return number or abs(number)  # the sign of a zero is not stored


class Nulls(ValueType):
    def convert(self, value: Any) -> Any:
        if value is not None:
            raise InvalidValueError(value, self.name)


_MAX_DAYS = (1 << 63) // (24 * 60 * 60 * 1_000_000)
"""The number of days in 64 bits of microseconds."""

_Time = TypeVar("_Time", dt.date, dt.datetime, dt.timedelta)


class _TimeType(ValueType):
    """A type whose values are of a class of `datetime`."""

    def _time(self, value: Any, kind: type[_Time]) -> _Time:
        """Convert a value to the class. Raises `InvalidValueError`, also for NaT."""
        time = plain(value)
        if not isinstance(time, kind) or time != time:  # noqa: PLR0124  # NaT
            raise InvalidValueError(value, self.name)
        return time


class Dates(_TimeType):
    def convert(self, value: Any) -> Any:
        if value is None or type(value) is dt.date:
            return value
        date = self._time(value, dt.date)
        return dt.date(date.year, date.month, date.day)


class Timestamps(_TimeType):
    """Instants; processors get them without a zone, as local times of the worker's zone."""

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return _local(_instant(self._time(value, dt.datetime)))
        except (ArithmeticError, OSError, ValueError):
            raise InvalidValueError(
                value, self.name
            ) from None  # beyond Python's calendar in the worker's zone

    def hashable(self, value: Any) -> Any:
        return None if value is None else _instant(value)  # some local times occur twice

    def column(self, values: list[Any]) -> pa.Array:
        numbers = [None if value is None else _instant(value) for value in values]
        return pa.array(numbers, pa.int64()).view(self.arrow)

    def objects(self, column: pa.Array) -> list[Any]:
        numbers = objects_of(column.view(pa.int64()))
        return [None if number is None else _local(number) for number in numbers]


def _instant(time: dt.datetime) -> int:
    """Return the microseconds since 1970; a time without a zone is a local time of the process."""
    return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


def _local(instant: int) -> dt.datetime:
    seconds, microseconds = divmod(instant, 1_000_000)
    return dt.datetime.fromtimestamp(seconds).replace(microsecond=microseconds)  # noqa: DTZ006


class LocalTimestamps(_TimeType):
    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        time = self._time(value, dt.datetime)
        date, clock = dt.date(time.year, time.month, time.day), time.time()
        return dt.datetime.combine(date, clock.replace(fold=0))


class Durations(_TimeType):
    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        time = self._time(value, dt.timedelta)
        if not -_MAX_DAYS < time.days < _MAX_DAYS:
            raise InvalidValueError(value, self.name)
        return dt.timedelta(time.days, time.seconds, time.microseconds)
