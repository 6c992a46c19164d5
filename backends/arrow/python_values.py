"""Finds the Python values that Arrow would change silently on the way into a type.

It cuts 1.5 to 1 and microseconds to seconds, takes a number for a date, text for bytes and for a
list, and drops what it finds in no field of a struct.
"""

import datetime as dt
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow.casts import MisfitError, is_bytes, is_list, is_list_view, is_text

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_FLOATS = {16: "e", 32: "f"}
_BYTES = bytes | bytearray | memoryview


def check_values(values: Iterable[Any], wanted: pa.DataType) -> None:
    """Check each value, and what is inside of it; None is allowed, it may be inside an element.

    Raises:
        MisfitError: A value would be another one as the wanted type.
    """
    present = [one for one in values if one is not None]
    if isinstance(wanted, pa.BaseExtensionType):
        # Of the types that Arrow has of its own only this one takes other objects than its storage.
        stored = [one.bytes if isinstance(one, uuid.UUID) else one for one in present]
        check_values(stored, wanted.storage_type)
    elif pa.types.is_dictionary(wanted):
        check_values(present, wanted.value_type)
    elif pa.types.is_struct(wanted):
        _check_structs(present, list(wanted))
    elif pa.types.is_map(wanted):
        pairs = [pair for one in present for pair in _pairs(one)]
        check_values([key for key, _ in pairs], wanted.key_type)
        _check_field([item for _, item in pairs], wanted.item_field)
    elif is_list(wanted) or is_list_view(wanted):
        if any(isinstance(one, str | _BYTES) for one in present):
            message = f"text or bytes are no {wanted}"
            raise MisfitError(message)
        _check_field([item for one in present for item in one], wanted.value_field)
    elif not _are_leaves(present, wanted):
        message = f"not every value is a {wanted}"
        raise MisfitError(message)


def _are_leaves(values: list[Any], wanted: pa.DataType) -> bool:
    if pa.types.is_float16(wanted) or pa.types.is_float32(wanted):
        return _are_narrow_floats(values, wanted)
    return all(fits(one, wanted) for is_kind, fits in _LEAVES if is_kind(wanted) for one in values)


def _check_structs(structs: list[Any], fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for one in structs:
        unknown = set(one) - set(names) if isinstance(one, Mapping) else set()
        if unknown:
            message = f"fields {sorted(map(str, unknown))} are not among {names}"
            raise MisfitError(message)
    for index, field in enumerate(fields):
        _check_field([_field_of(one, field.name, index) for one in structs], field)


def _check_field(values: list[Any], field: pa.Field) -> None:
    if not field.nullable and any(one is None for one in values):
        message = f"field {field.name!r} must not be None"
        raise MisfitError(message)
    check_values(values, field.type)


def _field_of(one: Any, name: str, index: int) -> Any:
    if isinstance(one, Mapping):
        return one.get(name)
    return one[index] if isinstance(one, Sequence) and index < len(one) else None


def _pairs(one: Any) -> Iterable[tuple[Any, Any]]:
    return one.items() if isinstance(one, Mapping) else one


def _fits_integer(one: Any, _wanted: pa.DataType) -> bool:
    return not isinstance(one, str | bytes) and int(one) == one


def _are_narrow_floats(values: list[Any], wanted: pa.DataType) -> bool:
    """Whether none is too large, and whole numbers are kept; fractions are rounded as everywhere."""
    form = f"<{len(values)}{_FLOATS[wanted.bit_width]}"
    try:
        packed = struct.pack(form, *values)  # all in one go: lists of floats may be long
    except (OverflowError, struct.error):
        return False
    if set(map(type, values)) <= {float}:
        return True
    pairs = zip(values, struct.unpack(form, packed), strict=True)
    return all(one == kept for one, kept in pairs if isinstance(one, int))


def _is_count(one: Any) -> bool:
    """Whether it is a number of the type's own units, such as milliseconds since 1970."""
    return type(one) is int


def _fits_timestamp(one: Any, wanted: pa.DataType) -> bool:
    return _is_count(one) or (
        isinstance(one, dt.datetime)
        and (one.tzinfo is None) == (wanted.tz is None)
        and one.microsecond % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(one, "nanosecond", 0))  # pandas has such
    )


def _fits_date(one: Any, _wanted: pa.DataType) -> bool:
    return isinstance(one, dt.date) and not isinstance(one, dt.datetime)


def _fits_time(one: Any, wanted: pa.DataType) -> bool:
    return _is_count(one) or (
        isinstance(one, dt.time)
        and one.tzinfo is None
        and one.microsecond % _MICROSECONDS[wanted.unit] == 0
    )


def _fits_duration(one: Any, wanted: pa.DataType) -> bool:
    return _is_count(one) or (
        isinstance(one, dt.timedelta)
        and one.microseconds % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(one, "nanoseconds", 0))  # pandas has such
    )


def _fits_text(one: Any, _wanted: pa.DataType) -> bool:
    return isinstance(one, str)


def _fits_bytes(one: Any, _wanted: pa.DataType) -> bool:
    return isinstance(one, _BYTES)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], bool]], ...] = (
    (pa.types.is_integer, _fits_integer),
    (pa.types.is_timestamp, _fits_timestamp),
    (pa.types.is_date, _fits_date),
    (pa.types.is_time, _fits_time),
    (pa.types.is_duration, _fits_duration),
    (is_text, _fits_text),
    (is_bytes, _fits_bytes),
    (pa.types.is_fixed_size_binary, _fits_bytes),
)
