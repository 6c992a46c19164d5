"""The current key of a batch, and the values of its keys as Python objects.

    KeyCursor        the keys of a batch and the current one, shared by all states of a subtask
    CurrentKeyView   the base of states of the current key; its values are in pages over a state of many keys
    Pages            the pages of a state, by namespace
    ValuePage        the page of states with a value for each key; lists, maps and timers have their own
    ReadAhead        the lists or maps that a page has read: of all keys, or of the next ones if their order is known

A page reads many keys at once when a value is first needed, and writes its changes in one call when it is flushed: at
the end of the batch, and before the state of many keys is used.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import IncompatibleValueError, dictionary_key, scalar_of
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import CheckedRows, ValueRows
from holdfast.errors import InvalidRequestError

Namespace = tuple[Any, ...]

UNREAD: Any = object()
"""The placeholder of a value that was not read yet."""

_NATIVE = {pa.int64(): int, pa.string(): str}
"""Types whose Python objects are equal exactly where Arrow's values are."""

_READ_ELEMENTS = 1 << 16
"""The number of elements that are read at once, if keys have fewer each."""
_READ_GROWTH = 8


class KeyCursor:
    """The keys of a batch and the current one.

    Attributes:
        keys: The keys of the batch; None between batches.
        count: The number of these keys; 0 between batches.
        index: The index of the current key in `keys`; None without a current key.
        namespace: The current namespace; None without one.
    """

    __slots__ = ("_order", "_position", "count", "index", "keys", "namespace")

    def __init__(self) -> None:
        self.keys: Keys | None = None
        self.count = 0
        self.index: int | None = None
        self.namespace: Namespace | None = None
        self._order: Positions | None = None
        self._position = 0

    def begin(self, keys: Keys, order: Positions | None = None) -> None:
        """Begin a batch; no key is current yet.

        Args:
            keys: The keys of the batch.
            order: The indices of keys in the order in which `seek` will choose them; None if that is unknown.
        """
        self.keys, self.count = keys, len(keys)
        self._order, self._position = order, 0

    def end(self) -> None:
        """End the batch: no key and no namespace is current."""
        self.keys = self.index = self.namespace = self._order = None
        self.count = 0

    def seek(self, position: int, index: int) -> None:
        """Make the key at a position of the order current.

        Args:
            position: The position, ascending from call to call.
            index: The key there.
        """
        self._position, self.index = position, index

    def current(self) -> tuple[Keys, int]:
        """Return the keys of the batch and the index of the current one. Raises `InvalidRequestError` without one."""
        if self.keys is None or self.index is None:
            raise InvalidRequestError(
                "no key is current: state of the current key can be used after `begin_batch` and `set_current_key`, "
                "until the batch ends"
            )
        return self.keys, self.index

    def upcoming(self, positions: int) -> Positions | None:
        """Return the current key and those of the next positions, ascending; None for all keys, if their order is unknown."""
        if self._order is None or self.index is None:
            return None
        following = self._order[self._position : self._position + positions]
        return np.unique(np.append(following, self.index))


class Page(Protocol):
    """The values of one state for the keys of a batch in one namespace, as Python objects."""

    def store(self) -> None:
        """Write back changes."""
        ...


class BatchView(Protocol):
    """A state of many keys at once."""

    @property
    def rows(self) -> CheckedRows:
        """The rows of the state."""
        ...


_T = TypeVar("_T")
_Page = TypeVar("_Page", bound=Page)
_Columns = TypeVar("_Columns", bound=BatchView)


class Pages(Generic[_Page]):
    """The pages of a state, by namespace; each is made when it is first used.

    Args:
        rows: The rows of the state.
        cursor: The current key.
        make: Makes a page for keys.
    """

    def __init__(self, rows: CheckedRows, cursor: KeyCursor, make: Callable[[Keys], _Page]) -> None:
        self._name = rows.name
        self._namespace = rows.table.spec.namespace
        self._natives = tuple(_NATIVE.get(field.type) for field in self._namespace)
        self._hash_of = rows.hash_of
        self._cursor = cursor
        self._make: Callable[[Keys], _Page] | None = make
        self._closed_reason = ""
        self._pages: dict[Namespace, _Page] = {}

    def current(self) -> _Page:
        """Return the page of the current namespace. Raises `InvalidRequestError` without a current key or namespace."""
        self._cursor.current()
        if not len(self._namespace):
            return self.of(())
        if self._cursor.namespace is None:
            message = f"state {self._name!r} has namespaces, and none is current: call `set_current_namespace`"
            raise InvalidRequestError(message)
        return self.of(self._cursor.namespace)

    def of(self, namespace: Namespace) -> _Page:
        """Return the page of a namespace. Raises `InvalidRequestError` if the namespace is not valid for the state."""
        name: Namespace = namespace
        if tuple(map(type, namespace)) != self._natives:
            name = self._dictionary_key(namespace)
        try:
            page = self._pages.get(name)
        except TypeError:
            raise InvalidRequestError(
                f"state {self._name!r}: namespace {namespace} has a value that can't be hashed; use the state of many "
                "keys at once, with `in_namespaces`"
            ) from None
        if page is None:
            if self._make is None:
                self.refuse()
            keys = self._cursor.keys
            assert keys is not None  # pages are used within a batch
            scalars = namespace_scalars(self._name, namespace, self._namespace)
            if scalars:
                keys = keys.in_namespace(scalars, self._hash_of)
            page = self._pages[name] = self._make(keys)
        return page

    def _dictionary_key(self, namespace: Namespace) -> Namespace:
        """Return the namespace as a dictionary's key, equal to another one exactly where Arrow's values are equal."""
        parts = []
        for scalar in namespace_scalars(self._name, namespace, self._namespace):
            try:
                part = scalar.as_py()
            except (OverflowError, ValueError) as error:
                raise InvalidRequestError(
                    f"state {self._name!r}: Python has no object for a namespace of type {scalar.type}; use the state "
                    "of many keys at once, with `in_namespaces`"
                ) from error
            as_key = dictionary_key(scalar.type)
            parts.append(part if as_key is None or part is None else as_key(part))
        return tuple(parts)

    def store(self) -> None:
        """Write back changes, and forget all pages."""
        pages, self._pages = self._pages, {}
        for page in pages.values():
            page.store()

    def discard(self) -> None:
        """Forget all pages and their changes."""
        self._pages = {}

    def close(self, reason: str) -> None:
        """Forget all pages, and refuse further use for this reason."""
        self.discard()
        self._make = None
        self._closed_reason = reason

    def refuse(self) -> NoReturn:
        """Raise the `InvalidRequestError` of a closed state."""
        raise InvalidRequestError(self._closed_reason)


class CurrentKeyView(Generic[_Page, _Columns]):
    """A state of the current key, in the current namespace if it has namespaces.

    Args:
        columns: The state of many keys at once.
        cursor: The current key.
        page: Makes a page for the keys of a batch.
    """

    def __init__(self, columns: _Columns, cursor: KeyCursor, page: Callable[[Keys], _Page]) -> None:
        self._columns = columns
        self._cursor = cursor
        self._pages = Pages(columns.rows, cursor, page)
        self._select(None)
        columns.rows.flush = self.flush

    @property
    def name(self) -> str:
        """The state's name."""
        return self._columns.rows.name

    @property
    def columns(self) -> _Columns:
        """The state of many keys at once."""
        return self._columns

    def leave_namespace(self) -> None:
        """Forget which namespace is current."""
        self._select(None)

    def flush(self) -> None:
        """Write back changes, and forget values that were read.

        Raises:
            InvalidRequestError: A value that was given to the state is of another type.
        """
        self._select(None)
        self._pages.store()

    def discard(self) -> None:
        """Forget changes, and values that were read."""
        self._select(None)
        self._pages.discard()

    def close(self, reason: str) -> None:
        """Forget changes, and refuse further use for this reason."""
        self._select(None)
        self._pages.close(reason)
        self._columns.rows.flush = self._pages.refuse

    def _current(self) -> tuple[_Page, int]:
        """Return the current page and the index of the current key. Raises `InvalidRequestError` without one."""
        _, index = self._cursor.current()
        page = self._page
        if page is None:
            page = self._pages.current()
            self._select(page)
        return page, index

    def _select(self, page: _Page | None) -> None:
        """Make a page the current one; None if it is unknown."""
        self._page: _Page | None = page


class ValuePage:
    """A value of each key, or None.

    Attributes:
        rows: The rows of the state.
        keys: The keys of the batch, in the page's namespace.
        values: The value of each key; None without one, and `UNREAD` before it was read. Always the same list.
        changed: 1 for the keys whose value must be written back, else 0.
        refreshed: 1 for the keys whose time to live restarts when they are read; None if it never does.
    """

    __slots__ = ("_column", "changed", "keys", "refreshed", "rows", "values")

    def __init__(self, rows: ValueRows, keys: Keys) -> None:
        self.rows = rows
        self.keys = keys
        self.values: list[Any] = [UNREAD] * len(keys)
        self.changed = bytearray(len(keys))
        self.refreshed: bytes | None = None
        self._column: pa.Array | None = None

    def hand_out(self, index: int) -> Any:
        """Return the value of a key, or None. The caller owns it: it is a copy, or the page forgets it."""
        value = self.read(index)
        copied, quick_copy = self.rows.form.copied, self.rows.form.quick_copy
        if value is None or copied is None:
            return value
        if self.changed[index] or quick_copy is not None:
            return copied(value)
        self.values[index] = UNREAD
        return value

    def read(self, index: int) -> Any:
        """Return the value of a key, or None. The page owns it."""
        value = self.values[index]
        if value is UNREAD:
            if self._column is None:
                self.load()
                value = self.values[index]
            else:  # it was handed out
                (value,) = self.rows.form.decode(self._column.slice(index, 1))
                self.values[index] = value
        if self.refreshed is not None and value is not None and self.refreshed[index]:
            self.changed[index] = 1
        return value

    def write(self, index: int, value: Any) -> None:
        """Set the value of a key; None removes it."""
        self.values[index] = value
        self.changed[index] = 1

    def load(self) -> None:
        """Read the values of all keys that were not written before."""
        present, column, living = self.rows.peek(self.keys)
        if self.rows.is_refreshed_by_reading:
            self.refreshed = living.astype(np.uint8).tobytes()
        stored = self.rows.form.objects(column, present)
        for index in np.frombuffer(self.changed, np.uint8).nonzero()[0].tolist():
            stored[index] = self.values[index]
        self.values[:] = stored
        self._column = column

    def store(self) -> None:
        changed = np.frombuffer(self.changed, np.uint8).nonzero()[0]
        if not len(changed):
            return
        keys, values = self.keys, self.values
        if len(changed) < len(values):
            keys, values = keys.take(changed), [values[index] for index in changed.tolist()]
        self.rows.put_or_delete(keys, self.encode(values))

    def encode(self, values: list[Any]) -> pa.Array:
        """Return the column of values; null for None. Raises `InvalidRequestError`."""
        return self.rows.form.encode_or_null(values)


class ReadAhead(Generic[_T]):
    """The lists or maps that a page has read: of all keys of the batch, or of some keys ahead if their order is known.

    In a known order the first read is of one key. How many keys the next ones are of depends on their sizes.

    Args:
        cursor: The current key.
        keys: The keys of the batch, in the page's namespace.

    Attributes:
        by_key: The lists or maps that were read last, by the index of the key.
        elements_per_key: Their mean size; 0 before the first read.
    """

    def __init__(self, cursor: KeyCursor, keys: Keys) -> None:
        self.by_key: dict[int, _T] = {}
        self.elements_per_key = 0.0
        self._cursor = cursor
        self._keys = keys
        self._positions = 1

    def next_keys(self) -> tuple[Keys, list[int]]:
        """Return the keys to read next, and the index of each."""
        upcoming = self._cursor.upcoming(self._positions)
        if upcoming is None:
            return self._keys, list(range(len(self._keys)))
        return self._keys.take(upcoming), upcoming.tolist()

    def keep(self, read: dict[int, _T], elements: int) -> None:
        """Replace the lists or maps that were read before.

        Args:
            read: The lists or maps by the index of the key.
            elements: The number of their elements.
        """
        self.by_key = read
        self.elements_per_key = elements / max(1, len(read))
        fitting = int(_READ_ELEMENTS / max(self.elements_per_key, 1 / 16))
        self._positions = max(1, min(self._positions * _READ_GROWTH, fitting))


def namespace_scalars(name: str, namespace: Sequence[Any], schema: pa.Schema) -> list[pa.Scalar]:
    """Convert a namespace to Arrow scalars, and None to null. Raises `InvalidRequestError`."""
    if len(namespace) != len(schema):
        own = f"namespaces of {schema.names}" if len(schema) else "no namespaces"
        message = f"state {name!r} has {own}, got a namespace of {len(namespace)} values"
        raise InvalidRequestError(message)
    scalars = []
    for value, field in zip(namespace, schema, strict=True):
        try:
            scalar = pa.scalar(None, field.type) if value is None else scalar_of(value, field.type)
        except IncompatibleValueError as error:
            message = f"state {name!r}: namespace {field.name!r} of type {field.type}: {error}"
            raise InvalidRequestError(message) from None
        scalars.append(scalar)
    return scalars
