"""A value of the current key."""

import copy
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.object_page import UNREAD, ObjectPage
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.states.value_columns import ValueColumns

_UNCHANGING = frozenset(
    (bool, int, float, str, bytes, Decimal, dt.date, dt.datetime, dt.time, dt.timedelta)
)
"""Types of values that nobody can change, so that all readers may have the same."""


class ValueState(OfCurrentKey[ObjectPage, ValueColumns]):
    """A value of each key; its methods are about the current key, in the current namespace if it has namespaces.

    Values are looked up once for all keys of the batch, and written back once; objects that are given to the
    state belong to it from then on.

    Source:
        Flink, ValueState.
    """

    def __init__(self, columns: ValueColumns, context: KeyContext) -> None:
        super().__init__(columns, context, partial(ObjectPage, columns.rows))
        self._is_refreshed = columns.rows.is_refreshed_by_reading

    def value(self) -> Any:
        """The value of the current key; a copy of the default, or None, if there is none.

        Raises:
            InvalidRequestError: No key is current.
        """
        try:
            value = self._values[self._context.index]  # type: ignore[index]
        except (IndexError, TypeError):  # no page, or no key
            value = UNREAD
        if value is UNREAD or self._is_refreshed:
            page, index = self._current()
            value = page.read(index)
        if value is None and self._columns.default is not None:
            return self._default()
        return value

    def update(self, value: Any) -> None:
        """Set the value of the current key; None removes it.

        A value of another type is refused when the batch is written back.

        Raises:
            InvalidRequestError: No key is current.
        """
        try:
            index = self._context.index
            self._values[index] = value  # type: ignore[index]
            self._changed[index] = 1  # type: ignore[index]
        except (IndexError, TypeError):  # no page, or no key
            page, at = self._current()
            page.write(at, value)

    def clear(self) -> None:
        """Remove the value of the current key. Raises `InvalidRequestError` if no key is current."""
        self.update(None)

    @cached_property
    def _default(self) -> Callable[[], Any]:
        """Gives the default as it would be if it were stored, anew where who gets it could change it.

        It is made when a value is missing: a state is opened for each batch, and few need it.
        """
        form = self._columns.rows.form
        (default,) = form.decoded(form.encoded([self._columns.default]))
        if type(default) in _UNCHANGING:
            return lambda: default
        return partial(copy.deepcopy, default)

    def _turn_to(self, page: ObjectPage | None) -> None:
        super()._turn_to(page)
        # What `value` and `update` need of the page, with one step less to it.
        self._values: list[Any] = [] if page is None else page.values
        self._changed = bytearray() if page is None else page.changed
