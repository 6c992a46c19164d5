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
"""Keys and values, one row for each entry."""


class BroadcastState:
    """A map with the same entries in every subtask, for rules and other data to look up.

    User code has to change it in the same way in every subtask. After a restore each subtask has the entries of one of the
    old subtasks.

    Entries are values: `get` returns a copy of a mutable object that was put, and a change of either doesn't change the
    state.

    Attributes:
        name: The name of the state.
        key_serializer: The serializer of the keys.
        value_serializer: The serializer of the values.

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
        self.name = name
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        # User code can't change keys that Arrow decodes. Others are also kept encoded.
        self._has_live_keys = key_serializer.makes_objects
        # Among Arrow's values only NaN differs from its copy.
        self._may_differ = self._has_live_keys or types.is_floating(key_serializer.storage_type)
        self._dictionary_key = (
            None if self._may_differ else dictionary_key(key_serializer.storage_type)
        )
        # By decoded key: the encoded value, or the encoded key and value if keys are live. Made for the first look-up.
        self._entries: dict[Any, Any] | None = None if stored else {}
        # Without a change since the last snapshot, or since the restore.
        self._captured: _CapturedEntries | None = None
        self._stored = stored

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._map())

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys, in the order in which they were put."""
        if self._has_live_keys:
            decode = self.key_serializer.decode_one
            return (decode(key) for key, _ in self._map().values())
        return iter(self._map())

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default. Raises `InvalidRequestError` if Python has no object for the value."""
        entries = self._map()
        try:
            stored = entries.get(self._lookup_key(self.key_serializer.encode_one(key)))
        except IncompatibleValueError:  # no entry can have it
            return default
        if stored is None:
            return default
        return self._value(stored[1] if self._has_live_keys else stored)

    def contains(self, key: Any) -> bool:
        """Return whether the key has a value."""
        try:
            return self._lookup_key(self.key_serializer.encode_one(key)) in self._map()
        except IncompatibleValueError:
            return False

    def put(self, key: Any, value: Any) -> None:
        """Give the key this value.

        Raises:
            InvalidRequestError: Key or value is `None`, or of another type, or the key can't be looked up. The state stays
                unchanged.
        """
        try:
            encoded_key = self.key_serializer.encode_one(key)
            key = self._lookup_key(encoded_key)
            if self._may_differ:
                self._check_copy(encoded_key, key)
            encoded = self.value_serializer.encode_one(value)
        except IncompatibleValueError as error:
            raise self._error_for(error) from None
        self._map()[key] = (encoded_key, encoded) if self._has_live_keys else encoded
        self._forget_columns()

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Give each key its value.

        Raises:
            InvalidRequestError: A key or value is `None`, or of another type. The state stays unchanged.
        """
        if not isinstance(entries, Mapping):
            raise self._error_for(
                IncompatibleValueError(f"{type(entries).__name__} is not a mapping")
            )
        keys, values = list(entries.keys()), list(entries.values())
        try:
            encoded_keys = keys
            if not self.key_serializer.all_native(keys):
                encoded_keys = [self.key_serializer.encode_one(key) for key in keys]
                keys = [self._lookup_key(key) for key in encoded_keys]
            if self._may_differ:
                for encoded_key, key in zip(encoded_keys, keys, strict=True):
                    self._check_copy(encoded_key, key)
            if not self.value_serializer.all_native(values):
                values = [self.value_serializer.encode_one(value) for value in values]
        except IncompatibleValueError as error:
            raise self._error_for(error) from None
        self._map().update(self._entries_of(keys, encoded_keys, values))
        self._forget_columns()

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        if self.contains(key):
            del self._map()[self._lookup_key(self.key_serializer.encode_one(key))]
            self._forget_columns()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}
        self._forget_columns()

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the keys with their values. Raises what `get` does."""
        decode = self._value
        if self._has_live_keys:
            decode_key = self.key_serializer.decode_one
            return ((decode_key(key), decode(value)) for key, value in self._map().values())
        return ((key, decode(value)) for key, value in self._map().items())

    def immutable_entries(self) -> Mapping[Any, Any]:
        """Return a read-only view of the map."""
        return _View(self)

    def capture(self) -> Callable[[], Columns]:
        """Capture the current entries for a snapshot, which makes columns of them later.

        Must not be called while data is processed. The captured entries don't change.
        """
        if self._stored is not None:
            stored = self._stored
            return lambda: stored
        if self._captured is None:
            self._captured = _CapturedEntries(self._map().copy(), self._columns)
        return self._captured

    def _value(self, encoded: Any) -> Any:
        try:
            return self.value_serializer.decode_one(encoded)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"broadcast state {self.name!r}: {error.args[0]}") from error

    def _forget_columns(self) -> None:
        self._stored = self._captured = None

    def _lookup_key(self, encoded_key: Any) -> Any:
        """Return the key of the dictionary of entries."""
        try:
            key = self.key_serializer.decode_one(encoded_key)
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
        """Refuse a key that an equal key would not find."""
        copy = self._lookup_key(encoded_key)
        if copy != key or hash(copy) != hash(key):
            raise IncompatibleValueError(
                f"a key of type {type(key).__name__} differs from its own copy, and could not be looked "
                "up; use keys that are equal by value, and not NaN"
            )

    def _map(self) -> dict[Any, Any]:
        if self._entries is None:
            keys, values = self._stored or ([], [])
            key_column = pa.chunked_array(keys, self.key_serializer.storage_type)
            value_column = pa.chunked_array(values, self.value_serializer.storage_type)
            decoded = self.key_serializer.decode(key_column)
            if self._dictionary_key is not None:
                decoded = list(map(self._dictionary_key, decoded))
            self._entries = dict(
                self._entries_of(
                    decoded,
                    self.key_serializer.encoded_in(key_column) if self._has_live_keys else decoded,
                    self.value_serializer.encoded_in(value_column),
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
            keys = self.key_serializer.column_of([key for key, _ in entries.values()])
            return keys, self.value_serializer.column_of([value for _, value in entries.values()])
        keys = self.key_serializer.encode(list(entries))
        return keys, self.value_serializer.column_of(list(entries.values()))

    def _error_for(self, error: IncompatibleValueError) -> InvalidRequestError:
        types = f"{self.key_serializer.name} to {self.value_serializer.name}"
        message = f"entries don't fit broadcast state {self.name!r} of type {types}: {error}"
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


class _CapturedEntries:
    """The columns of some entries, which the first caller makes."""

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
