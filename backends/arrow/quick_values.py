"""Python objects of which it is known, without making a column, what a column of their type would give back."""

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

Convert = Callable[[Any], Any]


class NotQuickError(Exception):
    """The object may be a value of the type, or become one, but only a column can tell."""


class QuickType(NamedTuple):
    """Objects of one class that need no column.

    Attributes:
        kind: The class. Objects of its subclasses need a column.
        convert: Returns what a column would give back for an object, and copies lists and dictionaries. Raises any error if
            only a column can tell. None if every object comes back as it is.
    """

    kind: type
    convert: Convert | None = None

    def kinds(self, *, may_be_none: bool) -> frozenset[type]:
        """Return the classes of such objects, with that of None if None is allowed."""
        return frozenset([self.kind, NoneType] if may_be_none else [self.kind])


@lru_cache(256)  # a state is opened for each batch
def quick_type(type: pa.DataType) -> QuickType | None:
    """Return the objects of an Arrow type that need no column; None if all do.

    Integers of more than 64 bits and text that is not valid Unicode are among these objects: the column that is made in the
    end refuses them.
    """
    if types.is_struct(type):
        return _quick_struct(type)
    if types.is_list(type) or types.is_large_list(type):
        return _quick_list(type)
    return next((make(type) for is_kind, make in _LEAVES if is_kind(type)), None)


def convert_or(quick: QuickType, otherwise: Convert) -> Convert:
    """Return the function that converts what is quick, and calls another function for everything else."""
    kind, convert = quick
    if convert is None:
        return otherwise

    def convert_any(value: Any) -> Any:
        if type(value) is kind:
            try:
                return convert(value)
            except Exception:  # noqa: BLE001, S110  # `otherwise` says what is wrong, if anything is
                pass
        return otherwise(value)

    return convert_any


def is_valid_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quick_struct(type_: pa.DataType) -> QuickType | None:
    quick = {field.name: quick_type(field.type) for field in type_}
    fields = [
        (field.name, each.kinds(may_be_none=field.nullable), each.convert)
        for field, each in zip(type_, quick.values(), strict=False)
        if each is not None
    ]
    if len(fields) != type_.num_fields:  # names that come twice are missing, too
        return None

    def convert(value: Any) -> Any:
        if len(value) != len(fields):
            raise NotQuickError
        made = {}
        for name, kinds, convert_item in fields:
            item = value[name]
            if type(item) not in kinds:
                raise NotQuickError
            made[name] = item if convert_item is None or item is None else convert_item(item)
        return made

    return QuickType(dict, convert)


def _quick_list(type_: pa.DataType) -> QuickType | None:
    quick = quick_type(type_.value_type)
    if quick is None:
        return None
    kinds, convert_item = quick.kinds(may_be_none=type_.value_field.nullable), quick.convert

    def convert(value: Any) -> Any:
        if not kinds.issuperset(map(type, value)):
            raise NotQuickError
        if convert_item is None:
            return value.copy()
        return [None if item is None else convert_item(item) for item in value]

    return QuickType(list, convert)


def _quick_integer(type_: pa.DataType) -> QuickType:
    if types.is_int64(type_):
        return QuickType(int)
    bits = type_.bit_width - types.is_signed_integer(type_)
    least, most = -(1 << bits) if types.is_signed_integer(type_) else 0, (1 << bits) - 1

    def convert(value: Any) -> Any:
        if least <= value <= most:
            return value
        raise NotQuickError

    return QuickType(int, convert)


def _quick_float32(_: pa.DataType) -> QuickType:
    single = struct.Struct("<f")
    pack, unpack = single.pack, single.unpack
    return QuickType(float, lambda value: unpack(pack(value))[0])


def _quick_decimal(type_: pa.DataType) -> QuickType:
    unit = Decimal(1).scaleb(-type_.scale)
    digits = type_.precision - type_.scale

    def convert(value: Any) -> Any:
        # A zero may have a sign, which Arrow's doesn't; NaN is no quantum of any number.
        if value and value.same_quantum(unit) and value.adjusted() < digits:
            return value
        raise NotQuickError

    return QuickType(Decimal, convert)


def _quick_time(type_: pa.DataType) -> QuickType | None:
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
        # By way of UTC: else a time that the zone's clocks leave out would stay as it is.
        return value.astimezone(dt.UTC).astimezone(zone)

    if not isinstance(zone, ZoneInfo | dt.timezone | None):
        return None
    return QuickType(dt.datetime, convert_local if zone is None else convert_instant)


@lru_cache(4096)
def _has_one_offset(zone: dt.tzinfo, day: int) -> bool:
    """Whether the zone's clocks neither skip nor repeat a time on a day. Clocks are never changed twice within two days.

    Raises `ValueError` or `OverflowError` for the first and the last day that Python has.
    """
    start = dt.datetime.fromordinal(day - 1).replace(tzinfo=zone)
    end = (start + dt.timedelta(days=2)).replace(fold=1)
    return start.utcoffset() == end.utcoffset()


def _has_microseconds(type_: pa.DataType) -> bool:
    """Whether the type has times that are just as fine as those of Python."""
    return bool(types.is_timestamp(type_) and type_.unit == "us")


_LEAVES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], QuickType | None]], ...
] = (
    (types.is_integer, _quick_integer),
    (types.is_decimal, _quick_decimal),
    (_has_microseconds, _quick_time),
    (types.is_float32, _quick_float32),
    (types.is_boolean, lambda _: QuickType(bool)),
    (types.is_float64, lambda _: QuickType(float)),
    (types.is_date32, lambda _: QuickType(dt.date)),
    (is_text, lambda _: QuickType(str)),
    (is_bytes, lambda _: QuickType(bytes)),
)
