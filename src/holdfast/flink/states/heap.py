"""Key groups as the heap backend writes them in its own checkpoints and native savepoints.

    group  int group, then for every state: short state, int n, n * { namespace, key, value }

Nothing has a length. Behind a state that can't be read the next is searched. The states stand in the same order in all groups
of a stream; a group without entries shows it, and what then is searched is the next state that can be read: its keys have to
belong to the group, and the states behind it to follow. Where no group shows the order, all that is left has to make
sense up to the group's end, with every other state once. Where the state is compressed each state is a stream of its own.

Source:
    Flink, HeapSnapshotStrategy and CopyOnWriteStateMapSnapshot (2.3.0).
"""

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.common import raise_shortage
from holdfast.errors import CheckpointCorruptedError, UnreadableStateError
from holdfast.flink.binary import damaged, decompress_streams
from holdfast.flink.serializers import Serializer, reading
from holdfast.flink.states.descriptions import KeyedDescription, StateInfo
from holdfast.flink.states.key_groups import KeyGroup

_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_HEAD_BYTES = _SHORT.size + _INT.size
_NO_VALUE = (struct.error, IndexError, ValueError, TypeError, pa.ArrowException)
"""What Python raises of bytes that make no value."""
_FIRST_ENTRIES, _MOST_ATTEMPTS, _MOST_ENTRIES = 4, 4_000, 1 << 18


def order_of_empty(data: bytes, count: int) -> tuple[int, ...]:
    """The order in which states stand, of a key group without compression; empty if it has entries."""
    behind_group = data[_INT.size :]
    if len(behind_group) != _HEAD_BYTES * count:
        return ()
    heads = [
        (
            _SHORT.unpack_from(behind_group, at)[0],
            _INT.unpack_from(behind_group, at + _SHORT.size)[0],
        )
        for at in range(0, len(behind_group), _HEAD_BYTES)
    ]
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
    """The columns of a state in a key group, as `column_names` has them; None if it has none.

    Args:
        data: The group.
        group: Which it is.
        description: Which states there are.
        wanted: The number of the state.
        order: The order in which the states stand, if it is known.

    Raises:
        CheckpointCorruptedError: The group is damaged, as far as it was looked at.
        UnreadableStateError: This state can't be read, or one that stands before it.
    """
    (number,) = _INT.unpack_from(data, 0)
    if number != group.number:
        raise damaged(f"key group {number} stands where {group.number} should")
    parts = [data[4:]]
    if description.is_compressed:
        parts = [stream.data for stream in decompress_streams(data[4:])]
    states = _States(description, group, order)
    for part in parts:
        places = states.places(part, wanted)
        if wanted in places:
            return _Reader(description.states[wanted], description.key).columns(
                part, places[wanted]
            )
    return None


class _States:
    """Where states begin in the bytes of a key group."""

    def __init__(
        self, description: KeyedDescription, group: KeyGroup, order: tuple[int, ...]
    ) -> None:
        self._description = description
        self._group = group
        self._order = order
        self._attempts = 0
        self._entries = 0
        self._in_vain: dict[frozenset[int], int] = {}  # from where on states were not to be found

    def places(self, data: bytes, wanted: int) -> dict[int, int]:
        """Where the number of entries stands of the states up to one, which may not be there.

        Raises:
            CheckpointCorruptedError: The states before it are damaged.
            UnreadableStateError: One of them can't be read, and the next was not to be found.
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
                    position = self._reader(state).skip(data, position)
            except UnreadableStateError as error:
                left = frozenset(range(len(self._description.states))).difference(places)
                self._attempts, self._entries = _MOST_ATTEMPTS, len(data) + _MOST_ENTRIES
                if self._order:
                    behind = self._by_order(data, position + _INT.size, state)
                else:
                    behind = self._behind(data, position + _INT.size, left)
                if behind is not None and wanted not in behind:  # nor can it be read itself
                    behind = None
                if behind is None:
                    message = f"it stands behind another in each key group; {error.args[0]}"
                    raise UnreadableStateError(message) from error
                return places | behind
        return places

    def _by_order(self, data: bytes, start: int, state: int) -> dict[int, int] | None:
        """Where those states begin, behind one, that can be told apart; None if what follows can't be known."""
        places: dict[int, int] = {}
        left = self._order[self._order.index(state) + 1 :]
        while True:
            while left and self._reader(left[0]).unreadable:
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
        """Where states begin that follow each other from here, up to one that can't be read; None if they don't."""
        places: dict[int, int] = {}
        try:
            for state in left:
                if data[position : position + _SHORT.size] != _SHORT.pack(state):
                    return None
                position += _SHORT.size
                reader = self._reader(state)
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
            message = (
                f"a key group has a state {state}, and there are {len(self._description.states)}"
            )
            raise damaged(message)
        return state, position + _SHORT.size

    def _behind(self, data: bytes, start: int, left: frozenset[int]) -> dict[int, int] | None:
        """Where the states that are left begin, somewhere behind a position; None if that can't be known."""
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
        """Where the states that are left begin if the first does here; None if they don't fill what is left of the bytes."""
        places: dict[int, int] = {}
        try:
            while left and position + _HEAD_BYTES <= len(data) and self._attempts > 0:
                (state,) = _SHORT.unpack_from(data, position)
                if state not in left:
                    return None
                left -= {state}
                position += _SHORT.size
                places[state] = position
                reader = self._reader(state)
                if not reader.belongs(data, position, self._group):
                    self._attempts -= 1
                    return None
                try:
                    position = self._end(data, position, reader)
                except UnreadableStateError:
                    if not left:
                        return places  # all that is left is its
                    behind = self._behind(data, position + _INT.size, left)
                    return None if behind is None else places | behind
        except (CheckpointCorruptedError, *_NO_VALUE) as error:
            raise_shortage(error)
            self._attempts -= 1
            return None
        return None if left or position < len(data) else places

    def _end(self, data: bytes, position: int, reader: "_Reader") -> int:
        """Where a state ends that perhaps begins here: if its first entries can be, all are looked at."""
        first = reader.skip(data, position, _FIRST_ENTRIES)
        (count,) = _INT.unpack_from(data, position)
        if count <= _FIRST_ENTRIES:
            return first
        self._entries -= count
        if self._entries < 0:
            self._attempts = 0
            raise damaged("the states of a key group can't be told apart")
        return reader.skip(data, position)

    def _reader(self, state: int) -> "_Reader":
        return _Reader(self._description.states[state], self._description.key)


class _Reader:
    def __init__(self, info: StateInfo, key: Serializer) -> None:
        self._info = info
        self._key = key
        value = info.value
        self._parts = (value,) if info.is_timer else (info.namespace, key, value)
        self._names = ("timer",) if info.is_timer else ("namespace", "key", "value")
        # Rows of one width need not be read one by one.
        all_fixed = all(part.column is not None for part in self._parts)
        self._width = sum(part.width for part in self._parts) if all_fixed else 0

    @property
    def unreadable(self) -> bool:
        """Whether entries can't be read, whatever is in them."""
        return any(part.unreadable for part in self._parts)

    def belongs(self, data: bytes, position: int, group: KeyGroup) -> bool:
        """Whether the key of the first entry that perhaps begins here, if there is one, stands in the group where it should."""
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

    def skip(self, data: bytes, position: int, most: int | None = None) -> int:
        """Where the entries end that begin here, or the first so and so many of them."""
        count, position = self._count(data, position)
        count = count if most is None else min(count, most)
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
