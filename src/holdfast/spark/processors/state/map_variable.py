"""A map of the current key: read some keys ahead, written back at once.

Whoever reads a large map by a few keys should not have all of it read: where maps have been large, entries are looked
up singly, until that has cost as much as to read the map.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import MapState as SparkMapState

from holdfast.backends.keyed import MapEntries, MapState, Operation
from holdfast.spark.processors.state.reading_ahead import ReadingAhead
from holdfast.spark.processors.state.state_variable import StateVariable
from holdfast.spark.processors.turns import CurrentKey, Numbers
from holdfast.spark.processors.values import Structs, many_objects

_Values = tuple[Any, ...]
_Entries = dict[Any, tuple[_Values, _Values]]
"""By what can be looked up: the key and the value of an entry."""

_ENTRIES_OF_A_LOOK_UP = 500
"""So many entries are read in the time in which a single one is looked up."""


class MapVariable(StateVariable, SparkMapState):
    """Spark's `MapState` over a state of ours.

    Args:
        name: The variable's name.
        key_shape: What the maps' keys are.
        shape: What their values are.
        current: The current key.
        state: Where the maps lie; None on the driver, where nothing is read.
    """

    def __init__(
        self,
        name: str,
        key_shape: Structs,
        shape: Structs,
        current: CurrentKey,
        state: MapState | None,
    ) -> None:
        super().__init__(name, "Map", current)
        self._key_shape = key_shape
        self._shape = shape
        self._state = state
        self._stored: ReadingAhead[_Entries] = ReadingAhead(current)
        self._changes: dict[int, dict[Any, tuple[_Values, _Values | None]]] = {}
        self._cleared: set[int] = set()
        self._looked_up: dict[Any, _Values | None] = {}
        self._looked_up_of = -1

    def exists(self) -> bool:
        number = self._number("checking map state exists", "exists")
        changes = self._changes.get(number)
        if changes and any(value is not None for _, value in changes.values()):
            return True
        return bool(self._all(number))

    def getValue(self, key: Any) -> Row | None:  # Spark's name
        value = self._value(key, "getting value", "getValue")
        return None if value is None else self._shape.row(self._handed_out(value))

    def containsKey(self, key: Any) -> bool:  # Spark's name
        return self._value(key, "checking if map state contains key", "containsKey") is not None

    def updateValue(self, key: Any, value: Any) -> None:  # Spark's name
        doing = "updating map state value"
        map_key = self._row(self._key_shape, key, doing)
        row = self._row(self._shape, value, doing)
        number = self._number(doing, "updateValue")
        self._changes.setdefault(number, {})[self._key_shape.hashable(map_key)] = map_key, row

    def iterator(self) -> Iterator[tuple[_Values, _Values]]:
        # Generators look at the state when they are asked for the first entry, and have those of then.
        number = self._number("getting map state entries", "iterator")
        for key, value in list(self._all(number).values()):
            yield self._key_handed_out(key), self._handed_out(value)

    def keys(self) -> Iterator[_Values]:
        number = self._number("getting map state keys", "keys")
        for key, _ in list(self._all(number).values()):
            yield self._key_handed_out(key)

    def values(self) -> Iterator[_Values]:
        number = self._number("getting map state values", "values")
        for _, value in list(self._all(number).values()):
            yield self._handed_out(value)

    def removeKey(self, key: Any) -> None:  # Spark's name
        doing = "removing key from map state"
        map_key = self._row(self._key_shape, key, doing)
        number = self._number(doing, "removeKey")
        self._changes.setdefault(number, {})[self._key_shape.hashable(map_key)] = map_key, None

    def clear(self) -> None:
        number = self._number("clearing map state", "clear")
        self._cleared.add(number)
        self._changes.pop(number, None)

    def begin(self) -> None:
        """Another phase has begun: what was read is of other keys."""
        self._stored.clear()
        self._looked_up_of = -1

    def store(self) -> None:
        """Write back what has changed."""
        self.begin()
        changes, self._changes = self._changes, {}
        cleared, self._cleared = self._cleared, set()
        if self._state is None:
            return
        if cleared:
            keys, _ = self._current.keys_of(np.fromiter(sorted(cleared), np.int64))
            self._state.columns.remove_all(keys)
        if not changes:
            return
        keys, numbers = self._current.keys_of(np.fromiter(sorted(changes), np.int64))
        lengths = [len(changes[number]) for number in numbers.tolist()]
        entries = [entry for number in numbers.tolist() for entry in changes[number].values()]
        map_keys = self._key_shape.array([key for key, _ in entries])
        values = self._shape.array([value for _, value in entries])
        missing = values.is_null().to_numpy(zero_copy_only=False)
        operations = np.where(missing, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        indices = np.repeat(np.arange(len(lengths)), lengths)
        self._state.columns.store(keys, indices, map_keys, values, operations)

    def _value(self, key: Any, doing: str, operation: str) -> _Values | None:
        """The value of an entry of the current key, or None."""
        map_key = self._row(self._key_shape, key, doing)
        number = self._number(doing, operation)
        name = self._key_shape.hashable(map_key)
        changes = self._changes.get(number)
        if changes is not None:
            change = changes.get(name)
            if change is not None:
                return change[1]
        if number in self._cleared:
            return None
        stored = self._stored.get(number)
        if stored is None:
            if self._is_better_looked_up(number):
                return self._one(number, name, map_key)
            stored = self._load(number)
        entry = stored.get(name)
        return None if entry is None else entry[1]

    def _all(self, number: int) -> _Entries:
        """All entries of a key."""
        stored: _Entries = {}
        if number not in self._cleared:
            read = self._stored.get(number)
            stored = self._load(number) if read is None else read
        changes = self._changes.get(number)
        if not changes:
            return stored
        entries = dict(stored)
        for name, (key, value) in changes.items():
            if value is None:
                entries.pop(name, None)
            else:
                entries[name] = key, value
        return entries

    def _is_better_looked_up(self, number: int) -> bool:
        """Whether an entry should be looked up singly."""
        if number != self._looked_up_of:
            self._looked_up, self._looked_up_of = {}, number
        spent = len(self._looked_up) * _ENTRIES_OF_A_LOOK_UP
        return spent + _ENTRIES_OF_A_LOOK_UP < self._stored.elements_per_key

    def _one(self, number: int, name: Any, map_key: _Values) -> _Values | None:
        """The stored value of a single entry, or None."""
        if name not in self._looked_up:
            assert self._state is not None
            keys, _ = self._current.keys_of(np.array([number]))
            column = self._state.columns.get(keys, self._key_shape.array([map_key]), [0])
            value = None if column.null_count else self._tuples(self._shape, column)[0]
            self._looked_up[name] = value
        return self._looked_up[name]

    def _load(self, number: int) -> _Entries:
        """Read the maps of this key and of the next ones; gives that of this key."""
        assert self._state is not None
        keys, numbers = self._current.keys_of(self._stored.next_numbers())
        entries = self._state.columns.stored(keys)
        with many_objects():
            maps = self._maps(entries, numbers)
        self._stored.put(maps, len(entries))
        return maps[number]

    def _maps(self, entries: MapEntries, numbers: Numbers) -> dict[int, _Entries]:
        """The entries by the number of their key."""
        map_keys = self._tuples(self._key_shape, entries.map_keys)
        names: list[Any] = map_keys
        if not self._key_shape.is_hashed_as_it_is:
            names = list(map(self._key_shape.hashable, map_keys))
        pairs = list(zip(map_keys, self._tuples(self._shape, entries.values), strict=True))
        bounds = np.searchsorted(entries.indices, np.arange(len(numbers) + 1)).tolist()
        return {
            number: dict(zip(names[first:end], pairs[first:end], strict=True))
            for number, (first, end) in zip(numbers.tolist(), pairwise(bounds), strict=True)
        }

    def _handed_out(self, value: _Values) -> _Values:
        return value if self._shape.is_immutable else self._shape.copied_values(value)

    def _key_handed_out(self, key: _Values) -> _Values:
        return key if self._key_shape.is_immutable else self._key_shape.copied_values(key)
