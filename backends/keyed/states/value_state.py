"""A value of the current key."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.object_page import UNREAD, ObjectPage
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.states.value_columns import ValueColumns


class ValueState(OfCurrentKey[ObjectPage, ValueColumns]):
    """A value of each key; its methods are about the current key, in the current namespace if it has namespaces.

    Values are looked up once for all keys of the batch, and written back once.

    Source:
        Flink, ValueState.
    """

    def __init__(self, columns: ValueColumns, context: KeyContext) -> None:
        super().__init__(columns, context, partial(ObjectPage, columns.rows))
        self._form = columns.rows.form
        self._native, self._own = self._form.native, self._form.own
        self._quick_copy = self._form.quick_copy
        self._is_read_by_page = columns.rows.is_refreshed_by_reading or (
            self._form.copied is not self._form.quick_copy
        )

    def value(self) -> Any:
        """The value of the current key; a copy of the default, or None, if there is none.

        Raises:
            InvalidRequestError: No key is current.
        """
        try:
            value = self._values[self._context.index]  # type: ignore[index]
        except (IndexError, TypeError):  # no page, or no key
            value = UNREAD
        if value is UNREAD or self._is_read_by_page:
            page, index = self._current()
            value = page.give(index)
        elif self._quick_copy is not None and value is not None:
            value = self._quick_copy(value)
        if value is None and self._columns.default is not None:
            return self._default()
        return value

    def update(self, value: Any) -> None:
        """Set the value of the current key; None removes it.

        The state keeps what its type makes of the value, so changing the object later doesn't change the state. An
        integer that is too large, or text that is not valid Unicode, is refused when the batch is written back.

        Raises:
            InvalidRequestError: No key is current, or the value is of another type.
        """
        if type(value) is not self._native and value is not None:
            value = self._own(value)
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
        (default,) = self._form.decoded(self._form.encoded([self._columns.default]))
        copied = self._form.copied
        return (lambda: default) if copied is None else partial(copied, default)

    def _turn_to(self, page: ObjectPage | None) -> None:
        super()._turn_to(page)
        # What `value` and `update` need of the page, with one step less to it.
        self._values: list[Any] = [] if page is None else page.values
        self._changed = bytearray() if page is None else page.changed
