"""Broadcast state: a map that is the same in every subtask."""

import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
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

    Keys and values are kept as they were put: an object that is changed afterwards is stored as it is
    when the next snapshot is taken, if any entry was put or removed since the last one.

    Source:
        Flink, BroadcastState and HeapBroadcastState.
    """

    def __init__(
        self,
        name: str,
        key_serializer: Serializer,
        value_serializer: Serializer,
        stored: Columns = ((), ()),  # type: ignore[assignment]
    ) -> None:
        self._name = name
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._entries: dict[Any, Any] | None = None  # not made before somebody looks
        self._captured: _Later | None = None  # by the last snapshot, if nothing has changed since
        self._stored: Columns | None = (list(stored[0]), list(stored[1]))

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
        return self._map().get(key, default)

    def contains(self, key: Any) -> bool:
        """Whether the key has a value."""
        return key in self._map()

    def put(self, key: Any, value: Any) -> None:
        """Give the key this value.

        Raises:
            InvalidRequestError: One of them is None or of another type; nothing is changed then.
        """
        self._check(key, value)
        self._map()[key] = value
        self._stored = self._captured = None

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Give each key its value.

        Raises:
            InvalidRequestError: One is None or of another type; nothing is changed then.
        """
        if not isinstance(entries, Mapping):
            raise self._refused(MisfitError(f"{type(entries).__name__} is no mapping"))
        entries = dict(entries.items())  # what is checked is what is put
        try:
            self._key_serializer.check(entries.keys())
            self._value_serializer.check(entries.values())
        except MisfitError as error:
            raise self._refused(error) from None
        self._map().update(entries)
        self._stored = self._captured = None

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        if self._map().pop(key, self) is not self:
            self._stored = self._captured = None

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}
        self._stored = self._captured = None

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys with their values."""
        return iter(self._map().items())

    def immutable_entries(self) -> Mapping[Any, Any]:
        """A view of the map that can't change it."""
        return MappingProxyType(self._map())

    def captured(self) -> Callable[[], Columns]:
        """What a snapshot holds: the columns of the entries as they are now.

        If they can't change they are made of them when somebody asks, which is not while data is
        processed; else at once.
        """
        is_constant = self._key_serializer.is_native and self._value_serializer.is_native
        if self._stored is None and is_constant:
            if self._captured is None:
                self._captured = _Later(dict(self._map()), self._encoded)
            return self._captured
        columns = self._columns()
        return lambda: columns

    def _columns(self) -> Columns:
        if self._stored is None:
            entries = self._map()
            self._stored = self._encoded(list(entries.keys()), list(entries.values()))
        return self._stored

    def _map(self) -> dict[Any, Any]:
        if self._entries is None:
            keys, values = self._columns()
            self._entries = dict(
                zip(
                    self._key_serializer.decode(
                        pa.chunked_array(keys, self._key_serializer.storage_type)
                    ),
                    self._value_serializer.decode(
                        pa.chunked_array(values, self._value_serializer.storage_type)
                    ),
                    strict=True,
                )
            )
        return self._entries

    def _check(self, key: Any, value: Any) -> None:
        try:
            hash(key)
        except TypeError:
            raise self._refused(MisfitError("a key is not hashable")) from None
        try:
            self._key_serializer.encode_one(key)
            self._value_serializer.encode_one(value)
        except MisfitError as error:
            raise self._refused(error) from None

    def _encoded(self, keys: list[Any], values: list[Any]) -> Columns:
        try:
            return self._key_serializer.encode(keys), self._value_serializer.encode(values)
        except MisfitError as error:
            raise self._refused(error) from None

    def _refused(self, error: MisfitError) -> InvalidRequestError:
        types = f"{self._key_serializer.name} to {self._value_serializer.name}"
        message = f"entries don't fit broadcast state {self._name!r} of type {types}: {error}"
        return InvalidRequestError(message)


class _Later:
    """The columns of some entries, made once, by whoever asks first."""

    def __init__(
        self, entries: dict[Any, Any], encoded: Callable[[list[Any], list[Any]], Columns]
    ) -> None:
        self._entries = entries
        self._encoded = encoded
        self._lock = threading.Lock()
        self._columns: Columns | None = None

    def __call__(self) -> Columns:
        with self._lock:
            if self._columns is None:
                entries, self._entries = self._entries, {}
                self._columns = self._encoded(list(entries.keys()), list(entries.values()))
            return self._columns
