"""The rules between Python objects and the Arrow types that have nothing inside, in one table: `LEAF_RULES`.

A rule has three parts, for all types of its row:

    fits          whether objects keep their value as the type; Arrow itself cuts 1.5 to 1 and microseconds to seconds,
                  and takes a number for a date and text for bytes
    quick         objects whose copy from a column of the type is known in advance, so that no column is made
    may_differ    whether Arrow makes objects of other values without an error

`python_values` walks nested types and applies the rules to their leaves.
"""

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.nesting import is_bytes, is_text

PYTHON_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.timedelta: pa.duration("us"),
}
"""The Arrow types of Python types that are stored as the same values."""

Convert = Callable[[Any], Any]

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_DAY_S = 24 * 60 * 60
_FLOATS = {16: "e", 32: "f"}
_NO_TIME = -(1 << 63)
BYTES = bytes | bytearray | memoryview


class NotQuickError(Exception):
    """The object may be a value of the type, or may be converted to one; only a column can decide."""


class QuickType(NamedTuple):
    """Objects of one class that need no column.

    Attributes:
        kind: The class. Objects of its subclasses need a column.
        convert: Returns the object that a column would give back, and copies lists and dictionaries. Raises any error if
            only a column can decide. None if every object comes back as it is.
    """

    kind: type
    convert: Convert | None = None

    def kinds(self, *, may_be_none: bool) -> frozenset[type]:
        """Return the classes of such objects, with that of None if None is allowed."""
        return frozenset([self.kind, NoneType] if may_be_none else [self.kind])


class LeafRule(NamedTuple):
    """The rule for some types.

    Attributes:
        is_kind: Returns whether the rule is for a type.
        fits: Returns whether each object keeps its value as a type; None if Arrow itself refuses the others.
        quick: Returns the objects of a type that need no column; None if all do.
        may_differ: Returns whether Arrow may make an object of another value for a type.
    """

    is_kind: Callable[[pa.DataType], bool]
    fits: Callable[[list[Any], pa.DataType], bool] | None = None
    quick: Callable[[pa.DataType], QuickType | None] = lambda _: None
    may_differ: Callable[[pa.DataType], bool] = lambda _: False


_NO_RULE = LeafRule(lambda _: True)


def leaf_rule(type: pa.DataType) -> LeafRule:
    """Return the rule for a type that has nothing inside."""
    return next((rule for rule in LEAF_RULES if rule.is_kind(type)), _NO_RULE)


def is_valid_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _each(fits: Callable[[Any, pa.DataType], bool]) -> Callable[[list[Any], pa.DataType], bool]:
    return lambda values, wanted: all(fits(value, wanted) for value in values)


_all_bytes = _each(lambda value, _: isinstance(value, BYTES))
_all_dates = _each(
    lambda value, _: isinstance(value, dt.date) and not isinstance(value, dt.datetime)
)
_all_integers = _each(lambda value, _: not isinstance(value, str | bytes) and int(value) == value)
_all_texts = _each(lambda value, _: isinstance(value, str))


def _fit_narrow_floats(values: list[Any], wanted: pa.DataType) -> bool:
    """Return whether no value is too large, and integers are kept; fractions are rounded as everywhere."""
    form = f"<{len(values)}{_FLOATS[wanted.bit_width]}"
    try:
        packed = struct.pack(form, *values)  # at once: lists of floats may be long
    except (OverflowError, struct.error):
        return False
    if set(map(type, values)) <= {float}:
        return True
    pairs = zip(values, struct.unpack(form, packed), strict=True)
    return all(value == kept for value, kept in pairs if isinstance(value, int))


def _is_count(value: Any) -> bool:
    """Return whether the value is a number in the type's unit, such as milliseconds since 1970.

    NumPy and pandas read the smallest number of 64 bits as "no time", and Arrow's objects don't keep it.
    """
    return type(value) is int and value > _NO_TIME


def _fits_timestamp(value: Any, wanted: pa.DataType) -> bool:
    return _is_count(value) or (
        isinstance(value, dt.datetime)
        and (value.tzinfo is None) == (wanted.tz is None)
        and value.microsecond % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(value, "nanosecond", 0))  # of pandas
    )


def _fits_time(value: Any, wanted: pa.DataType) -> bool:
    units_in_s = 1_000_000_000 if wanted.unit == "ns" else 1_000_000 // _MICROSECONDS[wanted.unit]
    return (_is_count(value) and 0 <= value < _DAY_S * units_in_s) or (
        isinstance(value, dt.time)
        and value.tzinfo is None
        and value.microsecond % _MICROSECONDS[wanted.unit] == 0
    )


def _fits_duration(value: Any, wanted: pa.DataType) -> bool:
    return _is_count(value) or (
        isinstance(value, dt.timedelta)
        and value.microseconds % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(value, "nanoseconds", 0))  # of pandas
    )


def _quick_integer(type_: pa.DataType) -> QuickType:
    if types.is_int64(type_):
        return QuickType(int)
    bits = type_.bit_width - types.is_signed_integer(type_)
    low, high = -(1 << bits) if types.is_signed_integer(type_) else 0, (1 << bits) - 1

    def convert(value: Any) -> Any:
        if low <= value <= high:
            return value
        raise NotQuickError

    return QuickType(int, convert)


def _quick_float(type_: pa.DataType) -> QuickType | None:
    if types.is_float64(type_):
        return QuickType(float)
    if types.is_float16(type_):
        return None
    single = struct.Struct("<f")
    pack, unpack = single.pack, single.unpack
    return QuickType(float, lambda value: unpack(pack(value))[0])


def _quick_decimal(type_: pa.DataType) -> QuickType:
    unit = Decimal(1).scaleb(-type_.scale)
    digits = type_.precision - type_.scale

    def convert(value: Any) -> Any:
        # A zero may have a sign, which Arrow's doesn't. NaN has the quantum of no number.
        if value and value.same_quantum(unit) and value.adjusted() < digits:
            return value
        raise NotQuickError

    return QuickType(Decimal, convert)


def _quick_time(type_: pa.DataType) -> QuickType | None:
    if type_.unit != "us":  # Python's unit
        return None
    try:
        zone = pa.scalar(0, type_).as_py().tzinfo
    except (LookupError, ValueError):  # Python doesn't know the zone
        return None

    def convert_local(value: Any) -> Any:
        if value.tzinfo is None and not value.fold:
            return value
        raise NotQuickError

    def convert_instant(value: Any) -> Any:
        at = value.tzinfo
        if at is zone and not value.fold and _has_one_offset(zone, value.toordinal()):
            return value
        if at is None:
            raise NotQuickError
        # Through UTC: else a time that the zone's clocks skip would stay as it is.
        return value.astimezone(dt.UTC).astimezone(zone)

    if not isinstance(zone, ZoneInfo | dt.timezone | None):
        return None
    return QuickType(dt.datetime, convert_local if zone is None else convert_instant)


@lru_cache(4096)
def _has_one_offset(zone: dt.tzinfo, day: int) -> bool:
    """Return whether the zone's clocks neither skip nor repeat a time on a day. Clocks never change twice within two days.

    Raises `ValueError` or `OverflowError` for the first and the last day that Python has.
    """
    start = dt.datetime.fromordinal(day - 1).replace(tzinfo=zone)
    end = (start + dt.timedelta(days=2)).replace(fold=1)
    return start.utcoffset() == end.utcoffset()


def _has_nanoseconds(type_: pa.DataType) -> bool:
    return bool(type_.unit == "ns")


LEAF_RULES = (
    LeafRule(types.is_boolean, quick=lambda _: QuickType(bool)),
    LeafRule(types.is_integer, _all_integers, _quick_integer),
    LeafRule(types.is_float64, quick=_quick_float),
    LeafRule(types.is_floating, _fit_narrow_floats, _quick_float),
    LeafRule(types.is_decimal, quick=_quick_decimal),
    LeafRule(is_text, _all_texts, lambda _: QuickType(str)),
    LeafRule(is_bytes, _all_bytes, lambda _: QuickType(bytes)),
    LeafRule(types.is_fixed_size_binary, _all_bytes),
    LeafRule(types.is_date32, _all_dates, lambda _: QuickType(dt.date)),
    LeafRule(types.is_date, _all_dates),
    LeafRule(types.is_time, _each(_fits_time), may_differ=lambda _: True),
    LeafRule(types.is_timestamp, _each(_fits_timestamp), _quick_time, _has_nanoseconds),
    LeafRule(types.is_duration, _each(_fits_duration), may_differ=_has_nanoseconds),
)
