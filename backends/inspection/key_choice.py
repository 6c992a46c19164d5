"""A single key of a keyed state, which is looked up without a scan of the other keys; and values of keys as text.

Values have the form in which `holdfast cat` prints them: bytes are in base64, times in ISO 8601, decimals are texts,
structs are objects, or lists of pairs if two fields have the same name, and lists are lists. Python values stay unchanged.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import types

from holdfast.backends.inspection.catalogue import StoredState
from holdfast.backends.inspection.keyed_parts import Table
from holdfast.backends.inspection.state_parts import ReadableState
from holdfast.errors import InvalidRequestError


def filter_by_key(
    readable: ReadableState, state: StoredState, key: Any, max_parallelism: int
) -> ReadableState:
    """Reduce a state to the rows of one key.

    Args:
        readable: The state.
        state: The name of the state.
        key: Values by the names of the key's columns, or only the value if the key has one column.
        max_parallelism: Number of key groups of the job.

    Raises:
        InvalidRequestError: The state has no keys, or its key has other columns or types.
    """
    tables = [part for part in readable.parts if isinstance(part, Table)]
    if not tables or len(tables) < len(readable.parts):
        message = f"state {state.label!r} of operator {state.operator!r} is {state.kind}, which has no keys"
        raise InvalidRequestError(message)
    columns = _columns(state.label, tables[0].table.spec.key, key)
    chosen = (table.at_key(columns, max_parallelism) for table in tables)
    return replace(readable, parts=tuple(table for table in chosen if table is not None))


def _columns(state: str, schema: pa.Schema, key: Any) -> tuple[pa.Array, ...]:
    values = key if isinstance(key, Mapping) else {schema.names[0]: key}
    if set(values) != set(schema.names) or (not isinstance(key, Mapping) and len(schema) > 1):
        given = sorted(values) if isinstance(key, Mapping) else "a single value"
        message = f"state {state!r} has the key columns {schema.names}, got {given}; give a value for each column"
        raise InvalidRequestError(message)
    return tuple(_column(state, field, values[field.name]) for field in schema)


def _column(state: str, field: pa.Field, value: Any) -> pa.Array:
    try:
        return pa.array([parse_value(value, field.type)], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError):
        message = (
            f"key column {field.name!r} of state {state!r} has the type {field.type}, and the given value is not of "
            "that type; as text it must have the form in which `holdfast cat` prints it, such as base64 for bytes"
        )
        raise InvalidRequestError(message) from None


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
