"""A map of each key: for many keys at once, and for the current key. Each entry is a row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import Elements, dictionary_key, run_starts
from holdfast.backends.keyed.columns import same_rows, take_arrow
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.keys import SUB_BITS, Keys
from holdfast.backends.keyed.states.current_key import CurrentKeyView, KeyCursor, ReadAhead
from holdfast.backends.keyed.states.state_rows import ValueForm, ValueRows
from holdfast.backends.keyed.table import Identities, Operation, TableRows
from holdfast.common import gc_paused
from holdfast.errors import InvalidRequestError

_U = np.uint64

_ENTRIES_PER_LOOK_UP = 500
"""The number of entries that are read in the time of one look-up."""

_Entry = tuple[Any, Any]
"""A map key and its value; None if the entry was removed."""


@dataclass(frozen=True)
class MapEntries:
    """Entries of the maps of several keys.

    Attributes:
        indices: For each entry the index of its key, ascending.
        map_keys: The map key of each entry, as stored.
        values: The value of each entry, as stored.
    """

    indices: Positions
    map_keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.indices)


class MapColumns:
    """A map state of many keys at once.

    An entry is named by the index of its key in `keys`, and by its map key: methods take the map key of each row, and
    the index of each row's key in `keys`, None for the rows of the batch. They raise `InvalidRequestError` as those of
    other states do, also for map keys of another type.
    """

    def __init__(self, rows: ValueRows, key_form: ValueForm) -> None:
        self.rows = rows
        self.key_form = key_form

    def get(self, keys: Keys, map_keys: Elements, indices: npt.ArrayLike | None = None) -> pa.Array:
        """Return the value of each entry; null for entries that don't exist."""
        entries = self._entries(keys, indices, self.key_form.encode(map_keys))
        self.rows.flush()
        _, values = self.rows.get(entries)
        return take_arrow(values, entries.codes)

    def put(
        self, keys: Keys, map_keys: Elements, values: Elements, indices: npt.ArrayLike | None = None
    ) -> None:
        """Set the value of each entry. If several rows are for the same entry, the last one wins."""
        entries = self._entries(keys, indices, self.key_form.encode(map_keys))
        array = self.rows.form.encode(values)
        self.rows.check_length(len(array), len(entries.rows.order), "rows")
        self.rows.flush()
        self.rows.put(entries, take_arrow(array, entries.rows.lasts))

    def remove(self, keys: Keys, map_keys: Elements, indices: npt.ArrayLike | None = None) -> None:
        """Remove entries."""
        entries = self._entries(keys, indices, self.key_form.encode(map_keys))
        self.rows.flush()
        self.rows.delete(entries)

    def items(self, keys: Keys) -> MapEntries:
        """Return all entries of the keys' maps, key by key."""
        self.rows.begin(keys)
        return self.peek(keys)

    def clear(self, keys: Keys) -> None:
        """Remove all entries of the keys' maps."""
        self.rows.begin(keys)
        self.delete_all(keys)

    def peek(self, keys: Keys) -> MapEntries:
        """Return all entries of the keys' maps. As in Flink, no time to live restarts."""
        shows_expired = self.rows.shows_expired
        table_rows, chosen, indices = self._rows_of(keys, include_expired=shows_expired)
        columns = [take_arrow(column, chosen) for column in table_rows.values]
        map_keys = take_arrow(table_rows.identities.columns[-1], chosen)
        return MapEntries(indices, map_keys, self.rows.form.values_of(columns))

    def peek_value(self, keys: Keys, map_key: Any) -> Any:
        """Return the value of an entry of a single key, or None. No time to live restarts."""
        entry = self._entries(keys, [0], self.key_form.encode([map_key]))
        present, values, _ = self.rows.peek(entry)
        return self.rows.form.objects(values, present)[0]

    def delete_all(self, keys: Keys) -> None:
        """Delete the entries of the keys' maps, with a row for each, as Flink does.

        Expired entries are deleted, too: they may be shown, or live again with a longer time to live.
        """
        table_rows, chosen, _ = self._rows_of(keys, include_expired=True)
        if len(chosen):
            ascending = np.sort(chosen)
            identities = Identities(
                table_rows.identities.sort_keys[ascending],
                tuple(take_arrow(column, ascending) for column in table_rows.identities.columns),
            )
            no_values = self.rows.form.null_columns(len(ascending))
            self.rows.table.write(identities, no_values, Operation.DELETE)

    def store(
        self,
        keys: Keys,
        indices: Positions,
        map_keys: pa.Array,
        values: pa.Array,
        operations: npt.NDArray[np.uint8],
    ) -> None:
        """Put and delete distinct entries."""
        entries = keys.with_columns(indices, [map_keys], self.rows.hash_of)
        lasts = entries.rows.lasts
        self.rows.write(entries, take_arrow(values, lasts), operations[lasts])

    def _entries(self, keys: Keys, indices: npt.ArrayLike | None, map_keys: pa.Array) -> Keys:
        self.rows.check(keys)
        at = self.rows.key_indices(keys, indices, len(map_keys))
        return keys.with_columns(at, [map_keys], self.rows.hash_of)

    def _rows_of(
        self, keys: Keys, *, include_expired: bool
    ) -> tuple[TableRows, Positions, Positions]:
        """Return rows of the table, the positions of those that belong to the keys, key by key, and the index of the key of each."""
        prefixes = keys.sort_keys >> SUB_BITS
        first = prefixes[run_starts(prefixes)]
        rows = self.rows.table.rows_between(
            first << SUB_BITS, (first + _U(1)) << SUB_BITS, include_expired=include_expired
        )
        indices = np.full(len(rows), -1, np.int64)
        todo = np.arange(len(rows))
        row_prefixes = rows.identities.sort_keys >> SUB_BITS
        starts = run_starts(row_prefixes).nonzero()[0]
        candidates = prefixes.searchsorted(row_prefixes.take(starts))
        candidates = candidates.repeat(np.diff(starts, append=len(rows)))
        own_columns = rows.identities.columns[: len(keys.columns)]
        while len(todo):  # keys with the same prefix are adjacent: compare one after the other
            at = candidates[todo]
            inside = at < len(keys)
            inside[inside] &= prefixes[at[inside]] == row_prefixes[todo[inside]]
            todo, at = todo[inside], at[inside]
            equal = same_rows(keys.columns, at, own_columns, todo)
            indices[todo[equal]] = at[equal]
            todo = todo[~equal]
            candidates[todo] += 1
        chosen = np.flatnonzero(indices >= 0)
        chosen = chosen[np.argsort(indices[chosen], kind="stable")]
        return rows, chosen, indices[chosen]


class MapState(CurrentKeyView["MapPage", MapColumns]):
    """A map of the current key, in the current namespace if the state has namespaces.

    The first read of a batch reads the whole maps of all its keys. For maps of very many entries use
    `columns`, which reads single entries. Entries that are only put are written without reading. Map keys and values
    are converted to the state's types; `InvalidRequestError` is raised for None, an object of another type, or a map key
    that can't be hashed.

    Source:
        Flink, MapState.
    """

    def __init__(self, columns: MapColumns, cursor: KeyCursor) -> None:
        super().__init__(columns, cursor, partial(MapPage, columns, cursor))
        self._key_form, self._form = columns.key_form, columns.rows.form
        self._copied, self._native = self._form.copied, self._form.native
        self._dictionary_key = dictionary_key(self._key_form.type)
        self._hashable = self._key_form.hashable
        is_name = self._dictionary_key is None and self._hashable is None
        self._name_type = self._key_form.native if is_name else None

    def get(self, key: Any) -> Any:
        """Return the value of an entry, or None."""
        page, index = self._current()
        name = key
        if type(key) is not self._name_type:
            name, key = self._name_and_key(key)
        value = page.read(index, name, key)
        return value if self._copied is None or value is None else self._copied(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of an entry."""
        page, index = self._current()
        if value is None:
            message = f"values of map state {self.name!r} must not be None; use `remove`"
            raise InvalidRequestError(message)
        if type(value) is not self._native:
            value = self._form.own(value)
        name = key
        if type(key) is not self._name_type:
            name, key = self._name_and_key(key)
        page.write(index, name, key, value)

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of entries."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove an entry, if it exists."""
        page, index = self._current()
        page.write(index, *self._name_and_key(key), None)

    def __contains__(self, key: object) -> bool:
        """Check for an entry."""
        return self.get(key) is not None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the map keys."""
        return iter(self.items())

    def items(self) -> dict[Any, Any]:
        """Return all entries of the current key, a new dictionary in no particular order."""
        return dict(self.entries())

    def entries(self) -> list[tuple[Any, Any]]:
        """Return the map key and the value of each entry, also of map keys that can't be hashed."""
        page, index = self._current()
        entries = [entry for entry in page.items(index).values() if entry[1] is not None]
        copied_key = None if self._hashable is None else self._key_form.copied
        if copied_key is not None:
            entries = [(copied_key(key), value) for key, value in entries]
        copied = self._copied
        return entries if copied is None else [(key, copied(value)) for key, value in entries]

    def keys(self) -> list[Any]:
        """Return the map keys."""
        return list(self.items())

    def values(self) -> list[Any]:
        """Return the values."""
        return list(self.items().values())

    def is_empty(self) -> bool:
        """Check that there are no entries."""
        page, index = self._current()
        return page.is_empty(index)

    def clear(self) -> None:
        """Remove all entries of the current key."""
        page, index = self._current()
        page.clear(index)

    def _name_and_key(self, key: Any) -> tuple[Any, Any]:
        """Return the name of an entry in dictionaries, equal to another one where Arrow's values are, and its map key."""
        if key is None:
            raise InvalidRequestError(f"keys of map state {self.name!r} must not be None")
        if type(key) is not self._key_form.native:
            key = self._key_form.own(key)
            self._check_hash(key)
        if self._dictionary_key is not None:
            key = self._dictionary_key(key)
        return key if self._hashable is None else self._hashable(key), key

    def _check_hash(self, key: Any) -> None:
        """Check that dictionaries can look up a map key. Raises `InvalidRequestError`."""
        type_name = type(key).__name__
        try:
            hash(key)
        except TypeError:
            message = f"a map key of type {type_name} of state {self.name!r} can't be hashed"
            raise InvalidRequestError(message) from None
        if self._key_form.serializer.makes_objects:
            copy = self._key_form.round_trip(key)
            if copy != key or hash(copy) != hash(key):
                raise InvalidRequestError(
                    f"a map key of type {type_name} differs from its own copy, and can't be looked up in state "
                    f"{self.name!r}; use a class whose objects are equal by value, without NaN in their fields"
                )


class MapPage:
    """The maps of the keys of a batch.

    If the maps that were read last were large, entries of a key are looked up singly, until that has cost as much as
    reading its map.
    """

    def __init__(self, columns: MapColumns, cursor: KeyCursor, keys: Keys) -> None:
        self._columns = columns
        self._is_refreshed = columns.rows.is_refreshed_by_reading
        self._keys = keys
        self._read = ReadAhead(cursor, keys)
        self._maps: dict[int, dict[Any, _Entry]] = {}  # those that were read last, with changes
        self._changes: dict[int, dict[Any, _Entry]] = {}
        self._cleared: set[int] = set()
        self._looked_up: dict[Any, Any] = {}
        self._looked_up_index = -1

    def read(self, index: int, name: Any, map_key: Any) -> Any:
        """Return the value of an entry, or None."""
        entries = self._maps.get(index)
        if entries is None:
            entries = self._changes.get(index, {})
            if name not in entries and index not in self._cleared:
                if self._is_look_up_cheaper(index):
                    entries = {name: (map_key, self._look_up(index, name, map_key))}
                else:
                    entries = self.items(index)
        entry = entries.get(name)
        value = None if entry is None else entry[1]
        if self._is_refreshed and value is not None:
            self.write(index, name, map_key, value)
        return value

    def write(self, index: int, name: Any, map_key: Any, value: Any) -> None:
        """Set the value of an entry; None removes the entry."""
        entry = (map_key, value)
        self._changes.setdefault(index, {})[name] = entry
        entries = self._maps.get(index)
        if entries is not None:
            entries[name] = entry

    def items(self, index: int) -> dict[Any, _Entry]:
        """Return the entries of a key by name; those that were removed have the value None. The page owns the result."""
        entries = self._maps.get(index)
        if entries is None and index in self._cleared:
            entries = self._maps[index] = dict(self._changes.get(index, {}))
        elif entries is None:
            self._load()
            entries = self._maps[index]
        return entries

    def is_empty(self, index: int) -> bool:
        """Check that a key has no entries."""
        changes = self._changes.get(index, {})
        if any(value is not None for _, value in changes.values()):
            return False
        return all(value is None for _, value in self.items(index).values())

    def clear(self, index: int) -> None:
        """Remove the entries of a key."""
        self._cleared.add(index)
        self._changes.pop(index, None)
        self._maps[index] = {}

    def store(self) -> None:
        if self._cleared:
            self._columns.delete_all(self._keys.take(sorted(self._cleared)))
        if not self._changes:
            return
        columns = self._columns
        entries = [entry for changes in self._changes.values() for entry in changes.values()]
        lengths = list(map(len, self._changes.values()))
        indices = np.repeat(np.fromiter(self._changes, np.int64, len(lengths)), lengths)
        removed = np.fromiter((value is None for _, value in entries), np.bool_, len(entries))
        operations = np.where(removed, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        values = columns.rows.form.encode_or_null([value for _, value in entries])
        map_keys = columns.key_form.encode([map_key for map_key, _ in entries])
        columns.store(self._keys, indices, map_keys, values, operations)

    def _load(self) -> None:
        """Read the maps of the current key and of the next ones."""
        keys, indices = self._read.next_keys()
        columns = self._columns
        entries = columns.peek(keys)
        with gc_paused():
            map_keys = columns.key_form.decode(entries.map_keys)
            as_key = dictionary_key(columns.key_form.type)
            if as_key is not None:
                map_keys = list(map(as_key, map_keys))
            hashable = columns.key_form.hashable
            names = map_keys if hashable is None else list(map(hashable, map_keys))
            pairs = zip(map_keys, columns.rows.form.decode(entries.values), strict=True)
            maps: list[dict[Any, _Entry]] = [{} for _ in indices]
            for at, name, pair in zip(entries.indices.tolist(), names, pairs, strict=True):
                maps[at][name] = pair
            self._maps = dict(zip(indices, maps, strict=True))
        for index in self._cleared.intersection(self._maps):
            self._maps[index] = {}
        for index in self._changes.keys() & self._maps.keys():
            self._maps[index].update(self._changes[index])
        self._read.note(len(indices), len(entries))

    def _is_look_up_cheaper(self, index: int) -> bool:
        """Estimate if one more look-up of an entry costs less than reading the key's map."""
        if index != self._looked_up_index:
            self._looked_up, self._looked_up_index = {}, index
        spent = len(self._looked_up) * _ENTRIES_PER_LOOK_UP
        return spent + _ENTRIES_PER_LOOK_UP < self._read.elements_per_key

    def _look_up(self, index: int, name: Any, map_key: Any) -> Any:
        """Return the stored value of an entry, or None."""
        if name not in self._looked_up:
            self._looked_up[name] = self._columns.peek_value(self._keys.take([index]), map_key)
        return self._looked_up[name]
