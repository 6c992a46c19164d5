"""A value of each key: for many keys at once, and for the current key."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import Elements
from holdfast.backends.keyed.columns import concatenate_arrays, take_arrow
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import UNREAD, CurrentKeyView, KeyCursor, ValuePage
from holdfast.backends.keyed.states.state_rows import StateColumns, ValueRows


class ValueColumns(StateColumns):
    """A value state of many keys at once.

    Args:
        rows: The rows of the state.
        default: The value of keys without one; None for null.
    """

    def __init__(self, rows: ValueRows, default: Any = None) -> None:
        super().__init__(rows)
        self.default = default

    def get(self, keys: Keys) -> pa.Array:
        """Return the value of each key; the default, or null, for keys without one."""
        values = super().get(keys)
        if self.default is None or not values.null_count:
            return values
        default = self.rows.form.encode([self.default])
        filled = concatenate_arrays([values, default])
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        return take_arrow(filled, np.where(is_there, np.arange(len(values)), len(values)))

    def put(self, keys: Keys, values: Elements) -> None:
        """Set the value of each key; null removes it."""
        self.rows.check(keys)
        array = self.rows.form.encode_or_null(values)
        self.rows.check_length(len(array), len(keys), "keys")
        self.rows.flush()
        self.rows.put_or_delete(keys, array)


class ValueState(CurrentKeyView[ValuePage, ValueColumns]):
    """A value of the current key, in the current namespace if the state has namespaces.

    Values of all keys of the batch are read in one call, and written back in one.

    Source:
        Flink, ValueState.
    """

    def __init__(self, columns: ValueColumns, cursor: KeyCursor) -> None:
        super().__init__(columns, cursor, partial(ValuePage, columns.rows))
        self._form = columns.rows.form
        self._native, self._own = self._form.native, self._form.own
        self._quick_copy = self._form.quick_copy
        self._is_read_by_page = columns.rows.is_refreshed_by_reading or (
            self._form.copied is not self._form.quick_copy
        )

    def value(self) -> Any:
        """Return the value of the current key; without a value, a copy of the default or None."""
        try:
            value = self._values[self._cursor.index]  # type: ignore[index]  # None raises TypeError
        except (IndexError, TypeError):  # no page, or no key
            value = UNREAD
        if value is UNREAD or self._is_read_by_page:
            page, index = self._current()
            value = page.hand_out(index)
        elif self._quick_copy is not None and value is not None:
            value = self._quick_copy(value)
        if value is None and self._columns.default is not None:
            return self._default()
        return value

    def update(self, value: Any) -> None:
        """Set the value of the current key; None removes it.

        The value is converted to the state's type, so later changes of the object don't change the state. An
        integer of more than 64 bits, or text that is not valid Unicode, is refused when the batch is written back.
        Raises `InvalidRequestError` for a value of another type.
        """
        if type(value) is not self._native and value is not None:
            value = self._own(value)
        try:
            index = self._cursor.index
            self._values[index] = value  # type: ignore[index]  # None raises TypeError
            self._changed[index] = 1  # type: ignore[index]  # None raises TypeError
        except (IndexError, TypeError):  # no page, or no key
            page, at = self._current()
            page.write(at, value)

    def clear(self) -> None:
        """Remove the value of the current key."""
        self.update(None)

    @cached_property
    def _default(self) -> Callable[[], Any]:
        """The function that returns the default as it would be read from the state: a copy if it is mutable.

        It is made when a value is missing first: a state is opened for each batch, and few need it.
        """
        (default,) = self._form.decode(self._form.encode([self._columns.default]))
        copied = self._form.copied
        return (lambda: default) if copied is None else partial(copied, default)

    def _select(self, page: ValuePage | None) -> None:
        super()._select(page)
        # `value` and `update` are called for each key: these save them an attribute look-up.
        self._values: list[Any] = [] if page is None else page.values
        self._changed = bytearray() if page is None else page.changed
