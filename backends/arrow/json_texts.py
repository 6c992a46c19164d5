"""JSON text for values that Arrow has no type for, and the way back where there is one."""

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.backends.arrow.casts import MisfitError

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_text(value: Any) -> str:
    """A value of MessagePack as JSON."""
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: without NaN, infinities and extensions."""
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in _NOT_FINITE.items() if str(number) == str(value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.msgpack.Ext):
        return {"code": value.code, "data": bytes(value.data)}
    return value


def _plain_key(key: Any) -> Any:
    key = _plain(key)
    is_plain = isinstance(key, str | int | float | bytes | dt.datetime)
    return key if is_plain and not isinstance(key, bool) else json_text(key)


def way_back_of(schemas: Sequence[Mapping[str, Any]]) -> Callable[[Any], Any]:
    """A function that makes values of their JSON text, or raises a MisfitError.

    Args:
        schemas: The schemas of the value and of all its parts.
    """
    if any(_is_changed(schema) for schema in schemas):
        return _not_known
    if not any(schema.get("type") == "number" for schema in schemas):
        return msgspec.json.decode
    has_texts = any(
        schema.get("type") == "string" or not _NOT_FINITE.keys().isdisjoint(schema.get("enum", ()))
        for schema in schemas
    )

    def value_of(text: Any) -> Any:
        return _with_numbers(msgspec.json.decode(text), has_texts=has_texts)

    return value_of


def is_untyped(schema: Mapping[str, Any]) -> bool:
    """Whether a schema allows anything."""
    return not schema.keys() - {"$defs", "leftOut"}


def _is_changed(schema: Mapping[str, Any]) -> bool:
    """Whether values of this schema can't be told from their JSON text."""
    keys = schema.get("propertyNames", {"type": "string"})
    return (
        is_untyped(schema)
        or schema.get("type") == "extension"
        or keys.get("type") not in {"string", "integer"}
    )


def _with_numbers(value: Any, *, has_texts: bool) -> Any:
    """The value with NaN and infinities in the place of their JSON texts.

    Raises:
        MisfitError: Such a text may have been a text from the beginning.
    """
    if isinstance(value, dict):
        return {key: _with_numbers(item, has_texts=has_texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item, has_texts=has_texts) for item in value]
    if not isinstance(value, str) or value not in _NOT_FINITE:
        return value
    if has_texts:
        raise MisfitError(f"{value} in JSON text may be a number or a text")
    return _NOT_FINITE[value]


def _not_known(_: Any) -> Any:
    message = (
        "parts of it have no type (Any), or are dicts with keys of several types; what they are "
        "can't be told from the JSON text that they are read as, so they can only be null"
    )
    raise MisfitError(message)
