"""Key groups in the format of the heap backend's checkpoints and native savepoints.

    group  int group, then for every state: short state, int n, n * { namespace, key, value }

Values have no lengths, so the state after an unreadable one must be searched. All groups of a stream have the states
in the same order, which a group without entries shows. The search then looks for the next readable state: its keys must
belong to the group, and the states after it must follow. If no group shows the order, the rest of the group must be
readable up to its end, with every other state once. If state is compressed, each state is a separate stream.

Source:
    Flink, HeapSnapshotStrategy and CopyOnWriteStateMapSnapshot (2.3.0).
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.keys import flink_key_groups
from holdfast.common import raise_shortage
from holdfast.errors import CheckpointCorruptedError, UnreadableStateError
from holdfast.flink.binary import corrupted_error, decompress_streams
from holdfast.flink.serializers import Serializer, reading
from holdfast.flink.states.descriptions import KeyedDescription, StateInfo

_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_HEAD_BYTES = _SHORT.size + _INT.size
_NO_VALUE = (struct.error, IndexError, ValueError, TypeError, pa.ArrowException)
"""Python's exceptions for bytes that are not a valid value."""
_FIRST_ENTRIES, _MAX_ATTEMPTS, _MAX_ENTRIES = 4, 4_000, 1 << 18


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """A key group of an operator with `max_parallelism` groups, by its number from 0."""

    number: int
    max_parallelism: int

    def has(self, key: Serializer, keys: pa.Array) -> bool:
        """Return whether all keys belong to the group, as far as their hash codes are known."""
        if key.hash_codes is None:
            return True
        groups = flink_key_groups(key.hash_codes(keys), self.max_parallelism)
        return bool((groups == self.number).all())


def order_of_empty(data: bytes, count: int) -> tuple[int, ...]:
    """Return the order of states in an uncompressed key group; empty if the group has entries."""
    body = data[_INT.size :]
    if len(body) != _HEAD_BYTES * count:
        return ()
    heads = list(struct.iter_unpack(">Hi", body))
    order = tuple(state for state, _ in heads)
    is_whole = sorted(order) == list(range(count)) and not any(entries for _, entries in heads)
    return order if is_whole else ()


def heap_columns(
    data: bytes,
    group: KeyGroup,
    description: KeyedDescription,
    wanted: int,
    order: tuple[int, ...] = (),
) -> list[pa.Array] | None:
    """Return the columns of a state in a key group, in the order of `column_names`, or None.

    Args:
        data: Bytes of the group.
        group: The key group.
        description: The states.
        wanted: Number of the state.
        order: Order of the states, if it is known.
    """
    (number,) = _INT.unpack_from(data, 0)
    if number != group.number:
        raise corrupted_error(f"expected key group {group.number}, got {number}")
    parts = [data[4:]]
    if description.is_compressed:
        parts = [stream.data for stream in decompress_streams(data[4:])]
    states = _States(description, group, order)
    for part in parts:
        places = states.places(part, wanted)
        if wanted in places:
            return states.reader(wanted).columns(part, places[wanted])
    return None


class _States:
    """The positions of states in the bytes of a key group."""

    def __init__(
        self, description: KeyedDescription, group: KeyGroup, order: tuple[int, ...]
    ) -> None:
        self._description = description
        self._group = group
        self._order = order
        self._attempts = 0
        self._entries = 0
        self._in_vain: dict[frozenset[int], int] = {}  # positions after which states were not found

    def places(self, data: bytes, wanted: int) -> dict[int, int]:
        """Return the positions of the entry counts of states up to `wanted`, which may be missing.

        Raises `UnreadableStateError` if one of them can't be read, and the next was not found.
        """
        places: dict[int, int] = {}
        position = 0
        while position < len(data):
            state, position = self._head(data, position)
            places[state] = position
            if state == wanted or self._description.is_compressed:
                break
            info = self._description.states[state]
            try:
                with reading(f"state {info.name!r}"):
                    position = self.reader(state).skip(data, position)
            except UnreadableStateError as error:
                left = frozenset(range(len(self._description.states))).difference(places)
                self._attempts, self._entries = _MAX_ATTEMPTS, len(data) + _MAX_ENTRIES
                if self._order:
                    following = self._by_order(data, position + _INT.size, state)
                else:
                    following = self._search_after(data, position + _INT.size, left)
                if following is None or wanted not in following:  # nor can it be read itself
                    message = f"it follows an unreadable state in each key group; {error.args[0]}"
                    raise UnreadableStateError(message) from error
                return places | following
        return places

    def _by_order(self, data: bytes, start: int, state: int) -> dict[int, int] | None:
        """Return the positions of distinguishable states after one, or None if they can't be determined."""
        places: dict[int, int] = {}
        left = self._order[self._order.index(state) + 1 :]
        while True:
            while left and self.reader(left[0]).unreadable:
                left = left[1:]
            if not left:
                return places
            head = _SHORT.pack(left[0])
            at = data.find(head, start)
            while at >= 0 and (follows := self._following(data, at, left)) is None:
                at = data.find(head, at + 1)
            if at < 0 or follows is None:
                return places or None
            places |= follows
            last = next(reversed(follows))
            start, left = follows[last] + _INT.size, left[left.index(last) + 1 :]
            if not left:
                return places

    def _following(
        self, data: bytes, position: int, left: tuple[int, ...]
    ) -> dict[int, int] | None:
        """Return the positions of consecutive states, up to an unreadable one, or None if they are not consecutive."""
        places: dict[int, int] = {}
        try:
            for state in left:
                if data[position : position + _SHORT.size] != _SHORT.pack(state):
                    return None
                position += _SHORT.size
                reader = self.reader(state)
                if not reader.belongs(data, position, self._group):
                    return None
                places[state] = position
                try:
                    position = self._end(data, position, reader)
                except UnreadableStateError:
                    return places
        except (CheckpointCorruptedError, *_NO_VALUE) as error:
            raise_shortage(error)
            return None
        return places if position == len(data) else None

    def _head(self, data: bytes, position: int) -> tuple[int, int]:
        (state,) = _SHORT.unpack_from(data, position)
        if state >= len(self._description.states):
            message = f"a key group has state {state} of {len(self._description.states)}"
            raise corrupted_error(message)
        return state, position + _SHORT.size

    def _search_after(self, data: bytes, start: int, left: frozenset[int]) -> dict[int, int] | None:
        """Search the positions of the remaining states after a position; None if they can't be determined."""
        if start >= self._in_vain.get(left, len(data)):
            return None
        heads = b"|".join(re.escape(_SHORT.pack(state)) for state in left)
        for match in re.compile(b"(?=" + heads + b")", re.DOTALL).finditer(data, start):
            if not left or match.start() + _HEAD_BYTES > len(data) or self._attempts <= 0:
                break
            places = self._all(data, match.start(), left)
            if places is not None:
                return places
        self._in_vain[left] = start
        return None

    def _all(self, data: bytes, position: int, left: frozenset[int]) -> dict[int, int] | None:
        """Return the positions of the remaining states if they fill the rest of the bytes from here, otherwise None."""
        places: dict[int, int] = {}
        try:
            while left and position + _HEAD_BYTES <= len(data) and self._attempts > 0:
                (state,) = _SHORT.unpack_from(data, position)
                if state not in left:
                    return None
                left -= {state}
                position += _SHORT.size
                places[state] = position
                reader = self.reader(state)
                if not reader.belongs(data, position, self._group):
                    self._attempts -= 1
                    return None
                try:
                    position = self._end(data, position, reader)
                except UnreadableStateError:
                    if not left:
                        return places  # it has all the remaining bytes
                    following = self._search_after(data, position + _INT.size, left)
                    return None if following is None else places | following
        except (CheckpointCorruptedError, *_NO_VALUE) as error:
            raise_shortage(error)
            self._attempts -= 1
            return None
        return None if left or position < len(data) else places

    def _end(self, data: bytes, position: int, reader: "_Reader") -> int:
        """Return the end of a state that may start here; reads all entries if the first ones are valid."""
        first = reader.skip(data, position, _FIRST_ENTRIES)
        (count,) = _INT.unpack_from(data, position)
        if count <= _FIRST_ENTRIES:
            return first
        self._entries -= count
        if self._entries < 0:
            self._attempts = 0
            raise corrupted_error("the states of a key group can't be distinguished")
        return reader.skip(data, position)

    def reader(self, state: int) -> "_Reader":
        return _Reader(self._description.states[state], self._description.key)


class _Reader:
    def __init__(self, info: StateInfo, key: Serializer) -> None:
        self._info = info
        self._key = key
        value = info.value
        self._parts = (value,) if info.is_timer else (info.namespace, key, value)
        # Rows of one width are read at once.
        all_fixed = all(part.column is not None for part in self._parts)
        self._width = sum(part.width for part in self._parts) if all_fixed else 0

    @property
    def unreadable(self) -> bool:
        return any(part.unreadable for part in self._parts)

    def belongs(self, data: bytes, position: int, group: KeyGroup) -> bool:
        """Return whether the key of the first entry, if one starts here, belongs to the group."""
        count, position = self._count(data, position)
        key = self._parts[0].parts[0] if self._info.is_timer and self._parts[0].parts else self._key
        if not count or key.unreadable or key.hash_codes is None:
            return True
        if self._info.is_timer:
            owner = self._parts[0].read(data, position)[0]["key"]
        else:
            _, position = self._parts[0].read(data, position)
            owner, _ = key.read(data, position)
        return group.has(key, pa.array([owner], key.type))

    def skip(self, data: bytes, position: int, max_entries: int | None = None) -> int:
        """Return the end of the entries that start here, or of the first `max_entries`."""
        count, position = self._count(data, position)
        count = count if max_entries is None else min(count, max_entries)
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
        read = self._rows if self._width else self._values
        columns = read(data, position, count)
        if self._info.is_timer:
            [timers] = columns
            times, key, namespace = timers.flatten()
            columns = [namespace, key, times]
        namespace, key, value = columns
        return [key, value] if pa.types.is_null(namespace.type) else [key, namespace, value]

    def _count(self, data: bytes, position: int) -> tuple[int, int]:
        (count,) = _INT.unpack_from(data, position)
        position += 4
        if not 0 <= count <= (len(data) - position) // max(self._width, 1):
            raise corrupted_error(f"{count} entries can't fit into {len(data) - position} bytes")
        return count, position

    def _check_readable(self, count: int) -> None:
        for part in self._parts:
            if part.unreadable and count:
                part.read(b"", 0)  # raises the reason

    def _rows(self, data: bytes, position: int, count: int) -> list[pa.Array]:
        rows = np.frombuffer(data, np.uint8, count * self._width, position)
        rows = rows.reshape(count, self._width)
        columns = []
        start = 0
        for part in self._parts:
            assert part.column is not None
            columns.append(part.column(rows[:, start : start + part.width]))
            start += part.width
        return columns

    def _values(self, data: bytes, position: int, count: int) -> list[pa.Array]:
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
        return [
            pa.array(column, part.type) for column, part in zip(values, self._parts, strict=True)
        ]
