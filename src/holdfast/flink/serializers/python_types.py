"""State of PyFlink, which Flink stores as bytes. Only the job's Python code has the types, so the reader specifies them.

    long  string  row<long, string>  map<string, tuple<int, double>>  list<date>

The names are those of PyFlink's `Types` and of SQL. A pickle is returned as bytes, because loading it would run its code.

Source:
    PyFlink, fn_execution/coder_impl_slow.py (2.3.0).
"""

import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidRequestError
from holdfast.flink.serializers import basic
from holdfast.flink.serializers.composite import (
    case_class_of,
    map_of,
    nullable_elements,
    row_of,
    with_last_access,
)
from holdfast.flink.serializers.serializer import Serializer, converting_reader

_TOKEN = re.compile(r"\s*([a-z_0-9]+|[<>,])\s*")
_MAX_DEPTH = 32

_SIMPLE = {
    **dict.fromkeys(("tinyint", "byte"), basic.BYTE),
    **dict.fromkeys(("smallint", "short"), basic.SHORT),
    "int": basic.INT,
    **dict.fromkeys(("bigint", "long"), basic.LONG),
    "boolean": basic.BOOLEAN,
    "float": basic.FLOAT,
    "double": basic.DOUBLE,
    "string": basic.UTF8,
    "decimal": basic.UTF8,
    "bytes": basic.BYTES,
    "pickled": basic.BYTES,
    "date": Serializer(pa.date32(), basic.INT.read),
    "time": Serializer(pa.time32("ms"), basic.INT.read),
    "timestamp": Serializer(pa.timestamp("ms"), basic.LONG.read),
    "instant": basic.INSTANT,
}

_NESTED: dict[str, tuple[int, Callable[..., Serializer]]] = {
    "list": (1, partial(nullable_elements, null=False)),
    "primitive_array": (1, basic.array_of),
    "map": (2, map_of),
    "tuple": (-1, case_class_of),
    "row": (-1, partial(row_of, has_kind=True)),
}


def python_type(name: str) -> Serializer:
    """Return the serializer of a PyFlink type.

    Raises:
        InvalidRequestError: The type is unknown.
    """
    tokens = _tokens(name)
    serializer = _type(tokens, name, 0)
    if next(tokens):
        raise _unknown_type(name)
    return serializer


def in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Wrap values that Flink stores as bytes with a length prefix, optionally with the time of their last use."""
    if has_last_access:
        return with_last_access(basic.LONG, in_bytes(inner))
    read = inner.read

    def value(content: bytes) -> Any:
        value, end = read(content, 0)
        if end != len(content):
            message = f"a value of {len(content)} bytes ends after {end}; it may have another type"
            raise ValueError(message)
        return value

    return Serializer(inner.type, converting_reader(basic.BYTES.read, value))


def several_in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Wrap concatenated values in the same way; PyFlink appends the values of a bundle to a list at once."""
    if has_last_access:
        return _several_with_last_access(inner)
    read = inner.read

    def several(content: bytes) -> list[Any]:
        values: list[Any] = []
        end = 0
        try:
            while end < len(content):
                value, end = read(content, end)
                values.append(value)
        except (IndexError, ValueError, struct.error) as error:
            message = (
                f"{len(content)} bytes are not valid values; they may have another type ({error})"
            )
            raise ValueError(message) from error
        if end != len(content):
            message = f"a value is longer than its {len(content)} bytes; it may have another type"
            raise ValueError(message)
        return values

    return Serializer(pa.list_(inner.type), converting_reader(basic.BYTES.read, several))


def _several_with_last_access(inner: Serializer) -> Serializer:
    whole = with_last_access(basic.LONG, several_in_bytes(inner))

    def several(timed: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**timed, "value": value} for value in timed["value"]]

    type = pa.list_(with_last_access(basic.LONG, inner).type)
    return Serializer(type, converting_reader(whole.read, several))


def _tokens(name: str) -> Iterator[str]:
    """Yield the tokens of a name, then endless empty ones."""
    position = 0
    while position < len(name):
        match = _TOKEN.match(name, position)
        if match is None:
            raise _unknown_type(name)
        position = match.end()
        yield match[1]
    while True:
        yield ""


def _type(tokens: Iterator[str], name: str, depth: int) -> Serializer:
    kind = next(tokens)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if kind not in _NESTED or depth > _MAX_DEPTH or next(tokens) != "<":
        raise _unknown_type(name)
    count, make = _NESTED[kind]
    parts = [_type(tokens, name, depth + 1)]
    while (delimiter := next(tokens)) == ",":
        parts.append(_type(tokens, name, depth + 1))
    if delimiter != ">" or count not in {-1, len(parts)}:
        raise _unknown_type(name)
    return make(*parts)


def _unknown_type(name: str) -> InvalidRequestError:
    nested = ", ".join(f"{kind}<…>" for kind in _NESTED)
    message = f"{name!r} is not a PyFlink type; available: {', '.join(_SIMPLE)}, {nested}"
    return InvalidRequestError(message)
