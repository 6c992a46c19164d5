"""Broadcast state: a map that is the same in every subtask."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import IncompatibleValueError, dictionary_key
from holdfast.backends.serializers import Serializer
from holdfast.errors import InvalidRequestError

Columns = tuple[list[pa.Array], list[pa.Array]]
"""Keys and values, one row an entry."""


class BroadcastState:
    """A map with the same entries in every subtask; for rules and other data to look up.

    Whoever uses it has to change it in the same way in every subtask. After a restore each subtask has the
    entries of one of the old subtasks.

    Entries are values: `get` returns another object than the one that was put, unless it can't change,
    and changing either doesn't change the state.

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
        # Keys that Arrow decodes can't be changed by who sees them; others can, and are kept encoded, too.
        self._has_live_keys = key_serializer.makes_objects
        # Among Arrow's values only NaN is unlike its copy.
        self._may_be_unlike = self._has_live_keys or types.is_floating(key_serializer.storage_type)
        self._dictionary_key = (
            None if self._may_be_unlike else dictionary_key(key_serializer.storage_type)
        )
        # By keys as they are when decoded, the values encoded, or pairs of both encoded if keys are
        # live; not made before somebody looks.
        self._entries: dict[Any, Any] | None = None if stored else {}
        self._later: _Later | None = None  # of the last snapshot, if nothing has changed since
        self._stored = stored  # if nothing has changed since

    @property
    def name(self) -> str:
        """The name that the state is registered by."""
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
        if self._has_live_keys:
            decode = self._key_serializer.decode_one
            return (decode(key) for key, _ in self._map().values())
        return iter(self._map())

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default. Raises `InvalidRequestError` where Python has no object for the value."""
        entries = self._map()
        try:
            stored = entries.get(self._decoded(self._key_serializer.encode_one(key)))
        except IncompatibleValueError:  # no entry can have it
            return default
        if stored is None:
            return default
        return self._value(stored[1] if self._has_live_keys else stored)

    def contains(self, key: Any) -> bool:
        """Return whether the key has a value."""
        try:
            return self._decoded(self._key_serializer.encode_one(key)) in self._map()
        except IncompatibleValueError:
            return False

    def put(self, key: Any, value: Any) -> None:
        """Give the key this value.

        Raises:
            InvalidRequestError: Key or value is None or of another type, or the key is none that can
                be looked up; nothing is changed then.
        """
        try:
            encoded_key = self._key_serializer.encode_one(key)
            key = self._decoded(encoded_key)
            if self._may_be_unlike:
                self._check_copy(encoded_key, key)
            encoded = self._value_serializer.encode_one(value)
        except IncompatibleValueError as error:
            raise self._refused(error) from None
        self._map()[key] = (encoded_key, encoded) if self._has_live_keys else encoded
        self._changed()

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Give each key its value.

        Raises:
            InvalidRequestError: A key or value is None or of another type; nothing is changed then.
        """
        if not isinstance(entries, Mapping):
            raise self._refused(IncompatibleValueError(f"{type(entries).__name__} is no mapping"))
        keys, values = list(entries.keys()), list(entries.values())
        try:
            encoded_keys = keys
            if not self._key_serializer.all_native(keys):
                encoded_keys = [self._key_serializer.encode_one(key) for key in keys]
                keys = [self._decoded(key) for key in encoded_keys]
            if self._may_be_unlike:
                for encoded_key, key in zip(encoded_keys, keys, strict=True):
                    self._check_copy(encoded_key, key)
            if not self._value_serializer.all_native(values):
                values = [self._value_serializer.encode_one(value) for value in values]
        except IncompatibleValueError as error:
            raise self._refused(error) from None
        self._map().update(self._entries_of(keys, encoded_keys, values))
        self._changed()

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        if self.contains(key):
            del self._map()[self._decoded(self._key_serializer.encode_one(key))]
            self._changed()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}
        self._changed()

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys with their values. Raises what `get` does."""
        decode = self._value
        if self._has_live_keys:
            decode_key = self._key_serializer.decode_one
            return ((decode_key(key), decode(value)) for key, value in self._map().values())
        return ((key, decode(value)) for key, value in self._map().items())

    def immutable_entries(self) -> Mapping[Any, Any]:
        """A view of the map that can't change it."""
        return _View(self)

    def captured(self) -> Callable[[], Columns]:
        """Capture the entries as they are now for a snapshot, which makes columns of them later.

        Must not be called while data is processed. The captured entries don't change.
        """
        if self._stored is not None:
            stored = self._stored
            return lambda: stored
        if self._later is None:
            self._later = _Later(self._map().copy(), self._columns)
        return self._later

    def _value(self, encoded: Any) -> Any:
        try:
            return self._value_serializer.decode_one(encoded)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"broadcast state {self._name!r}: {error.args[0]}") from error

    def _changed(self) -> None:
        self._stored = self._later = None

    def _decoded(self, encoded_key: Any) -> Any:
        """The key as it is looked up."""
        try:
            key = self._key_serializer.decode_one(encoded_key)
        except InvalidRequestError as error:
            raise IncompatibleValueError(error.args[0]) from None
        if self._dictionary_key is not None:
            key = self._dictionary_key(key)
        try:
            hash(key)
        except TypeError:
            message = f"a key of type {type(key).__name__} can't be looked up"
            raise IncompatibleValueError(message) from None
        return key

    def _check_copy(self, encoded_key: Any, key: Any) -> None:
        """Refuse a key that would not be found by one that is read or made again."""
        copy = self._decoded(encoded_key)
        if copy != key or hash(copy) != hash(key):
            message = (
                f"a key of type {type(key).__name__} is unlike its own copy, and could not be looked "
                "up; use keys that are equal by value, and not NaN"
            )
            raise IncompatibleValueError(message)

    def _map(self) -> dict[Any, Any]:
        if self._entries is None:
            keys, values = self._stored or ([], [])
            key_column = pa.chunked_array(keys, self._key_serializer.storage_type)
            value_column = pa.chunked_array(values, self._value_serializer.storage_type)
            decoded = self._key_serializer.decode(key_column)
            if self._dictionary_key is not None:
                decoded = list(map(self._dictionary_key, decoded))
            self._entries = dict(
                self._entries_of(
                    decoded,
                    self._key_serializer.encoded_in(key_column) if self._has_live_keys else decoded,
                    self._value_serializer.encoded_in(value_column),
                )
            )
        return self._entries

    def _entries_of(
        self, keys: list[Any], encoded_keys: list[Any], values: list[Any]
    ) -> Iterator[tuple[Any, Any]]:
        if self._has_live_keys:
            values = list(zip(encoded_keys, values, strict=True))
        return zip(keys, values, strict=True)

    def _columns(self, entries: dict[Any, Any]) -> Columns:
        if self._has_live_keys:
            keys = self._key_serializer.column_of([key for key, _ in entries.values()])
            return keys, self._value_serializer.column_of([value for _, value in entries.values()])
        keys = self._key_serializer.encode(list(entries))
        return keys, self._value_serializer.column_of(list(entries.values()))

    def _refused(self, error: IncompatibleValueError) -> InvalidRequestError:
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
