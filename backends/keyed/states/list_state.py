"""A list of the current key."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import offsets_of
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.list_columns import ListColumns, elements_of
from holdfast.backends.keyed.states.object_page import UNREAD
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.table import Operation
from holdfast.errors import InvalidRequestError


class KeyedListState(OfCurrentKey["ListPage", ListColumns]):
    """A list of each key; its methods are about the current key, in the current namespace if it has namespaces.

    Elements that are only added are written without reading the list.

    Source:
        Flink, ListState.
    """

    def __init__(self, columns: ListColumns, context: KeyContext) -> None:
        super().__init__(columns, context, partial(ListPage, columns))
        self._form = columns.rows.form

    def get(self) -> list[Any]:
        """The elements of the current key, a new list; empty if there are none.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        elements, copied = page.read(index), self._form.copied
        return list(elements) if copied is None else list(map(copied, elements))

    def add(self, value: Any) -> None:
        """Append an element; the state keeps what its type makes of it.

        Raises:
            InvalidRequestError: No key is current, or the element is None or of another type.
        """
        page, index = self._current()
        page.add(index, self._checked([value]))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements, or none of them if one is refused. Raises what `add` does, and for what is no list."""
        page, index = self._current()
        page.add(index, self._checked(values))

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements; to give none clears the list. Raises what `add_all` does, and changes nothing then."""
        page, index = self._current()
        page.replace(index, self._checked(values))

    def clear(self) -> None:
        """Remove the list. Raises `InvalidRequestError` if no key is current."""
        page, index = self._current()
        page.replace(index, [])

    def merge_namespaces(self, target: Sequence[Any], sources: Iterable[Sequence[Any]]) -> None:
        """Move the current key's elements of some namespaces behind those of another one.

        Args:
            target: The namespace that gets them: a value for each of its columns.
            sources: The namespaces that lose them, in the order in which their elements come.

        Raises:
            InvalidRequestError: No key is current, or the state has no such namespaces.
        """
        _, index = self._context.current()
        moved: list[Any] = []
        for source in sources:
            page = self._pages.of(tuple(source))
            moved += page.read(index)
            page.replace(index, [])
        self._pages.of(tuple(target)).add(index, moved)

    def _checked(self, values: Iterable[Any] | None) -> list[Any]:
        if values is None:
            message = f"None is no list of elements for list state {self.name!r}; use `clear`"
            raise InvalidRequestError(message)
        elements = list(elements_of(values, state=self.name))
        if any(value is None for value in elements):
            raise InvalidRequestError(f"None is no element of list state {self.name!r}")
        own, native = self._form.own, self._form.native
        return [value if type(value) is native else own(value) for value in elements]


class ListPage:
    """The lists of the keys of a batch."""

    __slots__ = ("_added", "_columns", "_keys", "_living", "_replaced", "_values")

    def __init__(self, columns: ListColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self._values: list[Any] = [UNREAD] * len(keys)
        self._added: dict[int, list[Any]] = {}
        self._replaced = bytearray(len(keys))
        self._living: list[list[Any]] | None = None

    def read(self, index: int) -> list[Any]:
        """The elements of a key. The list belongs to the page."""
        values: list[Any] = self._values[index]
        if values is UNREAD:
            self._load()
            values = self._values[index]
        if self._living is not None and not self._replaced[index]:
            self.replace(index, self._living[index] + self._added.get(index, []))
        return values

    def add(self, index: int, values: list[Any]) -> None:
        """Append elements to those of a key."""
        if self._values[index] is not UNREAD:
            self._values[index].extend(values)
        if not self._replaced[index]:
            self._added.setdefault(index, []).extend(values)

    def replace(self, index: int, values: list[Any]) -> None:
        """Set the elements of a key."""
        self._values[index] = values
        self._replaced[index] = 1
        self._added.pop(index, None)

    def store(self) -> None:
        replaced = np.frombuffer(self._replaced, np.uint8).nonzero()[0]
        added = np.array([index for index, values in self._added.items() if values], np.int64)
        changed = np.union1d(replaced, added)
        if not len(changed):
            return
        lists = [
            self._values[index] if self._replaced[index] else self._added[index]
            for index in changed.tolist()
        ]
        is_put = np.frombuffer(self._replaced, np.uint8)[changed].astype(np.bool_)
        operations = np.where(is_put, np.uint8(Operation.PUT), np.uint8(Operation.APPEND))
        offsets, elements = self._columns.encoded_lists(lists)
        self._columns.store(self._keys.take(changed), offsets, elements, operations)

    def _load(self) -> None:
        shown, living = self._columns.peek(self._keys)
        for index, elements in enumerate(self._objects(shown)):
            if self._values[index] is UNREAD:
                self._values[index] = elements + self._added.get(index, [])
        if self._columns.rows.is_refreshed_by_reading:
            self._living = self._objects(living)

    def _objects(self, lists: pa.ListArray) -> list[list[Any]]:
        offsets = offsets_of(lists).tolist()
        elements = self._columns.decoded(lists.flatten())
        return [elements[first:end] for first, end in pairwise(offsets)]
