"""Python values that Arrow would change silently on the way into a type, and how they are noticed.

Arrow cuts 1.5 to 1 and microseconds to seconds, takes a number for a date, text for bytes and for a
list, and drops values whose names are not among a struct's fields.
"""

import datetime as dt
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow.casts import MisfitError
from holdfast.backends.arrow.kinds import is_bytes, is_list, is_list_view, is_text

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_FLOATS = {16: "e", 32: "f"}
_NO_TIME = -(1 << 63)
_BYTES = bytes | bytearray | memoryview


def check_values(values: Iterable[Any], wanted: pa.DataType) -> None:
    """Check each value, and what is inside of it. None is allowed: it may be inside of an element.

    Raises:
        MisfitError: A value would be another one as the wanted type.
    """
    present = [value for value in values if value is not None]
    if isinstance(wanted, pa.BaseExtensionType):
        # Among Arrow's own extension types only that of UUIDs takes objects that its storage doesn't.
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in present]
        check_values(stored, wanted.storage_type)
    elif pa.types.is_dictionary(wanted):
        check_values(present, wanted.value_type)
    elif pa.types.is_struct(wanted):
        _check_structs(present, list(wanted))
    elif pa.types.is_map(wanted):
        pairs = [pair for mapping in present for pair in _pairs(mapping)]
        check_values([key for key, _ in pairs], wanted.key_type)
        _check_field([item for _, item in pairs], wanted.item_field)
    elif is_list(wanted) or is_list_view(wanted):
        if any(isinstance(value, str | _BYTES) for value in present):
            message = f"text or bytes are no {wanted}"
            raise MisfitError(message)
        if pa.types.is_fixed_size_list(wanted) and any(
            len(items) != wanted.list_size for items in present
        ):  # Arrow looks at some and ends the process when it reads others
            message = f"not every list has the {wanted.list_size} items of a {wanted}"
            raise MisfitError(message)
        _check_field([item for items in present for item in items], wanted.value_field)
    elif not _are_leaves(present, wanted):
        message = f"not every value is a {wanted}"
        raise MisfitError(message)


def _are_leaves(values: list[Any], wanted: pa.DataType) -> bool:
    if pa.types.is_float16(wanted) or pa.types.is_float32(wanted):
        return _are_narrow_floats(values, wanted)
    return all(
        fits(value, wanted) for is_kind, fits in _LEAVES if is_kind(wanted) for value in values
    )


def _check_structs(structs: list[Any], fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for value in structs:
        unknown = set(value) - set(names) if isinstance(value, Mapping) else set()
        if unknown:
            message = f"fields {sorted(map(str, unknown))} are not among {names}"
            raise MisfitError(message)
    for index, field in enumerate(fields):
        _check_field([_field_of(value, field.name, index) for value in structs], field)


def _check_field(values: list[Any], field: pa.Field) -> None:
    if not field.nullable and any(value is None for value in values):
        message = f"field {field.name!r} must not be None"
        raise MisfitError(message)
    check_values(values, field.type)


def _field_of(value: Any, name: str, index: int) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    return value[index] if isinstance(value, Sequence) and index < len(value) else None


def _pairs(mapping: Any) -> Iterable[tuple[Any, Any]]:
    return mapping.items() if isinstance(mapping, Mapping) else mapping


def _fits_integer(value: Any, _wanted: pa.DataType) -> bool:
    return not isinstance(value, str | bytes) and int(value) == value


def _are_narrow_floats(values: list[Any], wanted: pa.DataType) -> bool:
    """Whether no value is too large, and whole numbers are kept; fractions are rounded as everywhere."""
    form = f"<{len(values)}{_FLOATS[wanted.bit_width]}"
    try:
        packed = struct.pack(form, *values)  # all in one go: lists of floats may be long
    except (OverflowError, struct.error):
        return False
    if set(map(type, values)) <= {float}:
        return True
    pairs = zip(values, struct.unpack(form, packed), strict=True)
    return all(value == kept for value, kept in pairs if isinstance(value, int))


def _is_count(value: Any) -> bool:
    """Whether the value is a number of the type's own units, such as milliseconds since 1970.

    The least number of 64 bits means "no time" to NumPy and pandas, and Arrow's objects don't come back from it.
    """
    return type(value) is int and value > _NO_TIME


def _fits_timestamp(value: Any, wanted: pa.DataType) -> bool:
    return _is_count(value) or (
        isinstance(value, dt.datetime)
        and (value.tzinfo is None) == (wanted.tz is None)
        and value.microsecond % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(value, "nanosecond", 0))  # of pandas
    )


def _fits_date(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, dt.date) and not isinstance(value, dt.datetime)


def _fits_time(value: Any, wanted: pa.DataType) -> bool:
    day = (
        24
        * 60
        * 60
        * (1_000_000_000 if wanted.unit == "ns" else 1_000_000 // _MICROSECONDS[wanted.unit])
    )
    return (_is_count(value) and 0 <= value < day) or (
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


def _fits_text(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, str)


def _fits_bytes(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, _BYTES)


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
