"""Writers of state and metadata for Flink 1.11 and later, the inverse of `metadata` and `canonical`.

    metadata  version 3, the last one without Java objects
    operator  version 5, each element at an offset
    keyed     the canonical format, which all backends read

Source:
    Flink, MetadataV3Serializer, OperatorBackendSerializationProxy, KeyedBackendSerializationProxy,
    FullSnapshotAsyncWriter (2.3.0).
"""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.flink.serializers import encode_items, utf

_MAGIC, _VERSION = 0x4960672D, 3
_SNAPSHOT_VERSION, _OPERATOR_VERSION, _KEYED_VERSION = 2, 5, 6
_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_END_OF_GROUP = 0xFFFF
_MODES = {"list": (0, "SPLIT_DISTRIBUTE"), "union": (1, "UNION"), "broadcast": (2, "BROADCAST")}
_KEYED, _OPERATOR, _TIMERS = 0, 1, 3
_BROADCAST = 2

_MIN_WRITE_BYTES = 1 << 20
"""Minimum number of bytes of a write."""

Entries = Iterable[tuple[bytes, bytes]]


class WrittenFile:
    """A file in the metadata's directory, in progress; `write` appends bytes to it."""

    def __init__(self, name: str, write: Callable[[bytes], object]) -> None:
        self.name = name
        self.size = 0
        self._write = write
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def append(self, data: bytes) -> None:
        """Append bytes; small pieces are buffered."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.size += len(data)
        if self._waiting_bytes >= _MIN_WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered bytes; called last."""
        if self._waiting:
            self._write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    @property
    def handle(self) -> bytes:
        return b"\6" + utf(self.name) + _LONG.pack(self.size)


@dataclass(frozen=True, slots=True)
class WrittenList:
    """Operator state.

    Attributes:
        kind: `list`, `union` or `broadcast`.
        snapshots: Snapshots of its serializers, by role.
        elements: Returns the elements of a subtask as bytes; the entries of a broadcast state are one element.
    """

    kind: str
    snapshots: Mapping[str, bytes]
    elements: Callable[[int], Iterable[bytes]]


def write_operator_state(
    file: WrittenFile, states: Mapping[str, WrittenList], subtask: int
) -> bytes:
    """Write operator state of a subtask to a file; returns its handle."""
    parts: list[list[bytes]] = [[], []]
    for state, written in states.items():
        mode, option = _MODES[written.kind]
        is_broadcast = mode == _BROADCAST
        options = {"OPERATOR_STATE_DISTRIBUTION_MODE": option}
        kind = _BROADCAST if is_broadcast else _OPERATOR
        parts[is_broadcast].append(_info(state, kind, options, written.snapshots))
    lists = (_SHORT.pack(len(infos)) + b"".join(infos) for infos in parts)
    file.append(b"".join([_INT.pack(_OPERATOR_VERSION), *lists]))
    places = []
    for state, written in states.items():
        offsets = array("q")
        for element in written.elements(subtask):
            offsets.append(file.size)
            file.append(element)
        mode, _ = _MODES[written.kind]
        places.append(utf(state) + bytes([mode]) + _offsets(offsets))
    file.flush()
    return b"\4" + encode_items(places) + file.handle


def keyed_info(name: str, kind: str, snapshot: bytes, namespace: bytes) -> bytes:
    """Return the description of a keyed state of a type such as `map`; timers contain their namespace."""
    if kind == "timers":
        return _info(name, _TIMERS, {}, {"VALUE_SERIALIZER": snapshot})
    snapshots = {"NAMESPACE_SERIALIZER": namespace, "VALUE_SERIALIZER": snapshot}
    return _info(name, _KEYED, {"KEYED_STATE_TYPE": kind.upper()}, snapshots)


def write_keyed_state(
    file: WrittenFile,
    key: bytes,
    infos: Sequence[bytes],
    first: int,
    groups: Iterable[Iterable[tuple[int, Entries]]],
) -> bytes:
    """Write keyed state of a subtask to a file; returns its handle.

    Args:
        file: The file.
        key: Snapshot of the key's serializer.
        infos: Descriptions of the states.
        first: First key group.
        groups: For each key group, the numbers of its states with entries, and these.
    """
    head = _INT.pack(_KEYED_VERSION) + b"\0" + _INT.pack(_SNAPSHOT_VERSION) + key
    file.append(head + _SHORT.pack(len(infos)) + b"".join(infos))
    offsets = array("q")
    for group in groups:
        start = file.size
        for data in _group(group):
            file.append(data)
        if file.size > start:
            file.append(_SHORT.pack(_END_OF_GROUP))
        offsets.append(start if file.size > start else 0)
    file.flush()
    return b"\7" + _INT.pack(first) + _offsets(offsets) + file.handle


def _group(states: Iterable[tuple[int, Entries]]) -> Iterator[bytes]:
    """Yield a key group without its end; the highest bit of a key marks the last entry of a state."""
    for number, entries in states:
        yield _SHORT.pack(number)
        left = iter(entries)
        key, value = next(left)
        for next_key, next_value in left:
            yield _entry(key, value)
            key, value = next_key, next_value
        yield _entry(bytes([key[0] | 0x80]) + key[1:], value)


def _entry(key: bytes, value: bytes) -> bytes:
    return b"".join((_INT.pack(len(key)), key, _INT.pack(len(value)), value))


def _offsets(offsets: "array[int]") -> bytes:
    count = _INT.pack(len(offsets))
    if sys.byteorder == "little":
        offsets.byteswap()
    return count + offsets.tobytes()


def metadata_file(checkpoint_id: int, operators: Sequence[bytes]) -> bytes:
    """Return the content of `_metadata` with the entries of operators."""
    head = _INT.pack(_MAGIC) + _INT.pack(_VERSION) + _LONG.pack(checkpoint_id)
    return head + encode_items([]) + encode_items(operators)


def operator_entry(
    id: str,
    parallelism: int,
    max_parallelism: int,
    handles: Sequence[tuple[bytes | None, bytes | None]],
) -> bytes:
    """Return the entry of an operator with the handles of operator state and keyed state of each subtask."""
    no_coordinator = b"\0"
    subtasks = [
        _INT.pack(index)
        + encode_items([] if lists is None else [lists])
        + encode_items([])  # raw operator state
        + (b"\0" if keyed is None else keyed)
        + b"\0"  # raw keyed state
        + encode_items([]) * 2  # rows in flight
        for index, (lists, keyed) in enumerate(handles)
    ]
    numbers = _INT.pack(parallelism) + _INT.pack(max_parallelism)
    return bytes.fromhex(id) + numbers + no_coordinator + encode_items(subtasks)


def _info(
    name: str, kind: int, options: Mapping[str, str], snapshots: Mapping[str, bytes]
) -> bytes:
    version = _INT.pack(_SNAPSHOT_VERSION)
    serializers = [utf(role) + version + snapshot for role, snapshot in snapshots.items()]
    pairs = [utf(option) + utf(value) for option, value in options.items()]
    return utf(name) + _INT.pack(kind) + encode_items(pairs) + encode_items(serializers)
