"""State of PyFlink, which Flink stores as bytes. Only the job's Python code has the types, so the reader specifies them.

    long  string  row<long, string>  map<string, tuple<int, double>>  list<date>

The names are those of PyFlink's `Types` and of SQL. A pickle is returned as bytes, because loading it would run its code.

Source:
    PyFlink, fn_execution/coder_impl_slow.py (2.3.0).
"""

import re
import struct
from collections.abc import Callable, Iterator
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
from holdfast.flink.serializers.serializer import Read, Serializer

_TOKEN = re.compile(r"\s*([a-z_0-9]+|[<>,])\s*")
_MAX_DEPTH = 32

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    content, position = basic.BYTES.read(data, position)
    return content.decode(), position


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    return _INT.unpack_from(data, position)[0], position + 4


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    return _LONG.unpack_from(data, position)[0], position + 8


_TEXT = Serializer(pa.string(), _read_text)

_SIMPLE = {
    "tinyint": basic.BYTE,
    "byte": basic.BYTE,
    "smallint": basic.SHORT,
    "short": basic.SHORT,
    "int": basic.INT,
    "bigint": basic.LONG,
    "long": basic.LONG,
    "boolean": basic.BOOLEAN,
    "float": basic.FLOAT,
    "double": basic.DOUBLE,
    "string": _TEXT,
    "decimal": _TEXT,
    "bytes": basic.BYTES,
    "pickled": basic.BYTES,
    "date": Serializer(pa.date32(), _read_int),
    "time": Serializer(pa.time32("ms"), _read_int),
    "timestamp": Serializer(pa.timestamp("ms"), _read_long),
    "instant": basic.INSTANT,
}

_NESTED: dict[str, tuple[int, Callable[..., Serializer]]] = {
    "list": (1, lambda element: nullable_elements(element, null=0)),
    "primitive_array": (1, basic.array_of),
    "map": (2, map_of),
    "tuple": (-1, case_class_of),
    "row": (-1, lambda *fields: row_of(*fields, has_kind=True)),
}


def python_type(name: str) -> Serializer:
    """Return the serializer of a PyFlink type.

    Raises:
        InvalidRequestError: The type is unknown.
    """
    tokens = _tokens(name)
    serializer = _type(tokens, name, 0)
    if next(tokens):
        raise _unknown(name)
    return serializer


def in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Wrap values that Flink stores as bytes with a length prefix, optionally with the time of their last use."""
    if has_last_access:
        return with_last_access(basic.LONG, in_bytes(inner))
    read_inner: Read = inner.read

    def read(data: bytes, position: int) -> tuple[Any, int]:
        content, position = basic.BYTES.read(data, position)
        value, end = read_inner(content, 0)
        if end != len(content):
            message = f"a value of {len(content)} bytes ends after {end}; it may have another type"
            raise ValueError(message)
        return value, position

    return Serializer(inner.type, read)


def several_in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Wrap concatenated values in the same way; PyFlink appends the values of a bundle to a list at once."""
    if has_last_access:
        return _several_with_last_access(inner)
    read_inner: Read = inner.read

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        content, position = basic.BYTES.read(data, position)
        values: list[Any] = []
        end = 0
        try:
            while end < len(content):
                value, end = read_inner(content, end)
                values.append(value)
        except (IndexError, ValueError, struct.error) as error:
            message = (
                f"{len(content)} bytes are not valid values; they may have another type ({error})"
            )
            raise ValueError(message) from error
        if end != len(content):
            message = f"a value is longer than its {len(content)} bytes; it may have another type"
            raise ValueError(message)
        return values, position

    return Serializer(pa.list_(inner.type), read)


def _several_with_last_access(inner: Serializer) -> Serializer:
    read_values: Read = several_in_bytes(inner).read

    def read(data: bytes, position: int) -> tuple[list[dict[str, Any]], int]:
        last_access, position = basic.LONG.read(data, position)
        values, position = read_values(data, position)
        return [{"value": value, "last_access": last_access} for value in values], position

    return Serializer(pa.list_(with_last_access(basic.LONG, inner).type), read)


def _tokens(name: str) -> Iterator[str]:
    """Yield the tokens of a name, then endless empty ones."""
    position = 0
    while position < len(name):
        match = _TOKEN.match(name, position)
        if match is None:
            raise _unknown(name)
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
        raise _unknown(name)
    count, make = _NESTED[kind]
    parts = [_type(tokens, name, depth + 1)]
    while (delimiter := next(tokens)) == ",":
        parts.append(_type(tokens, name, depth + 1))
    if delimiter != ">" or count not in {-1, len(parts)}:
        raise _unknown(name)
    return make(*parts)


def _unknown(name: str) -> InvalidRequestError:
    nested = ", ".join(f"{kind}<…>" for kind in _NESTED)
    message = f"{name!r} is not a PyFlink type; available: {', '.join(_SIMPLE)}, {nested}"
    return InvalidRequestError(message)
