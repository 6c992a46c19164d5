"""The base of all states of the current key."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext, Page, Pages
from holdfast.backends.keyed.states.state_rows import CheckedRows


class OfManyKeys(Protocol):
    """A state by arrays."""

    @property
    def rows(self) -> CheckedRows:
        """Where it lies."""
        ...


_Page = TypeVar("_Page", bound=Page)
_Columns = TypeVar("_Columns", bound=OfManyKeys)


class OfCurrentKey(Generic[_Page, _Columns]):
    """A state of the current key, in the current namespace if it has some, on top of the state by arrays.

    Args:
        columns: The state by arrays.
        context: The current key.
        page: Makes what the state has of the keys of a batch.
    """

    def __init__(
        self, columns: _Columns, context: KeyContext, page: Callable[[Keys], _Page]
    ) -> None:
        self._columns = columns
        self._context = context
        self._pages = Pages(columns.rows, context, page)
        self._turn_to(None)
        columns.rows.settle = self.settle

    @property
    def name(self) -> str:
        """The state's name."""
        return self._columns.rows.name

    @property
    def columns(self) -> _Columns:
        """The state by arrays: of many keys at once."""
        return self._columns

    def leave_namespace(self) -> None:
        """Another namespace is current from now on."""
        self._turn_to(None)

    def settle(self) -> None:
        """Write back what has changed, and forget what was looked up.

        Raises:
            InvalidRequestError: A value that was given to the state is of another type.
        """
        self._turn_to(None)
        self._pages.store()

    def close(self, why: str) -> None:
        """Forget what has changed: the state's table is gone, and who uses the state from now on is told why."""
        self._turn_to(None)
        self._pages.close(why)
        self._columns.rows.settle = self._pages.refuse

    def _current(self) -> tuple[_Page, int]:
        """The page of the current namespace, and the current key. Raises `InvalidRequestError` if none is."""
        _, index = self._context.current()
        page = self._page
        if page is None:
            page = self._pages.current()
            self._turn_to(page)
        return page, index

    def _turn_to(self, page: _Page | None) -> None:
        """The page of the current namespace is this one; None if it has to be asked for."""
        self._page: _Page | None = page
