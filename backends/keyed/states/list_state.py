"""A list of each key: for many keys at once, and for the current key."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import Elements, is_list, offsets_of
from holdfast.backends.keyed.columns import take_arrow
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import KeyCursor, MergeableView, ReadAhead
from holdfast.backends.keyed.states.state_rows import ListForm, StateColumns, ValueRows, plain_lists
from holdfast.backends.keyed.table import Operation
from holdfast.errors import InvalidRequestError


class ListColumns(StateColumns):
    """A list state of many keys at once."""

    def __init__(self, rows: ValueRows, form: ListForm, now_ms: Callable[[], int]) -> None:
        super().__init__(rows)
        self.form = form
        self._now_ms = now_ms

    def get(self, keys: Keys) -> pa.ListArray:
        """Return the list of each key; null for keys without elements. Restarts times to live if reads do so."""
        self.rows.begin(keys)
        shown, living = self.peek(keys)
        present = living.is_valid().to_numpy(zero_copy_only=False)
        if self.rows.is_refreshed_by_reading and present.any():
            refreshed = self.form.lists_of(offsets_of(living), living.flatten(), self._now_ms())
            self.rows.put(keys, refreshed, present)
        return shown

    def append(self, keys: Keys, elements: Elements) -> None:
        """Append an element for each row of the batch to the list of its key, in the order of rows."""
        self.rows.check(keys)
        array = self.form.encode(elements)
        self.rows.check_length(len(array), len(keys.rows.order), "rows")
        self.rows.flush()
        if len(keys):
            offsets = np.append(keys.rows.starts, len(array))
            ordered = take_arrow(array, keys.rows.order)
            lists = self.form.lists_of(offsets, ordered, self._now_ms())
            self.rows.write(keys, lists, Operation.APPEND)

    def put(self, keys: Keys, lists: pa.ListArray | Sequence[Elements | None]) -> None:
        """Set the list of each key; an empty list, or null, removes it."""
        self.rows.check(keys)
        offsets, elements = self.encode_lists(lists)
        self.rows.check_length(len(offsets) - 1, len(keys), "keys")
        self.rows.flush()
        self.store(keys, offsets, elements, np.full(len(keys), Operation.PUT, np.uint8))

    def peek(self, keys: Keys) -> tuple[pa.ListArray, pa.ListArray]:
        """Return the lists to show, and the lists of elements that have not expired; restarts no time to live."""
        table, shows_expired = self.rows.table, self.rows.shows_expired
        _, (lists,) = table.get(keys.identities, include_expired=shows_expired)
        if not self.form.has_times:
            return lists, lists
        ttl_ms, element_type = table.spec.ttl_ms, self.form.element_type
        assert ttl_ms is not None  # elements have times because of it
        living = plain_lists(lists, element_type, living_after_ms=self._now_ms() - ttl_ms)
        if not shows_expired:
            return living, living
        return plain_lists(lists, element_type, living_after_ms=None), living

    def store(
        self,
        keys: Keys,
        offsets: npt.NDArray[np.int64],
        elements: pa.Array,
        operations: npt.NDArray[np.uint8],
    ) -> None:
        """Put or append a list for each key; an empty list that is put removes the key's list."""
        empty = offsets[1:] == offsets[:-1]
        lists = self.form.lists_of(offsets, elements, self._now_ms())
        put = operations == Operation.PUT
        operations = np.where(put & empty, np.uint8(Operation.DELETE), operations)
        if (empty & ~put).any():  # appended lists without elements
            chosen = np.flatnonzero(put | ~empty)
            keys, lists = keys.take(chosen), take_arrow(lists, chosen)
            operations = operations[chosen]
        self.rows.write(keys, lists, operations)

    def encode_lists(
        self, lists: pa.Array | Sequence[Elements | None]
    ) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """Return the offsets of lists among all elements, and the elements. Raises `InvalidRequestError`."""
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        if isinstance(lists, pa.Array):
            if not is_list(lists.type):
                message = f"state {self.rows.name!r} takes lists, got an array of {lists.type}"
                raise InvalidRequestError(message)
            return offsets_of(lists), self.form.encode(lists.flatten())
        name = self.rows.name
        sized = [() if each is None else elements_of(each, state=name) for each in lists]
        flat: list[Any] = [element for elements in sized for element in elements]
        offsets = np.concatenate([[0], np.cumsum(list(map(len, sized)), dtype=np.int64)])
        return offsets, self.form.encode(flat)


def elements_of(values: Any, *, state: str) -> Any:
    """Return the elements of a list, with a length. Raises `InvalidRequestError` for an object that is not a list."""
    if isinstance(values, list):
        return values
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        message = f"state {state!r} takes lists of elements, got {type(values).__name__}"
        raise InvalidRequestError(message)
    return values if hasattr(values, "__len__") else list(values)


class KeyedListState(MergeableView["ListPage", ListColumns]):
    """A list of the current key, in the current namespace if the state has namespaces.

    A list that is only added to is not read. Elements are converted to the state's type; `InvalidRequestError` is raised
    for None, or an element of another type.

    Source:
        Flink, ListState.
    """

    def __init__(self, columns: ListColumns, cursor: KeyCursor) -> None:
        super().__init__(columns, cursor, partial(ListPage, columns, cursor))
        self._form, self._native = columns.form, columns.form.native

    def get(self) -> list[Any]:
        """Return the elements of the current key, a new list; empty without elements."""
        page, index = self._current()
        elements, copied = page.read(index), self._form.copied
        return list(elements) if copied is None else list(map(copied, elements))

    def is_empty(self) -> bool:
        """Check that there are no elements."""
        page, index = self._current()
        return not page.read(index)

    def add(self, value: Any) -> None:
        """Append an element."""
        page, index = self._current()
        if type(value) is not self._native:
            value = self._convert(value)
        page.merge(index, [value])

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements, or none of them if one is refused."""
        page, index = self._current()
        page.merge(index, self._convert_all(values))

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements, or none of them if one is refused; an empty list clears the state."""
        page, index = self._current()
        page.replace(index, self._convert_all(values))

    def clear(self) -> None:
        """Remove the list."""
        page, index = self._current()
        page.replace(index, [])

    def _convert_all(self, values: Iterable[Any] | None) -> list[Any]:
        if values is None:
            message = f"list state {self.name!r} takes lists of elements, got None; use `clear`"
            raise InvalidRequestError(message)
        native, convert = self._native, self._convert
        elements = elements_of(values, state=self.name)
        return [value if type(value) is native else convert(value) for value in elements]

    def _convert(self, value: Any) -> Any:
        if value is None:
            raise InvalidRequestError(f"elements of list state {self.name!r} must not be None")
        return self._form.own(value)


class ListPage:
    """The lists of the keys of a batch."""

    def __init__(self, columns: ListColumns, cursor: KeyCursor, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self._read = ReadAhead(cursor, keys)
        self._stored: dict[int, list[Any]] = {}  # those that were read last
        self._living: dict[int, list[Any]] = {}  # if reads restart times to live
        self._replaced: dict[int, list[Any]] = {}
        self._added: dict[int, list[Any]] = {}

    def read(self, index: int) -> list[Any]:
        """Return the elements of a key. The page owns the list."""
        replaced = self._replaced.get(index)
        if replaced is not None:
            return replaced
        if index not in self._stored:
            self._load()
        stored = self._stored[index]
        added = self._added.get(index, [])
        if self._columns.rows.is_refreshed_by_reading:
            self.replace(index, self._living[index] + added)
        return stored + added if added else stored

    def merge(self, index: int, values: list[Any]) -> None:
        """Append elements to the list of a key."""
        replaced = self._replaced.get(index)
        if replaced is None:
            self._added.setdefault(index, []).extend(values)
        else:
            replaced.extend(values)

    def take(self, index: int) -> list[Any]:
        """Remove the elements of a key, and return them."""
        elements = self.read(index)
        self.replace(index, [])
        return elements

    def replace(self, index: int, values: list[Any]) -> None:
        """Set the list of a key."""
        self._replaced[index] = values
        self._added.pop(index, None)

    def store(self) -> None:
        lists = self._replaced | self._added
        if not lists:
            return
        changed = sorted(lists)
        replaced = np.fromiter((index in self._replaced for index in changed), np.bool_)
        operations = np.where(replaced, np.uint8(Operation.PUT), np.uint8(Operation.APPEND))
        offsets, elements = self._columns.encode_lists([lists[index] for index in changed])
        self._columns.store(self._keys.take(changed), offsets, elements, operations)

    def _load(self) -> None:
        """Read the lists of the current key and of the next ones."""
        keys, indices = self._read.next_keys()
        shown, living = self._columns.peek(keys)
        self._stored = dict(zip(indices, self._objects(shown), strict=True))
        if self._columns.rows.is_refreshed_by_reading:
            self._living = dict(zip(indices, self._objects(living), strict=True))
        self._read.note(len(indices), sum(map(len, self._stored.values())))

    def _objects(self, lists: pa.ListArray) -> list[list[Any]]:
        offsets = offsets_of(lists).tolist()
        elements = self._columns.form.decode(lists.flatten())
        return [elements[first:end] for first, end in pairwise(offsets)]
