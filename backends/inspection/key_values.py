"""Values of keys as text or JSON, in the form in which `holdfast cat` prints them.

Bytes are in base64, times in ISO 8601, decimals are texts, structs are objects, or lists of pairs if two fields have
the same name, and lists are lists. Values that already are Python's own stay as they are.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,6}))?S")
_WHOLE_NUMBER = re.compile(r"-?\d+")


def parse_value(value: Any, type: pa.DataType) -> Any:
    """Return the value that `pyarrow.array` takes for a type that a key can have.

    Raises:
        ValueError: The value is not of the type; `pyarrow.ArrowInvalid` is one too.
    """
    if isinstance(value, str) and types.is_nested(type):
        value = json.loads(value)
    if isinstance(value, Mapping | list) and types.is_struct(type):
        return _struct(value, type)
    if isinstance(value, list):
        return [parse_value(item, type.value_type) for item in value]
    if not isinstance(value, str) or types.is_string(type) or types.is_large_string(type):
        return value
    if types.is_binary(type) or types.is_large_binary(type):
        return base64.b64decode(value, validate=True)
    if types.is_duration(type):
        return pa.scalar(_microseconds(value), type)
    if types.is_temporal(type) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)  # days or microseconds, in years that don't have four digits
    return pa.array([value]).cast(type)[0]


def _struct(value: Mapping[str, Any] | list[Any], type: pa.StructType) -> tuple[Any, ...]:
    """Return the values of the fields in their order, for two fields may have the same name."""
    names = [field.name for field in type]
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=lambda item: names.index(item[0]))
    if [name for name, _ in value] != names:
        raise ValueError(f"the struct has the fields {names}")
    return tuple(
        parse_value(item, field.type) for (_, item), field in zip(value, type, strict=True)
    )


def _microseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1.500000S")
    sign, seconds, fraction = match.groups(default="")
    return int(f"{sign}{seconds}{fraction:0<6}")
