"""A value of the current key."""

from typing import Any

from holdfast.backends.keyed.states.key_context import KeyContext, Pages
from holdfast.backends.keyed.states.object_page import UNREAD, ObjectPage
from holdfast.backends.keyed.states.value_columns import ValueColumns


class ValueState:
    """A value of each key: here of the current key, in the current namespace if the state has some.

    Values are looked up once for all keys of the batch, and written back once; objects that are given to the
    state belong to it from then on.

    Source:
        Flink, ValueState.
    """

    def __init__(self, columns: ValueColumns, context: KeyContext) -> None:
        self._columns = columns
        self._context = context
        rows = columns.rows
        self._default = columns.default
        self._pages: Pages[ObjectPage] = Pages(
            rows.name,
            context,
            rows.table.spec.namespace,
            rows.hash_of,
            lambda keys: ObjectPage(rows, keys),
        )
        self._page: ObjectPage | None = None
        self._is_refreshed = rows.is_refreshed_by_reading
        rows.settle = self.settle

    @property
    def name(self) -> str:
        """The state's name."""
        return self._columns.rows.name

    @property
    def columns(self) -> ValueColumns:
        """The state by arrays: of many keys at once."""
        return self._columns

    def value(self) -> Any:
        """The value of the current key; a copy of the default, or None, if there is none.

        Raises:
            InvalidRequestError: No key is current.
        """
        try:
            value = self._page.values[self._context.index]  # type: ignore[union-attr,index]
        except (AttributeError, TypeError):
            self._page = self._pages.current()
            value = UNREAD
        if value is UNREAD or self._is_refreshed:
            assert self._page is not None
            _, index = self._context.current()
            value = self._page.read(index)
        if value is None and self._default is not None:
            form = self._columns.rows.form
            (value,) = form.decoded(form.encoded([self._default]))
        return value

    def update(self, value: Any) -> None:
        """Set the value of the current key; None removes it.

        A value of another type is refused when the batch is written back.

        Raises:
            InvalidRequestError: No key is current.
        """
        try:
            page, index = self._page, self._context.index
            page.values[index] = value  # type: ignore[union-attr,index]
            page.changed[index] = 1  # type: ignore[union-attr,index]
        except (AttributeError, TypeError):
            self._page = self._pages.current()
            _, index = self._context.current()
            self._page.write(index, value)

    def clear(self) -> None:
        """Remove the value of the current key. Raises `InvalidRequestError` if no key is current."""
        self.update(None)

    def leave_namespace(self) -> None:
        """Another namespace is current from now on."""
        self._page = None

    def settle(self) -> None:
        """Write back what has changed, and forget what was looked up.

        Raises:
            InvalidRequestError: A value is of another type.
        """
        self._page = None
        self._pages.store()
