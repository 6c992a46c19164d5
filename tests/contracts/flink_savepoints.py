"""Writes small savepoints in Flink's format, so that `holdfast.flink` reads the output of independent code.

From the bottom up: values (`flink_kinds`), descriptions of states, streams of operator state and keyed state, handles,
and `_metadata` in all versions.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from contracts.flink_kinds import NO_NAMESPACE, Kind, each, i2, i4, i8, utf

from holdfast.common import crc32c
from holdfast.flink import operator_id


def info(
    name: str,
    kind: int = 0,
    *,
    options: Mapping[str, str] | None = None,
    serializers: Mapping[str, bytes],
) -> bytes:
    """Encode the description of a state."""
    return (
        utf(name)
        + i4(kind)
        + each([utf(option) + utf(value) for option, value in (options or {}).items()])
        + each([utf(role) + i4(2) + content for role, content in serializers.items()])
    )


def keyed_info(
    name: str, type: str, value: bytes, namespace: bytes = NO_NAMESPACE.snapshot
) -> bytes:
    return info(
        name,
        options={"KEYED_STATE_TYPE": type},
        serializers={"NAMESPACE_SERIALIZER": namespace, "VALUE_SERIALIZER": value},
    )


def list_info(name: str, value: bytes) -> bytes:
    return info(
        name,
        1,
        options={"OPERATOR_STATE_DISTRIBUTION_MODE": "SPLIT_DISTRIBUTE"},
        serializers={"VALUE_SERIALIZER": value},
    )


def keyed_description(key: bytes, infos: Sequence[bytes], *, is_compressed: bool = False) -> bytes:
    return (
        i4(6)
        + bytes([is_compressed])
        + i4(2)
        + key
        + struct.pack(">H", len(infos))
        + b"".join(infos)
    )


def snappy_chunk(data: bytes) -> bytes:
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
    content: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return b"\0" + (len(content) + 4).to_bytes(3, "little") + masked.to_bytes(4, "little") + content


SNAPPY = b"\xff\6\0\0sNaPpY"


def snappy(data: bytes) -> bytes:
    """Compress a stream in chunks of at most 64 KiB."""
    starts = range(0, len(data), 1 << 16)
    return SNAPPY + b"".join(snappy_chunk(data[start : start + (1 << 16)]) for start in starts)


Entries = Sequence[tuple[bytes, bytes]]


def canonical_group(states: Mapping[int, Entries]) -> bytes:
    """Encode a key group: entries of each state, whose keys include the group."""
    data = b""
    for number, entries in states.items():
        data += struct.pack(">H", number)
        for position, (key, value) in enumerate(entries):
            is_last = position == len(entries) - 1
            first = bytes([key[0] | (0x80 if is_last else 0)])
            data += i4(len(key)) + first + key[1:] + i4(len(value)) + value
    return data + b"\xff\xff"


def entry_key(
    group: int, key: Kind, name: Any, namespace: Kind, space: Any, *, prefix: int = 1
) -> bytes:
    """Encode the key of an entry, without a map's key."""
    data = group.to_bytes(prefix, "big")
    parts = [key.encode(name), namespace.encode(space)]
    for part in parts:
        data += part
        if not key.is_fixed and not namespace.is_fixed:
            size = max((len(part).bit_length() + 7) // 8, 1)
            data += len(part).to_bytes(size, "little")
    return data


def inline(data: bytes, name: str = "a") -> bytes:
    return b"\1" + utf(name) + i4(len(data)) + data


def relative(name: str, size: int) -> bytes:
    return b"\6" + utf(name) + i8(size)


def file(uri: str, size: int) -> bytes:
    return b"\2" + i8(size) + utf(uri)


def segment(uri: str, start: int, size: int) -> bytes:
    return b"\x0f" + i8(start) + i8(size) + i4(0) + utf(uri) + utf("logical")


def key_groups(kind: int, first: int, offsets: Sequence[int], stream: bytes) -> bytes:
    head = bytes([kind]) + i4(first) + i4(len(offsets)) + b"".join(map(i8, offsets))
    return head + stream + (utf("id") if kind == 12 else b"")


def incremental(first: int, count: int, meta: bytes, files: Mapping[str, bytes]) -> bytes:
    shared = each([utf(name) + stream for name, stream in files.items()])
    return (
        b"\x0b"
        + i8(1)
        + utf("uuid")
        + i4(first)
        + i4(count)
        + i8(0)
        + meta
        + shared
        + i4(0)
        + utf("id")
    )


def keyed_stream(
    description: bytes, groups: Sequence[bytes], *, first: int = 0, kind: int = 12
) -> bytes:
    """Encode an inline handle of key groups; empty groups are omitted."""
    data, offsets = description, []
    for group in groups:
        offsets.append(len(data) if group else 0)
        data += group
    return key_groups(kind, first, offsets, inline(data))


def operator_handle(
    description: bytes,
    states: Mapping[str, tuple[int, Sequence[bytes]]],
    *,
    compressed: bool = False,
) -> bytes:
    """Encode an inline handle of operator state: the mode and elements of each state."""
    data, handle = description, []
    if compressed:
        data += SNAPPY
    for name, (mode, elements) in states.items():
        offsets = []
        for element in elements:
            offsets.append(len(data))
            if compressed:
                starts = range(0, max(len(element), 1), 1 << 16)
                data += b"".join(snappy_chunk(element[at : at + (1 << 16)]) for at in starts)
            else:
                data += element
        handle.append(utf(name) + bytes([mode]) + each([i8(offset) for offset in offsets]))
    return b"\4" + each(handle) + inline(data)


def list_states(
    states: Mapping[str, tuple[Kind, Sequence[Any]]], *, compressed: bool = False
) -> bytes:
    """Encode a handle of list states with these values."""
    infos = [list_info(name, kind.snapshot) for name, (kind, _) in states.items()]
    description = i4(6) + bytes([compressed]) + i2(len(infos)) + b"".join(infos) + i2(0)
    elements = {
        name: (0, [kind.encode(value) for value in values])
        for name, (kind, values) in states.items()
    }
    return operator_handle(description, elements, compressed=compressed)


@dataclass(frozen=True)
class Subtask:
    """The encoded handles of a subtask."""

    operator: bytes | None = None
    keyed: bytes = b"\0"
    raw_keyed: bytes = b"\0"
    channels: Sequence[bytes] = ()


def metadata(
    operators: Mapping[str, Mapping[int, Subtask]],
    *,
    version: int = 6,
    max_parallelism: int = 128,
    masters: Sequence[bytes] = (),
    properties: bytes = b"",
    coordinator: bytes = b"\0",
) -> bytes:
    """Encode a `_metadata` file: subtasks by operator uid, and the handle of the coordinator's state."""
    data = i4(0x4960672D) + i4(version) + i8(7) + each(masters) + i4(len(operators))
    for uid, subtasks in operators.items():
        if version >= 5:
            data += utf(f"name of {uid}") + utf(uid)
        data += (
            bytes.fromhex(operator_id(uid)) + i4(max(subtasks, default=0) + 1) + i4(max_parallelism)
        )
        data += i4(1) if version == 2 else coordinator
        data += i4(len(subtasks))
        for index, subtask in subtasks.items():
            data += i4(index) + _subtask(subtask, version)
    return data + properties


def _subtask(subtask: Subtask, version: int) -> bytes:
    data = i8(-1) + i4(0) if version == 2 else b""
    data += i4(0) if subtask.operator is None else i4(1) + subtask.operator
    data += i4(0) + subtask.keyed + subtask.raw_keyed
    if version >= 3:
        data += each(subtask.channels) + i4(0)
    return data + (b"\1" + i8(1) if version >= 7 else b"")


def channel(size: int, *, version: int) -> bytes:
    """Encode the handle of rows in flight."""
    return (b"\1" if version >= 6 else b"") + i4(0) * 3 + i4(1) + i8(0) + i8(size) + inline(b"x")
