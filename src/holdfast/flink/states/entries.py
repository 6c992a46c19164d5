"""Entries of a state by key group, as bytes, and the columns that are made of them.

All backends write them so in canonical savepoints, and RocksDB keeps them so:

    key    group (1 byte for up to 128 groups, else 2), key [length], namespace [length] [map key]
    value  the value; elements of a list with 2c between them; of a map entry a byte for null, and its value

The lengths are there if neither key nor namespace is of a fixed one: each of what stands before it, little-endian,
in as few bytes as it takes.

Source:
    Flink, CompositeKeySerializationUtils, SerializedCompositeKeyBuilder and RocksDBMapState (2.3.0).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flink.binary import damaged
from holdfast.flink.serializers import Packed, Rows, Serializer, not_readable, null_key
from holdfast.flink.states.descriptions import StateInfo

_SEPARATOR = 0x2C
_COMMA = bytes([_SEPARATOR])
_CHUNK_VALUES, _MANY_VALUES, _LONG_BYTES = 1 << 11, 1 << 4, 1 << 7


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of a state in a key group; keys begin with the group, without any other bit.

    Attributes:
        keys: One of bytes each, or rows of bytes if all are equally long.
        values: As many.
    """

    keys: "list[bytes] | Rows"
    values: "list[bytes] | Rows"


def column_names(info: StateInfo, key: Serializer) -> list[tuple[str, pa.DataType]]:
    """The columns of a state and their types, without the key group."""
    namespace = info.namespace
    if info.is_timer and info.value.parts:
        key = info.value.parts[0]
    columns = [("key", key.type)]
    if not pa.types.is_null(namespace.type):
        columns.append(("namespace", namespace.type))
    columns.append(("timestamp", pa.int64()) if info.is_timer else ("value", _value_type(info)))
    return columns


class EntryReader:
    """Makes columns of a state's entries.

    Args:
        info: The state.
        key: The serializer of its keys.
        prefix: How many bytes the key group takes.
    """

    def __init__(self, info: StateInfo, key: Serializer, prefix: int) -> None:
        self._info = info
        self._prefix = prefix
        self._value = info.value
        if info.is_timer:
            if self._value.unreadable:
                raise not_readable(self._value.unreadable)
            key = self._value.parts[0]
        namespace = info.namespace
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
        """How many bytes each key has, with its group, or 0 if they differ."""
        return 0 if self._info.type == "map" else self._key_width

    @property
    def value_width(self) -> int:
        """How many bytes each value has, or -1 if they differ."""
        if self._info.is_timer:
            return 0
        if self._info.type in {"list", "map"} or self._value.column is None:
            return -1
        return self._value.width

    def columns(self, group: int, entries: Entries) -> list[pa.Array]:
        """The columns of a key group's entries, as `column_names` has them.

        Raises:
            CheckpointCorruptedError: They are damaged.
            UnreadableStateError: They hold values of a class that isn't known.
        """
        if self._info.type == "map":
            columns = self._maps(group, entries)
        else:
            columns = [*self._key_columns(group, entries.keys)]
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
                times = np.ascontiguousarray(rows[:, self._prefix : self._before]).view(">u8")[:, 0]
                signed = (times.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
                columns.append(pa.array(signed))
            return columns
        texts = byte_strings(keys)
        parts = [
            self._packed_columns(prefix, chunk) or self._read_columns(group, chunk)
            for chunk in _chunks(texts)
        ]
        return [_joined(arrays) for arrays in zip(*parts, strict=True)]

    def _read_columns(self, group: int, keys: list[bytes]) -> list[pa.Array]:
        """The columns of keys that are read by themselves."""
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
                raise damaged(f"a key has {len(key)} bytes, of which {end} are read")
            owners.append(owner)
            namespaces.append(namespace)
        columns = [pa.array(owners, self._key.type), pa.array(namespaces, self._namespace.type)]
        if self._info.is_timer:
            columns.append(pa.array(times_of, pa.int64()))
        return columns

    def _packed_columns(self, prefix: bytes, keys: list[bytes]) -> list[pa.Array] | None:
        """The columns of keys of many widths; None if they have to be read by themselves."""
        key, namespace = self._key, self._namespace
        if key.packed_column is None or namespace.column is None or self._info.is_timer:
            return None
        if not _are_many(keys):
            return None
        parts = Packed.of(keys).split(self._prefix, namespace.width)
        if parts is None or not (parts[0] == np.frombuffer(prefix, np.uint8)).all():
            return None
        owners = key.packed_column(parts[1])
        return None if owners is None else [owners, namespace.column(parts[2])]

    def _split(self, key: bytes) -> tuple[Any, Any, int]:
        """Key, namespace, and where they end."""
        start = self._before
        if self._key.unreadable:
            position = len(key) - self._namespace.width
            owner: Any = key[start:position]
        else:
            owner, position = self._key.read(key, start)
        if self._has_lengths:
            position = _behind_length(key, position, position - start)
        start = position
        namespace, position = self._namespace.read(key, position)
        if self._has_lengths:
            position = _behind_length(key, position, position - start)
        return owner, namespace, position

    def _values(self, values: "list[bytes] | Rows") -> pa.Array:
        value = self._value
        if self._info.type == "list" and not value.unreadable:
            return _lists(value, byte_strings(values))
        return decoded(value, values)

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
        keys = decoded(user_key, names)
        if keys.null_count:
            raise null_key()
        order = np.argsort(owners, kind="stable")
        if (np.diff(owners) < 0).any():  # entries of one map need not stand together
            keys, items = keys.take(pa.array(order)), items.take(pa.array(order))
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owners)))).astype(np.int32)
        return [*columns, pa.MapArray.from_arrays(pa.array(offsets), keys, items)]


def decoded(serializer: Serializer, values: "list[bytes] | Rows") -> pa.Array:
    """Values that end where their bytes do, as a column."""
    if serializer.unreadable:
        return pa.array(byte_strings(values), pa.binary())
    column = serializer.column
    if column is not None and (rows := _rows(values, serializer.width)) is not None:
        return column(rows)
    if not len(values):
        return pa.array([], serializer.type)
    return _joined([_read_chunk(serializer, chunk) for chunk in _chunks(byte_strings(values))])


def _read_chunk(serializer: Serializer, values: list[bytes]) -> pa.Array:
    if serializer.packed_column is not None and _are_many(values):
        packed = serializer.packed_column(Packed.of(values))
        if packed is not None:
            return packed
    read = serializer.read
    result: list[Any] = []
    append: Callable[[Any], None] = result.append
    for data in values:
        content, end = read(data, 0)
        if end != len(data):
            raise damaged(f"a value has {len(data)} bytes, of which {end} are read")
        append(content)
    return pa.array(result, serializer.type)


def _decoded_or_null(serializer: Serializer, values: list[bytes | None]) -> pa.Array:
    there = [value for value in values if value is not None]
    column = decoded(serializer, there)
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
        return value, value  # of which nothing is known
    return value.parts


def _lists(value: Serializer, values: list[bytes]) -> pa.Array:
    """Lists with a separator between their elements, as a column."""
    if not value.parts:
        raise damaged("a list has no elements of a known kind")
    [element] = value.parts
    if element.column is not None:
        # With a separator behind the last element, too, all are rows of one width.
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
    """Reads the elements of a list with a separator between them."""
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
                raise damaged("an element of a list ends elsewhere than it should")
            position += 1

    return read_elements


def _behind_length(key: bytes, position: int, length: int) -> int:
    """Where the length behind a part of a key ends; it says what is known already."""
    size = max((length.bit_length() + 7) // 8, 1)
    if key[position : position + size] != length.to_bytes(size, "little"):
        raise damaged("a part of a key has another length than is noted behind it")
    return position + size


def _chunks(values: list[bytes]) -> Iterator[list[bytes]]:
    """Values in parts, since what numbers their bytes takes many times their memory."""
    for start in range(0, len(values), _CHUNK_VALUES):
        yield values[start : start + _CHUNK_VALUES]


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _are_many(values: list[bytes]) -> bool:
    """Whether values are so many, and so short, that they are read faster at once than by themselves."""
    count = len(values)
    return count >= _MANY_VALUES and sum(map(len, values)) <= _LONG_BYTES * count


def _rows(keys: "list[bytes] | Rows", width: int) -> Rows | None:
    """Bytes that are all of one width as rows; None if some are not."""
    if isinstance(keys, np.ndarray):
        return keys
    if not set(map(len, keys)) <= {width}:
        return None
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width)


def byte_strings(keys: "list[bytes] | Rows") -> list[bytes]:
    """Keys or values as bytes each, whatever they are."""
    return keys if isinstance(keys, list) else [row.tobytes() for row in keys]


def _other_group(group: int) -> Exception:
    return damaged(f"a key of another group stands in key group {group}")
