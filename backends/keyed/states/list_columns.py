"""A list of each key, for many keys at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import Elements, is_list, offsets_of
from holdfast.backends.keyed.columns import take_arrow
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.list_form import (
    ListForm,
    plain_lists,
)
from holdfast.backends.keyed.states.state_columns import StateColumns
from holdfast.backends.keyed.states.state_rows import ValueRows, check_length
from holdfast.backends.keyed.table import Operation
from holdfast.errors import InvalidRequestError


class ListColumns(StateColumns):
    """The lists of a state, by arrays.

    Args:
        rows: The rows of the state, one for each key that has elements.
        form: How lists lie in them.
        now_ms: The time of the batch.
    """

    def __init__(self, rows: ValueRows, form: ListForm, now_ms: Callable[[], int]) -> None:
        super().__init__(rows)
        self._form = form
        self._now_ms = now_ms

    def append(self, keys: Keys, elements: Elements) -> None:
        """Append an element for each row of the batch to the list of its key, in the order of rows.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or an element is null or of
                another type.
        """
        self.rows.check(keys)
        array = self._encoded(elements)
        check_length(self.rows.name, len(array), len(keys.rows.order), "rows")
        self.rows.settle()
        offsets = np.append(keys.rows.starts, len(array))
        self._append(keys, offsets, take_arrow(array, keys.rows.order))

    def put(self, keys: Keys, lists: pa.ListArray | Sequence[Elements | None]) -> None:
        """Set the list of each key; an empty list, or null, removes it.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or an element is null or of
                another type.
        """
        self.rows.check(keys)
        offsets, elements = self.encoded_lists(lists)
        check_length(self.rows.name, len(offsets) - 1, len(keys), "keys")
        self.rows.settle()
        self.store(keys, offsets, elements, np.full(len(keys), Operation.PUT, np.uint8))

    def stored(self, keys: Keys) -> pa.ListArray:
        """The list of each key; null where there is none. Where reading makes times start anew, it does."""
        shown, living = self.peek(keys)
        present = living.is_valid().to_numpy(zero_copy_only=False)
        if self.rows.is_refreshed_by_reading and present.any():
            anew = self._form.lists_of(offsets_of(living), living.flatten(), self._now_ms())
            self.rows.put(keys, anew, present)
        return shown

    def peek(self, keys: Keys) -> tuple[pa.ListArray, pa.ListArray]:
        """The lists to show, and those of elements whose time is not over yet; no time starts anew."""
        table, shows_expired = self.rows.table, self.rows.shows_expired
        _, (lists,) = table.get(keys.identities, include_expired=shows_expired)
        if not self._form.has_times:
            return lists, lists
        ttl_ms, element_type = table.spec.ttl_ms, self._form.element_type
        assert ttl_ms is not None  # elements have times because of it
        living = plain_lists(lists, element_type, living_after_ms=self._now_ms() - ttl_ms)
        if not shows_expired:
            return living, living
        return plain_lists(lists, element_type, living_after_ms=None), living

    def decoded(self, elements: pa.Array) -> list[Any]:
        """Elements as Python objects."""
        return self._form.decoded(elements)

    def store(
        self,
        keys: Keys,
        offsets: npt.NDArray[np.int64],
        elements: pa.Array,
        operations: npt.NDArray[np.uint8],
    ) -> None:
        """Put or append the lists of elements that follow each other; to put an empty list is to remove it."""
        empty = offsets[1:] == offsets[:-1]
        lists = self._form.lists_of(offsets, elements, self._now_ms())
        put = operations == Operation.PUT
        operations = np.where(put & empty, np.uint8(Operation.DELETE), operations)
        if (empty & ~put).any():  # there is nothing to append
            chosen = np.flatnonzero(put | ~empty)
            keys, lists = keys.take(chosen), take_arrow(lists, chosen)
            operations = operations[chosen]
        self.rows.write(keys, lists, operations)

    def encoded_lists(
        self, lists: pa.Array | Sequence[Elements | None]
    ) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """Where each list begins among all elements, and the elements. Raises `InvalidRequestError`."""
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        if isinstance(lists, pa.Array):
            if not is_list(lists.type):
                message = (
                    f"state {self.rows.name!r} takes lists, and an array of {lists.type} was given"
                )
                raise InvalidRequestError(message)
            return offsets_of(lists), self._encoded(lists.flatten())
        name = self.rows.name
        sized = [() if each is None else elements_of(each, state=name) for each in lists]
        flat: list[Any] = [element for elements in sized for element in elements]
        lengths = list(map(len, sized))
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), self._encoded(flat)

    def _append(self, keys: Keys, offsets: npt.NDArray[np.int64], elements: pa.Array) -> None:
        if len(keys):
            self.rows.append(keys, self._form.lists_of(offsets, elements, self._now_ms()))

    def _encoded(self, elements: Elements) -> pa.Array:
        return self._form.encoded(elements)


def elements_of(values: Any, *, state: str) -> Any:
    """The elements of a list that was given, as many as `len` says. Raises `InvalidRequestError` for what is no list."""
    if isinstance(values, list):
        return values
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        message = f"state {state!r} takes lists of elements, and {type(values).__name__} was given for one"
        raise InvalidRequestError(message)
    return values if hasattr(values, "__len__") else list(values)
