"""JSON text for values that Arrow has no type for, and the way back.

Numbers that JSON has no form for are written as Python and Spark read them: `NaN`, `Infinity`, `-Infinity`.
"""

import json
from typing import Any

import msgspec


def json_text(value: Any) -> str:
    """A value of MessagePack as JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def value_of(text: str, type: Any) -> Any:
    """A value of a type, of its JSON text. Raises `ValueError`, and errors of msgspec."""
    return msgspec.convert(json.loads(text), type, str_keys=True)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: bytes in base64, times in ISO 8601, keys as text."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.msgpack.Ext):
        return {"code": value.code, "data": _plain(value.data)}
    return msgspec.to_builtins(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))
