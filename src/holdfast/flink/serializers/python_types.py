"""State of PyFlink: bytes to Flink, whose types only the job's Python knows; whoever reads it names them.

    long  string  row<long, string>  map<string, tuple<int, double>>  list<date>

The names are those of PyFlink's `Types` and of SQL. A pickle is given as its bytes: to load it would run what it says.

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
_MOST_NESTED = 32

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
    """What reads values of a type of PyFlink.

    Raises:
        InvalidRequestError: There is no type of that name.
    """
    tokens = _tokens(name)
    serializer = _type(tokens, name, 0)
    if next(tokens):
        raise _unknown(name)
    return serializer


def in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Values that Flink has as bytes with a length before them, perhaps with the time of their last use."""
    if has_last_access:
        return with_last_access(basic.LONG, in_bytes(inner))
    read_inner: Read = inner.read

    def read(data: bytes, position: int) -> tuple[Any, int]:
        content, position = basic.BYTES.read(data, position)
        value, end = read_inner(content, 0)
        if end != len(content):
            message = f"a value has {len(content)} bytes, of which {end} are read; it may be of another type"
            raise ValueError(message)
        return value, position

    return Serializer(inner.type, read)


def several_in_bytes(inner: Serializer, *, has_last_access: bool = False) -> Serializer:
    """Likewise one value behind the other, as PyFlink appends to a list what it was given in a bundle."""
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
            message = f"{len(content)} bytes are no values; they may be of another type ({error})"
            raise ValueError(message) from error
        if end != len(content):
            message = f"a value ends behind its {len(content)} bytes; it may be of another type"
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
    """The parts of a name, then empty ones without end."""
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
    if kind not in _NESTED or depth > _MOST_NESTED or next(tokens) != "<":
        raise _unknown(name)
    count, make = _NESTED[kind]
    parts = [_type(tokens, name, depth + 1)]
    while (behind := next(tokens)) == ",":
        parts.append(_type(tokens, name, depth + 1))
    if behind != ">" or count not in {-1, len(parts)}:
        raise _unknown(name)
    return make(*parts)


def _unknown(name: str) -> InvalidRequestError:
    nested = ", ".join(f"{kind}<…>" for kind in _NESTED)
    message = f"{name!r} is no type of PyFlink; there are {', '.join(_SIMPLE)}, {nested}"
    return InvalidRequestError(message)
