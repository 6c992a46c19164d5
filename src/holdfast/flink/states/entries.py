"""Entries of a state by key group as bytes, and their columns.

The format of all backends in canonical savepoints, and of RocksDB:

    key    group (1 byte for up to 128 groups, else 2), key [length], namespace [length] [map key]
    value  the value; elements of a list separated by 2c; of a map entry a byte for null, and its value

Lengths are present if neither key nor namespace has a fixed length. Each is that of the preceding part, little-endian,
in as few bytes as possible.

Source:
    Flink, CompositeKeySerializationUtils, SerializedCompositeKeyBuilder and RocksDBMapState (2.3.0).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flink.binary import corrupted_error
from holdfast.flink.serializers import (
    Packed,
    Rows,
    Serializer,
    not_readable,
    null_key,
    sorted_times,
)
from holdfast.flink.states.descriptions import StateInfo

_SEPARATOR = 0x2C
_COMMA = bytes([_SEPARATOR])
_CHUNK_VALUES, _MANY_VALUES, _LONG_BYTES = 1 << 11, 1 << 4, 1 << 7


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of a state in a key group; keys start with the group without other bits.

    Attributes:
        keys: Byte strings, or rows of bytes if all have the same length.
        values: Values in the order of keys.
    """

    keys: "list[bytes] | Rows"
    values: "list[bytes] | Rows"


Columns = tuple[tuple[str, pa.DataType], ...]
"""Names and types of the columns of a state."""


def constant(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)


def column_names(info: StateInfo, key: Serializer) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a state and their types, without the key group."""
    namespace = info.namespace
    columns = [("key", info.key(key).type)]
    if not pa.types.is_null(namespace.type):
        columns.append(("namespace", namespace.type))
    columns.append(("timestamp", pa.int64()) if info.is_timer else ("value", _value_type(info)))
    return columns


class EntryReader:
    """A converter of a state's entries to columns; keys start with `prefix` bytes for the key group."""

    def __init__(self, info: StateInfo, key: Serializer, prefix: int) -> None:
        self._info = info
        self._prefix = prefix
        self._value = info.value
        if info.is_timer and self._value.unreadable:
            raise not_readable(self._value.unreadable)
        key, namespace = info.key(key), info.namespace
        self._key, self._namespace = key, namespace
        self._has_lengths = key.length < 0 and namespace.length < 0 and not info.is_timer
        if namespace.unreadable:
            raise not_readable(namespace.unreadable)
        if key.unreadable and (not namespace.width or info.type == "map"):
            raise not_readable(key.unreadable)
        self._before = prefix + (8 if info.is_timer else 0)
        self._key_width = 0
        if key.column is not None and namespace.column is not None and not self._has_lengths:
            self._key_width = self._before + key.width + namespace.width

    @property
    def key_width(self) -> int:
        """Number of bytes of each key with its group, or 0 if they differ."""
        return 0 if self._info.type == "map" else self._key_width

    @property
    def value_width(self) -> int:
        """Number of bytes of each value, or -1 if they differ."""
        if self._info.is_timer:
            return 0
        if self._info.type in {"list", "map"} or self._value.column is None:
            return -1
        return self._value.width

    def columns(self, group: int, entries: Entries) -> list[pa.Array]:
        """Return the columns of a key group's entries, in the order of `column_names`. Raises `CheckpointError`."""
        if self._info.type == "map":
            columns = self._maps(group, entries)
        else:
            columns = self._key_columns(group, entries.keys)
            if not self._info.is_timer:
                columns.append(self._values(entries.values))
        if pa.types.is_null(self._namespace.type):
            del columns[1]
        return columns

    def _key_columns(self, group: int, keys: "list[bytes] | Rows") -> list[pa.Array]:
        prefix = group.to_bytes(self._prefix, "big")
        width = self._key_width
        if width and (rows := _rows(keys, width)) is not None:
            if not (rows[:, : self._prefix] == np.frombuffer(prefix, np.uint8)).all():
                raise _other_group(group)
            split = self._before + self._key.width
            assert self._key.column is not None
            assert self._namespace.column is not None
            columns = [
                self._key.column(rows[:, self._before : split]),
                self._namespace.column(rows[:, split:]),
            ]
            if self._info.is_timer:
                columns.append(sorted_times(rows[:, self._prefix : self._before]))
            return columns
        parts = [
            self._packed_columns(prefix, chunk) or self._read_columns(group, chunk)
            for chunk in _chunks(byte_strings(keys))
        ]
        return [_concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _read_columns(self, group: int, keys: list[bytes]) -> list[pa.Array]:
        prefix = group.to_bytes(self._prefix, "big")
        owners: list[Any] = []
        namespaces: list[Any] = []
        times_of: list[int] = []
        for key in keys:
            if not key.startswith(prefix):
                raise _other_group(group)
            if self._info.is_timer:
                time = int.from_bytes(key[self._prefix : self._before], "big")
                times_of.append(time - (1 << 63))
            owner, namespace, end = self._split(key)
            if end != len(key):
                raise corrupted_error(f"a key of {len(key)} bytes ends after {end}")
            owners.append(owner)
            namespaces.append(namespace)
        columns = [pa.array(owners, self._key.type), pa.array(namespaces, self._namespace.type)]
        if self._info.is_timer:
            columns.append(pa.array(times_of, pa.int64()))
        return columns

    def _packed_columns(self, prefix: bytes, keys: list[bytes]) -> list[pa.Array] | None:
        """Read keys of many widths at once; None if they must be read one by one."""
        key, namespace = self._key, self._namespace
        if key.packed_column is None or namespace.column is None or self._info.is_timer:
            return None
        if not _is_worth_packing(keys):
            return None
        parts = Packed.of(keys).split(self._prefix, namespace.width)
        if parts is None or not (parts[0] == np.frombuffer(prefix, np.uint8)).all():
            return None
        owners = key.packed_column(parts[1])
        return None if owners is None else [owners, namespace.column(parts[2])]

    def _split(self, key: bytes) -> tuple[Any, Any, int]:
        """Return the key, the namespace, and the end of both."""
        start = self._before
        if self._key.unreadable:
            position = len(key) - self._namespace.width
            owner: Any = key[start:position]
        else:
            owner, position = self._key.read(key, start)
        if self._has_lengths:
            position = _check_length(key, position, position - start)
        start = position
        namespace, position = self._namespace.read(key, position)
        if self._has_lengths:
            position = _check_length(key, position, position - start)
        return owner, namespace, position

    def _values(self, values: "list[bytes] | Rows") -> pa.Array:
        value = self._value
        if self._info.type == "list" and not value.unreadable:
            return _lists(value, byte_strings(values))
        return decode_column(value, values)

    def _maps(self, group: int, entries: Entries) -> list[pa.Array]:
        prefix = group.to_bytes(self._prefix, "big")
        user_key, user_value = _map_parts(self._value)
        fixed = self._key_width
        numbers: dict[bytes, int] = {}
        owners, names, contents = [], [], []
        for key, value in zip(
            byte_strings(entries.keys), byte_strings(entries.values), strict=True
        ):
            if not key.startswith(prefix):
                raise _other_group(group)
            split = fixed or self._split(key)[2]
            owners.append(numbers.setdefault(key[:split], len(numbers)))
            names.append(key[split:])
            contents.append(None if value[0] else value[1:])
        columns = self._key_columns(group, list(numbers))
        items = _decoded_or_null(user_value, contents)
        keys = decode_column(user_key, names)
        if keys.null_count:
            raise null_key()
        order = np.argsort(owners, kind="stable")
        if (np.diff(owners) < 0).any():  # entries of one map may be apart
            keys, items = keys.take(pa.array(order)), items.take(pa.array(order))
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owners)))).astype(np.int32)
        return [*columns, pa.MapArray.from_arrays(pa.array(offsets), keys, items)]


def decode_column(serializer: Serializer, values: "list[bytes] | Rows") -> pa.Array:
    """Decode values that fill their bytes exactly to a column."""
    if serializer.unreadable:
        return pa.array(byte_strings(values), pa.binary())
    column = serializer.column
    if column is not None and (rows := _rows(values, serializer.width)) is not None:
        return column(rows)
    if not len(values):
        return pa.array([], serializer.type)
    return _concatenate([_read_chunk(serializer, chunk) for chunk in _chunks(byte_strings(values))])


def _read_chunk(serializer: Serializer, values: list[bytes]) -> pa.Array:
    if serializer.packed_column is not None and _is_worth_packing(values):
        packed = serializer.packed_column(Packed.of(values))
        if packed is not None:
            return packed
    read = serializer.read
    result: list[Any] = []
    append: Callable[[Any], None] = result.append
    for data in values:
        content, end = read(data, 0)
        if end != len(data):
            raise corrupted_error(f"a value of {len(data)} bytes ends after {end}")
        append(content)
    return pa.array(result, serializer.type)


def _decoded_or_null(serializer: Serializer, values: list[bytes | None]) -> pa.Array:
    there = [value for value in values if value is not None]
    column = decode_column(serializer, there)
    if len(there) == len(values):
        return column
    numbers = iter(range(len(there)))
    return column.take(
        pa.array([None if value is None else next(numbers) for value in values], pa.int64())
    )


def _value_type(info: StateInfo) -> pa.DataType:
    value = info.value
    if info.type == "map" and value.unreadable:
        user_key, user_value = _map_parts(value)
        return pa.map_(user_key.type, user_value.type)
    return value.type


def _map_parts(value: Serializer) -> Sequence[Serializer]:
    if not value.parts:
        return value, value  # both unknown
    return value.parts


def _lists(value: Serializer, values: list[bytes]) -> pa.Array:
    if not value.parts:
        raise corrupted_error("a list has elements of an unknown class")
    [element] = value.parts
    if element.column is not None:
        # With a separator after the last element, too, all are rows of one width.
        stride = element.width + 1
        packed = Packed.of(values)
        counts, rests = np.divmod(packed.lengths + 1, stride)
        rows = np.frombuffer(b"".join([data + _COMMA for data in values]), np.uint8)
        if not rests.any() and (rows[stride - 1 :: stride] == _SEPARATOR).all():
            offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
            elements = element.column(rows.reshape(-1, stride)[:, :-1])
            return pa.ListArray.from_arrays(pa.array(offsets), elements)
    read_list = _elements(element)
    return pa.array([read_list(data) for data in values], value.type)


def _elements(element: Serializer) -> Callable[[bytes], list[Any]]:
    """Return a reader of lists with separated elements."""
    read = element.read

    def read_elements(data: bytes) -> list[Any]:
        elements = []
        position, end = 0, len(data)
        while True:
            element, position = read(data, position)
            elements.append(element)
            if position == end:
                return elements
            if data[position] != _SEPARATOR:
                raise corrupted_error("an element of a list has an unexpected end")
            position += 1

    return read_elements


def _check_length(key: bytes, position: int, length: int) -> int:
    """Check the length that follows a part of a key; returns the end of the length."""
    size = max((length.bit_length() + 7) // 8, 1)
    if key[position : position + size] != length.to_bytes(size, "little"):
        raise corrupted_error("a part of a key differs from its stored length")
    return position + size


def _chunks(values: list[bytes]) -> Iterator[list[bytes]]:
    """Split values into chunks, because the index of their bytes takes many times their memory."""
    for start in range(0, len(values), _CHUNK_VALUES):
        yield values[start : start + _CHUNK_VALUES]


def _concatenate(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _is_worth_packing(values: list[bytes]) -> bool:
    """Return whether values are numerous and short enough to be read faster at once than one by one."""
    count = len(values)
    return count >= _MANY_VALUES and sum(map(len, values)) <= _LONG_BYTES * count


def _rows(keys: "list[bytes] | Rows", width: int) -> Rows | None:
    """Return byte strings of one width as rows, or None if widths differ."""
    if isinstance(keys, np.ndarray):
        return keys
    if not set(map(len, keys)) <= {width}:
        return None
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width)


def byte_strings(keys: "list[bytes] | Rows") -> list[bytes]:
    return keys if isinstance(keys, list) else [row.tobytes() for row in keys]


def _other_group(group: int) -> Exception:
    return corrupted_error(f"key group {group} contains a key of another group")
