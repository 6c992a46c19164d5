"""Values that are already what a column of their type would give back, recognised without making the column."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.kinds import is_bytes, is_text

Check = Callable[[Any], bool]
Quick = Callable[[Any], Any]


class NotQuickError(Exception):
    """The value may be one of the type, or become one, but only a column can tell."""


def quick_value(type: pa.DataType, *, may_be_none: bool = False) -> Quick | None:
    """The function that returns a value as a column of the type would give it back, in new lists and dictionaries.

    It raises `NotQuickError` for every value that it is not sure of. None if it could never be sure.

    Args:
        type: The values' type.
        may_be_none: Whether None is a value.
    """
    if types.is_struct(type):
        return _quick_struct(type, may_be_none)
    if types.is_list(type) or types.is_large_list(type):
        return _quick_list(type, may_be_none)
    if _has_microseconds(type) and type.tz is not None:
        return _quick_instant(pa.scalar(0, type).as_py().tzinfo, may_be_none)
    is_own = next((make(type) for is_kind, make in _LEAVES if is_kind(type)), None)
    if is_own is None:
        return None

    def quick(value: Any) -> Any:
        if is_own(value) or (value is None and may_be_none):
            return value
        raise NotQuickError

    return quick


def is_valid_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quick_struct(type_: pa.DataType, may_be_none: bool) -> Quick | None:  # noqa: FBT001  # private
    names = tuple(field.name for field in type_)
    fields = [quick_value(field.type, may_be_none=field.nullable) for field in type_]
    known = [(name, quick) for name, quick in zip(names, fields, strict=True) if quick is not None]
    if len(known) != len(fields) or len(set(names)) != len(names):
        return None

    def quick_struct(value: Any) -> Any:
        if type(value) is dict and len(value) == len(names):
            try:
                return {name: quick(value[name]) for name, quick in known}
            except KeyError:
                raise NotQuickError from None
        if value is None and may_be_none:
            return None
        raise NotQuickError

    return quick_struct


def _quick_list(type_: pa.DataType, may_be_none: bool) -> Quick | None:  # noqa: FBT001  # private
    quick = quick_value(type_.value_type, may_be_none=type_.value_field.nullable)
    if quick is None:
        return None

    def quick_list(value: Any) -> Any:
        if type(value) is list:
            return list(map(quick, value))
        if value is None and may_be_none:
            return None
        raise NotQuickError

    return quick_list


def _are_integers(type_: pa.DataType) -> Check:
    bits = type_.bit_width - types.is_signed_integer(type_)
    least, most = -(1 << bits) if types.is_signed_integer(type_) else 0, (1 << bits) - 1
    return lambda value: type(value) is int and least <= value <= most


def _are_decimals(type_: pa.DataType) -> Check:
    unit = Decimal(1).scaleb(-type_.scale)
    digits = type_.precision - type_.scale
    # A zero may have a sign, which Arrow's doesn't; NaN is no quantum of any number.
    return lambda value: (
        type(value) is Decimal
        and bool(value)
        and value.same_quantum(unit)
        and value.adjusted() < digits
    )


def _quick_instant(zone: dt.tzinfo, may_be_none: bool) -> Quick | None:  # noqa: FBT001  # private
    if not isinstance(zone, ZoneInfo | dt.timezone):
        return None

    def quick_instant(value: Any) -> Any:
        if type(value) is dt.datetime and value.tzinfo is not None:
            try:
                # By way of UTC: else a time that the zone's clocks leave out would stay as it is.
                return value.astimezone(dt.UTC).astimezone(zone)
            except OverflowError:
                raise NotQuickError from None
        if value is None and may_be_none:
            return None
        raise NotQuickError

    return quick_instant


def _are_local_times(_: pa.DataType) -> Check:
    return lambda value: type(value) is dt.datetime and value.tzinfo is None and not value.fold


def _are_texts(_: pa.DataType) -> Check:
    return lambda value: type(value) is str and is_valid_text(value)


def _are(kind: type) -> Callable[[pa.DataType], Check]:
    return lambda _: lambda value: type(value) is kind


def _has_microseconds(type_: pa.DataType) -> bool:
    """Whether the type has times that are just as fine as those of Python."""
    return bool(types.is_timestamp(type_) and type_.unit == "us")


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Check]], ...] = (
    (types.is_integer, _are_integers),
    (types.is_decimal, _are_decimals),
    (_has_microseconds, _are_local_times),
    (types.is_boolean, _are(bool)),
    (types.is_float64, _are(float)),
    (types.is_date32, _are(dt.date)),
    (is_text, _are_texts),
    (is_bytes, _are(bytes)),
)
