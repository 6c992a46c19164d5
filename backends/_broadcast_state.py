"""Broadcast state: a map that is the same in every subtask."""

from collections.abc import Iterator, Mapping
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
        self._stored = None

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Give each key its value.

        Raises:
            InvalidRequestError: One is None or of another type; nothing is changed then.
        """
        if not isinstance(entries, Mapping):
            raise self._refused(MisfitError(f"{type(entries).__name__} is no mapping"))
        entries = dict(entries.items())  # what is checked is what is put
        for key, value in entries.items():
            self._check(key, value)
        self._map().update(entries)
        self._stored = None

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        if self._map().pop(key, self) is not self:
            self._stored = None

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}
        self._stored = None

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys with their values."""
        return iter(self._map().items())

    def immutable_entries(self) -> Mapping[Any, Any]:
        """A view of the map that can't change it."""
        return MappingProxyType(self._map())

    def columns(self) -> Columns:
        """Keys and values as they are stored; what a snapshot shares."""
        if self._stored is None:
            entries = self._map()
            self._stored = self._encoded(list(entries.keys()), list(entries.values()))
        return self._stored

    def _map(self) -> dict[Any, Any]:
        if self._entries is None:
            keys, values = self.columns()
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
