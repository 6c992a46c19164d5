"""Key groups as the heap backend writes them in its own checkpoints and native savepoints.

    group  int group, then for every state: short state, int n, n * { namespace, key, value }

Nothing has a length: a state that can't be read spoils what stands behind it in the group. Where the state is
compressed each state is a stream of its own, and spoils nothing.

Source:
    Flink, HeapSnapshotStrategy and CopyOnWriteStateMapSnapshot (2.3.0).
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UnreadableStateError
from holdfast.flink.binary import damaged, decompress_streams
from holdfast.flink.serializers import Serializer, reading
from holdfast.flink.states.descriptions import KeyedDescription, StateInfo

_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")


def heap_columns(
    data: bytes, group: int, description: KeyedDescription, wanted: int
) -> list[pa.Array] | None:
    """The columns of a state in a key group, as `column_names` has them; None if it has none.

    Raises:
        CheckpointCorruptedError: The group is damaged, as far as it was looked at.
        UnreadableStateError: This state can't be read, or one that stands before it.
    """
    (number,) = _INT.unpack_from(data, 0)
    if number != group:
        raise damaged(f"key group {number} stands where {group} should")
    parts = [data[4:]]
    if description.is_compressed:
        parts = [stream.data for stream in decompress_streams(data[4:])]
    for part in parts:
        position = 0
        while position < len(part):
            (state,) = _SHORT.unpack_from(part, position)
            if state >= len(description.states):
                message = (
                    f"a key group has a state {state}, and there are {len(description.states)}"
                )
                raise damaged(message)
            info = description.states[state]
            if state == wanted:
                return _Reader(info, description.key).columns(part, position + 2)
            if description.is_compressed:
                break
            position = _skip(part, position + 2, info, description)
    return None


def _skip(data: bytes, position: int, info: StateInfo, description: KeyedDescription) -> int:
    """Where a state ends that nobody asks for."""
    try:
        with reading(f"state {info.name!r}"):
            return _Reader(info, description.key).skip(data, position)
    except UnreadableStateError as error:
        message = f"it stands behind another in each key group; {error.args[0]}"
        raise UnreadableStateError(message) from error


class _Reader:
    def __init__(self, info: StateInfo, key: Serializer) -> None:
        self._info = info
        value = info.value
        self._parts = (value,) if info.is_timer else (info.namespace, key, value)
        self._names = ("timer",) if info.is_timer else ("namespace", "key", "value")
        # Rows of one width need not be read one by one.
        all_fixed = all(part.column is not None for part in self._parts)
        self._width = sum(part.width for part in self._parts) if all_fixed else 0

    def skip(self, data: bytes, position: int) -> int:
        count, position = self._count(data, position)
        if self._width:
            return position + count * self._width
        self._check_readable(count)
        reads = [part.read for part in self._parts]
        for _ in range(count):
            for read in reads:
                _, position = read(data, position)
        return position

    def columns(self, data: bytes, position: int) -> list[pa.Array] | None:
        count, position = self._count(data, position)
        if not count:
            return None
        columns = (
            self._rows(data, position, count)
            if self._width
            else self._values(data, position, count)
        )
        if self._info.is_timer:
            times, key, namespace = columns["timer"].flatten()
            columns = {"key": key, "namespace": namespace, "timestamp": times}
        names = list(columns) if self._info.is_timer else ["key", "namespace", "value"]
        if pa.types.is_null(self._info.namespace.type):
            names.remove("namespace")
        return [columns[name] for name in names]

    def _count(self, data: bytes, position: int) -> tuple[int, int]:
        (count,) = _INT.unpack_from(data, position)
        position += 4
        if not 0 <= count <= (len(data) - position) // max(self._width, 1):
            raise damaged(
                f"{count} entries are to follow, and {len(data) - position} bytes are left"
            )
        return count, position

    def _check_readable(self, count: int) -> None:
        for part in self._parts:
            if part.unreadable and count:
                part.read(b"", 0)  # which says why

    def _rows(self, data: bytes, position: int, count: int) -> dict[str, Any]:
        rows = np.frombuffer(data, np.uint8, count * self._width, position)
        rows = rows.reshape(count, self._width)
        columns: dict[str, Any] = {}
        start = 0
        for name, part in zip(self._names, self._parts, strict=True):
            assert part.column is not None
            columns[name] = part.column(rows[:, start : start + part.width])
            start += part.width
        return columns

    def _values(self, data: bytes, position: int, count: int) -> dict[str, Any]:
        self._check_readable(count)
        values: list[list[Any]] = [[] for _ in self._parts]
        steps: list[tuple[Any, Callable[[Any], None]]] = [
            (part.read, collected.append)
            for part, collected in zip(self._parts, values, strict=True)
        ]
        for _ in range(count):
            for read, append in steps:
                value, position = read(data, position)
                append(value)
        return {
            name: pa.array(column, part.type)
            for name, column, part in zip(self._names, values, self._parts, strict=True)
        }
