"""Values of Arrow as JSON has them, nothing lost: bytes in base64, times in ISO 8601.

Decimals are texts, as is what JSON has no number for (`NaN`). Maps with texts as keys are objects,
others lists of pairs.
"""

import base64
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyarrow import types

_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def json_value(scalar: pa.Scalar) -> Any:
    """The value as `json` takes it."""
    if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar):
        return json_value(scalar.value)
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: json_value(one) for name, one in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        pairs = [[json_value(one) for one in pair.values()] for pair in scalar.values]
        is_object = types.is_string(scalar.type.key_type)
        return dict(pairs) if is_object else pairs
    if isinstance(scalar, pa.ListScalar):
        return [json_value(one) for one in scalar.values]
    if types.is_timestamp(scalar.type):
        return _timestamp(scalar.value, scalar.type)
    if types.is_time(scalar.type) or types.is_duration(scalar.type):
        return _time_or_duration(scalar.value, scalar.type)
    return _simple(scalar.as_py())


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


def _timestamp(value: int, type: pa.TimestampType) -> str | int:
    seconds, fraction = _parts(value, type.unit)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return value  # a year that ISO 8601 has no four digits for
    return f"{text}{fraction}{'' if type.tz is None else 'Z'}"


def _time_or_duration(value: int, type: pa.DataType) -> str:
    sign = "-" if value < 0 else ""
    seconds, fraction = _parts(abs(value), type.unit)
    if types.is_duration(type):
        return f"{sign}PT{seconds}{fraction}S"
    return f"{_EPOCH + timedelta(seconds=seconds):%H:%M:%S}{fraction}"


def _parts(value: int, unit: str) -> tuple[int, str]:
    """Whole seconds, and what is behind the point as text."""
    digits = _DIGITS[unit]
    seconds, fraction = divmod(value, 10**digits)
    return seconds, f".{fraction:0{digits}}" if fraction else ""
