"""A map of the current key."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from holdfast.backends.arrow import dictionary_key
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.map_columns import MapColumns
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.table import Operation
from holdfast.errors import InvalidRequestError

_REMOVED: Any = object()


class MapState(OfCurrentKey["MapPage", MapColumns]):
    """A map of each key; its methods are about the current key, in the current namespace if it has namespaces.

    The first read of a batch looks up the whole maps of all its keys. For maps of very many entries take
    `columns`, which reads single entries. Entries that are only put are written without reading.

    Source:
        Flink, MapState.
    """

    def __init__(self, columns: MapColumns, context: KeyContext) -> None:
        super().__init__(columns, context, partial(MapPage, columns))
        self._key_form, self._form = columns.key_form, columns.rows.form
        self._dictionary_key = dictionary_key(self._key_form.type)

    def get(self, key: Any) -> Any:
        """The value of an entry, or None.

        Raises:
            InvalidRequestError: No key is current, or the map key can't be one.
        """
        page, index = self._current()
        value = page.read(index, self._own_key(key))
        copied = self._form.copied
        return value if copied is None or value is None else copied(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of an entry; the state keeps what its types make of key and value.

        Raises:
            InvalidRequestError: No key is current, or the map key or the value is None or of another type, or the map
                key has no hash.
        """
        page, index = self._current()
        if value is None:
            raise InvalidRequestError(f"None is no value of map state {self.name!r}; use `remove`")
        if type(value) is not self._form.native:
            value = self._form.own(value)
        page.write(index, self._own_key(key), value)

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of entries. Raises what `put` does."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove an entry, if it is there. Raises what `get` does."""
        page, index = self._current()
        page.write(index, self._own_key(key), _REMOVED)

    def __contains__(self, key: object) -> bool:
        """Whether there is such an entry. Raises what `get` does."""
        return self.get(key) is not None

    def __iter__(self) -> Iterator[Any]:
        """The map keys. Raises `InvalidRequestError` if no key is current."""
        return iter(self.items())

    def items(self) -> dict[Any, Any]:
        """All entries of the current key, a new dictionary in no certain order.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        entries, copied = page.items(index), self._form.copied
        if copied is None:
            return entries
        return {key: copied(value) for key, value in entries.items()}

    def keys(self) -> list[Any]:
        """The map keys. Raises what `items` does."""
        return list(self.items())

    def values(self) -> list[Any]:
        """The values. Raises what `items` does."""
        return list(self.items().values())

    def is_empty(self) -> bool:
        """Whether there is no entry. Raises what `items` does."""
        return not self.items()

    def clear(self) -> None:
        """Remove all entries of the current key. Raises what `items` does."""
        page, index = self._current()
        page.clear(index)

    def _own_key(self, key: Any) -> Any:
        """The map key as the page knows it: equal to others where Arrow's values are."""
        if key is None:
            raise InvalidRequestError(f"None is no key of map state {self.name!r}")
        if type(key) is not self._key_form.native:
            key = self._key_form.own(key)
            self._check_hash(key)
        return key if self._dictionary_key is None else self._dictionary_key(key)

    def _check_hash(self, key: Any) -> None:
        """Refuse what dictionaries can't look up. Raises `InvalidRequestError`."""
        kind = type(key).__name__
        try:
            hash(key)
        except TypeError:
            message = f"a map key of type {kind} can't be looked up in state {self.name!r}"
            raise InvalidRequestError(message) from None
        if self._key_form.serializer.makes_objects:
            copy = self._key_form.round_trip(key)
            if copy != key or hash(copy) != hash(key):
                message = (
                    f"a map key of type {kind} differs from its own copy, and can't be looked up in state "
                    f"{self.name!r}; use a class whose objects are equal by value, and no NaN inside of them"
                )
                raise InvalidRequestError(message)


class MapPage:
    """The maps of the keys of a batch."""

    __slots__ = ("_changes", "_cleared", "_columns", "_keys", "_stored")

    def __init__(self, columns: MapColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self._changes: dict[int, dict[Any, Any]] = {}
        self._cleared: set[int] = set()
        self._stored: list[dict[Any, Any]] | None = None

    def read(self, index: int, map_key: Any) -> Any:
        """The value of an entry, or None."""
        value = self._changes.get(index, {}).get(map_key)
        if value is _REMOVED or (value is None and index in self._cleared):
            return None
        if value is None:
            value = self._maps()[index].get(map_key)
            if value is not None and self._columns.rows.is_refreshed_by_reading:
                self.write(index, map_key, value)
        return value

    def write(self, index: int, map_key: Any, value: Any) -> None:
        """Set the value of an entry; `_REMOVED` removes it."""
        self._changes.setdefault(index, {})[map_key] = value

    def items(self, index: int) -> dict[Any, Any]:
        """The entries of a key."""
        entries = {} if index in self._cleared else dict(self._maps()[index])
        entries.update(self._changes.get(index, {}))
        return {key: value for key, value in entries.items() if value is not _REMOVED}

    def clear(self, index: int) -> None:
        """Remove the entries of a key."""
        self._cleared.add(index)
        self._changes.pop(index, None)

    def store(self) -> None:
        if self._cleared:
            self._columns.remove_all(self._keys.take(sorted(self._cleared)))
        indices: list[int] = []
        map_keys: list[Any] = []
        values: list[Any] = []
        for index, changes in self._changes.items():
            indices += [index] * len(changes)
            map_keys += changes
            values += changes.values()
        if not indices:
            return
        columns = self._columns
        missing = np.fromiter((value is _REMOVED for value in values), np.bool_, len(values))
        operations = np.where(missing, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        encoded = columns.rows.form.encoded_or_null(
            [None if value is _REMOVED else value for value in values]
        )
        encoded_keys = columns.key_form.encoded(map_keys)
        columns.store(self._keys, np.array(indices, np.int64), encoded_keys, encoded, operations)

    def _maps(self) -> list[dict[Any, Any]]:
        if self._stored is None:
            entries = self._columns.stored(self._keys)
            self._stored = [{} for _ in range(len(self._keys))]
            map_keys = self._columns.key_form.decoded(entries.map_keys)
            as_key = dictionary_key(self._columns.key_form.type)
            if as_key is not None:
                map_keys = list(map(as_key, map_keys))
            values = self._columns.rows.form.decoded(entries.values)
            for index, map_key, value in zip(
                entries.indices.tolist(), map_keys, values, strict=True
            ):
                self._stored[index][map_key] = value
        return self._stored
