"""Streams of state and metadata as Flink 1.11 and later read them: the other way round than `metadata` and `canonical`.

    metadata  of version 3, the last without objects of Java
    operator  of version 5, each element at an offset
    keyed     the canonical form, which all backends read

Source:
    Flink, MetadataV3Serializer, OperatorBackendSerializationProxy, KeyedBackendSerializationProxy,
    FullSnapshotAsyncWriter (2.3.0).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.flink.serializers import counted, utf

_MAGIC, _VERSION = 0x4960672D, 3
_SNAPSHOT_VERSION, _OPERATOR_VERSION, _KEYED_VERSION = 2, 5, 6
_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_END_OF_GROUP = 0xFFFF
_MODES = {"list": (0, "SPLIT_DISTRIBUTE"), "union": (1, "UNION"), "broadcast": (2, "BROADCAST")}
_KEYED, _OPERATOR, _TIMERS = 0, 1, 3
_BROADCAST = 2

Entries = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class WrittenList:
    """Operator state of a subtask.

    Attributes:
        kind: `list`, `union` or `broadcast`.
        snapshots: What it says of its serializers, by their role.
        elements: Each as bytes; all entries of a broadcast state are one.
    """

    kind: str
    snapshots: Mapping[str, bytes]
    elements: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file beside the metadata.

    Attributes:
        name: Its name.
        data: What is in it.
        handle: What the metadata says of it.
    """

    name: str
    data: bytes
    handle: bytes


def operator_file(name: str, states: Mapping[str, WrittenList]) -> WrittenFile:
    """Operator state of a subtask."""
    parts: list[list[bytes]] = [[], []]
    for state, written in states.items():
        mode, option = _MODES[written.kind]
        is_broadcast = mode == _BROADCAST
        options = {"OPERATOR_STATE_DISTRIBUTION_MODE": option}
        kind = _BROADCAST if is_broadcast else _OPERATOR
        parts[is_broadcast].append(_info(state, kind, options, written.snapshots))
    lists = (_SHORT.pack(len(infos)) + b"".join(infos) for infos in parts)
    data = [_INT.pack(_OPERATOR_VERSION), *lists]
    position = sum(map(len, data))
    places = []
    for state, written in states.items():
        offsets = []
        for element in written.elements:
            offsets.append(_LONG.pack(position))
            data.append(element)
            position += len(element)
        mode, _ = _MODES[written.kind]
        places.append(utf(state) + bytes([mode]) + counted(offsets))
    handle = b"\4" + counted(places) + _relative(name, position)
    return WrittenFile(name, b"".join(data), handle)


def keyed_info(name: str, kind: str, snapshot: bytes, namespace: bytes) -> bytes:
    """The description of a keyed state, of a kind such as `map`; `timers` have their namespace in them."""
    if kind == "timers":
        return _info(name, _TIMERS, {}, {"VALUE_SERIALIZER": snapshot})
    snapshots = {"NAMESPACE_SERIALIZER": namespace, "VALUE_SERIALIZER": snapshot}
    return _info(name, _KEYED, {"KEYED_STATE_TYPE": kind.upper()}, snapshots)


def keyed_file(
    name: str,
    key: bytes,
    infos: Sequence[bytes],
    first: int,
    groups: Sequence[Mapping[int, Entries]],
) -> WrittenFile:
    """Keyed state of a subtask.

    Args:
        name: Of the file.
        key: The snapshot of the key's serializer.
        infos: Descriptions of the states.
        first: The first key group.
        groups: Of each key group the entries of each state, by its number.
    """
    head = _INT.pack(_KEYED_VERSION) + b"\0" + _INT.pack(_SNAPSHOT_VERSION) + key
    data = [head + _SHORT.pack(len(infos)) + b"".join(infos)]
    position = len(data[0])
    offsets = []
    for group in groups:
        content = _group(group)
        offsets.append(_LONG.pack(position if content else 0))
        data.append(content)
        position += len(content)
    handle = b"\7" + _INT.pack(first) + counted(offsets) + _relative(name, position)
    return WrittenFile(name, b"".join(data), handle)


def _group(states: Mapping[int, Entries]) -> bytes:
    """A key group; the last entry of a state is marked in the highest bit of its key."""
    data = []
    for number, entries in states.items():
        data.append(_SHORT.pack(number))
        for position, (key, value) in enumerate(entries):
            is_last = position == len(entries) - 1
            marked = bytes([key[0] | 0x80]) + key[1:] if is_last else key
            data += [_INT.pack(len(key)), marked, _INT.pack(len(value)), value]
    return b"".join(data) + _SHORT.pack(_END_OF_GROUP) if data else b""


@dataclass(frozen=True, slots=True)
class WrittenOperator:
    """An operator in the metadata.

    Attributes:
        id: In hexadecimal digits.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        subtasks: Of each the files of operator state and of keyed state, or None.
    """

    id: str
    parallelism: int
    max_parallelism: int
    subtasks: Sequence[tuple[WrittenFile | None, WrittenFile | None]]


def metadata_file(checkpoint_id: int, operators: Sequence[WrittenOperator]) -> bytes:
    """What stands in `_metadata`."""
    head = _INT.pack(_MAGIC) + _INT.pack(_VERSION) + _LONG.pack(checkpoint_id)
    return head + counted([]) + counted([_operator(operator) for operator in operators])


def _operator(operator: WrittenOperator) -> bytes:
    no_coordinator = b"\0"
    subtasks = [
        _INT.pack(index)
        + counted([] if lists is None else [lists.handle])
        + counted([])  # raw operator state
        + (b"\0" if keyed is None else keyed.handle)
        + b"\0"  # raw keyed state
        + counted([]) * 2  # rows in flight
        for index, (lists, keyed) in enumerate(operator.subtasks)
    ]
    numbers = _INT.pack(operator.parallelism) + _INT.pack(operator.max_parallelism)
    return bytes.fromhex(operator.id) + numbers + no_coordinator + counted(subtasks)


def _info(
    name: str, kind: int, options: Mapping[str, str], snapshots: Mapping[str, bytes]
) -> bytes:
    return (
        utf(name)
        + _INT.pack(kind)
        + counted([utf(option) + utf(value) for option, value in options.items()])
        + counted(
            [
                utf(role) + _INT.pack(_SNAPSHOT_VERSION) + snapshot
                for role, snapshot in snapshots.items()
            ]
        )
    )


def _relative(name: str, size: int) -> bytes:
    return b"\6" + utf(name) + _LONG.pack(size)
