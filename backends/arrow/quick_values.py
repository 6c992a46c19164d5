"""Values that are already what a column of their type would give back, recognised without making the column."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.kinds import is_bytes, is_text

Quick = Callable[[Any], Any]


class NotQuickError(Exception):
    """The value may be one of the type, or become one, but only a column can tell."""


def quick_value(type: pa.DataType) -> Quick | None:
    """The function that returns a value as a column of the type would give it back, in new lists and dictionaries.

    It raises `NotQuickError` for every value that it is not sure of. None if it could never be sure.

    Args:
        type: The values' type.
    """
    if types.is_struct(type):
        return _quick_struct(type)
    if types.is_list(type) or types.is_large_list(type):
        element = _nullable(type.value_field)
        return None if element is None else _quick_list(element)
    if types.is_integer(type):
        return _quick_integer(type)
    if types.is_decimal(type):
        return _quick_decimal(type)
    if types.is_timestamp(type) and type.unit == "us" and type.tz in (None, "UTC"):
        return _quick_timestamp(pa.scalar(0, type).as_py().tzinfo)
    for is_kind, kind in _KINDS:
        if is_kind(type):
            return _quick_instance(kind)
    return _quick_text if is_text(type) else None


def _quick_instance(kind: type) -> Quick:
    def quick(value: Any) -> Any:
        if type(value) is not kind:
            raise NotQuickError
        return value

    return quick


def _quick_text(value: Any) -> Any:
    if type(value) is not str or not is_valid_text(value):
        raise NotQuickError
    return value


def is_valid_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quick_integer(type_: pa.DataType) -> Quick:
    bits = type_.bit_width
    least, most = (
        (-(1 << bits - 1), (1 << bits - 1) - 1)
        if types.is_signed_integer(type_)
        else (0, (1 << bits) - 1)
    )

    def quick(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise NotQuickError
        return value

    return quick


def _quick_decimal(type_: pa.DataType) -> Quick:
    unit = Decimal(1).scaleb(-type_.scale)
    digits = type_.precision - type_.scale

    def quick(value: Any) -> Any:
        # A zero may have a sign, which Arrow has not; NaN is no quantum of any number.
        if (
            type(value) is not Decimal
            or not value
            or not value.same_quantum(unit)
            or value.adjusted() >= digits
        ):
            raise NotQuickError
        return value

    return quick


def _quick_timestamp(zone: dt.tzinfo | None) -> Quick:
    def quick(value: Any) -> Any:
        if type(value) is not dt.datetime or value.tzinfo is not zone or value.fold:
            raise NotQuickError
        return value

    return quick


def _quick_list(element: Quick) -> Quick:
    def quick(value: Any) -> Any:
        if type(value) is not list:
            raise NotQuickError
        return [element(item) for item in value]

    return quick


def _quick_struct(type_: pa.DataType) -> Quick | None:
    fields = {field.name: _nullable(field) for field in type_}
    if len(fields) != type_.num_fields or None in fields.values():
        return None
    known = [(name, quick) for name, quick in fields.items() if quick is not None]

    def quick_struct(value: Any) -> Any:
        if type(value) is not dict or value.keys() != fields.keys():
            raise NotQuickError
        return {name: quick(value[name]) for name, quick in known}

    return quick_struct


def _nullable(field: pa.Field) -> Quick | None:
    """The function for values of a field, which may be None."""
    quick = quick_value(field.type)
    if quick is None or not field.nullable:
        return quick
    return lambda value: None if value is None else quick(value)


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (types.is_boolean, bool),
    (types.is_float64, float),
    (types.is_date32, dt.date),
    (is_bytes, bytes),
)
