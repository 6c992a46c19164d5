"""Broadcast state: a map that is the same in every subtask."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from holdfast.backends._casts import MisfitError
from holdfast.backends._serializers import Serializer
from holdfast.errors import InvalidRequestError

Columns = tuple[list[pa.Array], list[pa.Array]]
"""Keys and values, one row an entry."""


class BroadcastState:
    """A map that every subtask holds the same entries of; for rules, and what else is looked up.

    It is for whoever uses it to change it in the same way in every subtask. After a restore each
    subtask has the entries of one of those that there were before.

    Entries are values: what `get` returns is another object than what was put, unless it can't change,
    and changing either changes nothing here.

    Source:
        Flink, BroadcastState and HeapBroadcastState.
    """

    def __init__(
        self,
        name: str,
        key_serializer: Serializer,
        value_serializer: Serializer,
        stored: Columns | None = None,
    ) -> None:
        self._name = name
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        # Keys as they are when decoded, values encoded; not made before somebody looks.
        self._entries: dict[Any, Any] | None = None if stored else {}
        self._later: _Later | None = None  # of the last snapshot, if nothing has changed since
        self._stored = stored  # if nothing has changed since

    @property
    def name(self) -> str:
        """The name that it is registered by."""
        return self._name

    @property
    def key_serializer(self) -> Serializer:
        """How keys are stored."""
        return self._key_serializer

    @property
    def value_serializer(self) -> Serializer:
        """How values are stored."""
        return self._value_serializer

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._map())

    def __iter__(self) -> Iterator[Any]:
        """The keys, in the order in which they were put."""
        return iter(self._map())

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        entries = self._map()
        try:
            key = self._key(key)
            if key not in entries:
                return default
        except MisfitError:  # no entry can have it
            return default
        return self._value_serializer.decode_one(entries[key])

    def contains(self, key: Any) -> bool:
        """Whether the key has a value."""
        try:
            return self._key(key) in self._map()
        except MisfitError:
            return False

    def put(self, key: Any, value: Any) -> None:
        """Give the key this value.

        Raises:
            InvalidRequestError: One of them is None or of another type, or the key is none that can
                be looked up; nothing is changed then.
        """
        try:
            key, encoded = self._key(key), self._value_serializer.encode_one(value)
        except MisfitError as error:
            raise self._refused(error) from None
        self._map()[key] = encoded
        self._changed()

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Give each key its value.

        Raises:
            InvalidRequestError: One is None or of another type; nothing is changed then.
        """
        if not isinstance(entries, Mapping):
            raise self._refused(MisfitError(f"{type(entries).__name__} is no mapping"))
        keys, values = list(entries.keys()), list(entries.values())
        try:
            if not self._key_serializer.are_native(keys):
                keys = [self._key(key) for key in keys]
            if not self._value_serializer.are_native(values):
                values = [self._value_serializer.encode_one(value) for value in values]
        except MisfitError as error:
            raise self._refused(error) from None
        self._map().update(zip(keys, values, strict=True))
        self._changed()

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        if self.contains(key):
            del self._map()[self._key(key)]
            self._changed()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}
        self._changed()

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys with their values."""
        decode = self._value_serializer.decode_one
        return ((key, decode(value)) for key, value in self._map().items())

    def immutable_entries(self) -> Mapping[Any, Any]:
        """A view of the map that can't change it."""
        return _View(self)

    def captured(self) -> Callable[[], Columns]:
        """What a snapshot holds: the entries as they are now, as columns when somebody asks.

        Not while data is processed; and what is captured can't change.
        """
        if self._stored is not None:
            stored = self._stored
            return lambda: stored
        if self._later is None:
            self._later = _Later(self._map().copy(), self._columns)
        return self._later

    def _changed(self) -> None:
        self._stored = self._later = None

    def _key(self, key: Any) -> Any:
        """The key as it will be when it is decoded."""
        key = self._key_serializer.decode_one(self._key_serializer.encode_one(key))
        try:
            hash(key)
        except TypeError:
            message = f"a key of type {type(key).__name__} can't be looked up"
            raise MisfitError(message) from None
        return key

    def _map(self) -> dict[Any, Any]:
        if self._entries is None:
            keys, values = self._stored or ([], [])
            key_type = self._key_serializer.storage_type
            value_type = self._value_serializer.storage_type
            self._entries = dict(
                zip(
                    self._key_serializer.decode(pa.chunked_array(keys, key_type)),
                    self._value_serializer.encoded_in(pa.chunked_array(values, value_type)),
                    strict=True,
                )
            )
        return self._entries

    def _columns(self, entries: dict[Any, Any]) -> Columns:
        keys = self._key_serializer.encode(list(entries))
        return keys, self._value_serializer.column_of(list(entries.values()))

    def _refused(self, error: MisfitError) -> InvalidRequestError:
        types = f"{self._key_serializer.name} to {self._value_serializer.name}"
        message = f"entries don't fit broadcast state {self._name!r} of type {types}: {error}"
        return InvalidRequestError(message)


class _View(Mapping[Any, Any]):
    def __init__(self, state: BroadcastState) -> None:
        self._state = state

    def __getitem__(self, key: Any) -> Any:
        if key not in self._state:
            raise KeyError(key)
        return self._state.get(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


class _Later:
    """The columns of some entries, made once, by whoever asks first."""

    def __init__(
        self, entries: dict[Any, Any], columns_of: Callable[[dict[Any, Any]], Columns]
    ) -> None:
        self._entries = entries
        self._columns_of = columns_of
        self._lock = threading.Lock()
        self._columns: Columns | None = None

    def __call__(self) -> Columns:
        with self._lock:
            if self._columns is None:
                self._columns = self._columns_of(self._entries)
                self._entries = {}
            return self._columns
