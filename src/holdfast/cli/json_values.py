"""Arrow's values as JSON, without loss: bytes in base64, times in ISO 8601.

Decimals are texts, and so are numbers that JSON doesn't have (`NaN`). Structs and maps with texts as keys are
objects, or lists of pairs if a name occurs twice; other maps are lists of pairs. Days and times in
years without four digits are numbers.
"""

import base64
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyarrow import types

_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def json_value(scalar: pa.Scalar) -> Any:
    """Return the value for `json`."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar):
        return json_value(scalar.value)
    if isinstance(scalar, pa.StructScalar):
        # By number: two fields may have the same name.
        numbered = enumerate(scalar.type)
        return _object([[field.name, json_value(scalar[number])] for number, field in numbered])
    if isinstance(scalar, pa.MapScalar):
        pairs = [[json_value(value) for value in pair.values()] for pair in scalar.values]
        return _object(pairs) if scalar.type.key_type in _TEXTS else pairs
    if isinstance(scalar, pa.ListScalar):
        return [json_value(value) for value in scalar.values]
    return _leaf(scalar)


def _leaf(scalar: pa.Scalar) -> Any:
    if types.is_timestamp(scalar.type):
        return _timestamp(scalar.value, scalar.type)
    if types.is_time(scalar.type) or types.is_duration(scalar.type):
        return _time_or_duration(scalar.value, scalar.type)
    if types.is_date(scalar.type):
        return _date(scalar.value, scalar.type)
    if scalar.type in _TEXTS:
        return bytes(scalar.as_buffer()).decode(errors="backslashreplace")
    return _simple(scalar.as_py())


def _object(pairs: list[list[Any]]) -> dict[str, Any] | list[list[Any]]:
    """Return the pairs as an object, or unchanged if a name occurs twice."""
    values = dict(pairs)
    return values if len(values) == len(pairs) else pairs


def _simple(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case bool() | int() | float() | str():
            return value
        case tuple():  # an interval
            return list(value)
    return str(value)


def _date(value: int, type: pa.DataType) -> str | int:
    days = value // 86_400_000 if types.is_date64(type) else value
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _timestamp(value: int, type: pa.TimestampType) -> str | int:
    seconds, fraction = _split_seconds(value, type.unit)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return value  # a year that ISO 8601 has no four digits for
    return f"{text}{fraction}{'Z' if type.tz else ''}"


def _time_or_duration(value: int, type: pa.DataType) -> str:
    sign = "-" if value < 0 else ""
    seconds, fraction = _split_seconds(abs(value), type.unit)
    if types.is_duration(type):
        return f"{sign}PT{seconds}{fraction}S"
    return f"{_EPOCH + timedelta(seconds=seconds):%H:%M:%S}{fraction}"


def _split_seconds(value: int, unit: str) -> tuple[int, str]:
    """Return whole seconds, and the fraction as text."""
    digits = _DIGITS[unit]
    seconds, fraction = divmod(value, 10**digits)
    return seconds, f".{fraction:0{digits}}" if fraction else ""
