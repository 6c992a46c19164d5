"""The current key of a batch, and the values of its keys as Python objects.

    KeyCursor        the keys of a batch and the current one, shared by all states of a subtask
    CurrentKeyView   the base of states of the current key; its values are in pages over a state of many keys
    MergeableView    the base of those whose namespaces can be merged
    ValuePage        the page of states with a value for each key; lists, maps and timers have their own
    ReadAhead        chooses the keys whose lists or maps are read: all, or the next ones if their order is known

A page reads many keys at once when a value is first needed, and writes its changes in one call when it is flushed: at
the end of the batch, and before the state of many keys is used.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class KeyCursor:
    """The keys of a batch and the current one.

    Attributes:
        keys: The keys of the batch; None between batches.
        count: The number of these keys; 0 between batches.
        index: The index of the current key in `keys`; None without a current key.
        namespace: The current namespace; None without one.
    """

    keys: Keys | None = None
    count: int = 0
    index: int | None = None
    namespace: Namespace | None = None
    _order: Positions | None = None
    _position: int = 0

    def begin(self, keys: Keys, order: Positions | None = None) -> None:
        """Begin a batch of keys; none is current yet. If it is known, `order` has their indices in the order of `seek`."""
        self.keys, self.count = keys, len(keys)
        self._order, self._position = order, 0

    def end(self) -> None:
        """End the batch: no key and no namespace is current."""
        self.keys = self.index = self.namespace = self._order = None
        self.count = 0

    def seek(self, position: int, index: int) -> None:
        """Make a key current: that at an index, whose position in the order is not below the last one."""
        self._position, self.index = position, index

    def current(self) -> int:
        """Return the index of the current key. Raises `InvalidRequestError` without one."""
        if self.keys is None or self.index is None:
            raise InvalidRequestError(
                "no key is current: state of the current key can be used after `begin_batch` and `set_current_key`, "
                "until the batch ends"
            )
        return self.index

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


_Page = TypeVar("_Page", bound=Page)
_Columns = TypeVar("_Columns", bound=BatchView)


class CurrentKeyView(Generic[_Page, _Columns]):
    """A state of the current key, in the current namespace if it has namespaces.

    Values are in pages, one for each namespace that is used. Every method raises `InvalidRequestError` if no key is
    current, or no namespace of a state with namespaces.

    Args:
        columns: The state of many keys at once.
        cursor: The current key.
        make_page: Makes a page for the keys of a batch.
    """

    def __init__(
        self, columns: _Columns, cursor: KeyCursor, make_page: Callable[[Keys], _Page]
    ) -> None:
        self._columns = columns
        self._cursor = cursor
        self._make_page: Callable[[Keys], _Page] | None = make_page
        self._closed_reason = ""
        self._namespace = columns.rows.table.spec.namespace
        self._natives = tuple(_NATIVE.get(field.type) for field in self._namespace)
        self._pages: dict[Namespace, _Page] = {}
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
        """Write back changes, and forget values that were read. Raises `InvalidRequestError` for a value of another type."""
        pages = list(self._pages.values())
        self.discard()
        for page in pages:
            page.store()

    def discard(self) -> None:
        """Forget changes, and values that were read."""
        self._select(None)
        self._pages = {}

    def close(self, reason: str) -> None:
        """Forget changes, and refuse further use for this reason."""
        self.discard()
        self._make_page, self._closed_reason = None, reason
        self._columns.rows.flush = self._refuse

    def _current(self) -> tuple[_Page, int]:
        """Return the current page and the index of the current key."""
        page, index = self._page, self._cursor.index
        if page is None or index is None:
            index = self._cursor.current()
            page = self._page_in(self._current_namespace())
            self._select(page)
        return page, index

    def _select(self, page: _Page | None) -> None:
        """Make a page the current one; None if it is unknown."""
        self._page: _Page | None = page

    def _current_namespace(self) -> Namespace:
        if not len(self._namespace):
            return ()
        if self._cursor.namespace is None:
            raise InvalidRequestError(
                f"state {self.name!r} has namespaces, and none is current: call `set_current_namespace`"
            )
        return self._cursor.namespace

    def _page_in(self, namespace: Namespace) -> _Page:
        """Return the page of a namespace. Raises `InvalidRequestError` if the namespace is not valid for the state."""
        name = namespace
        if tuple(map(type, namespace)) != self._natives:
            name = self._namespace_key(namespace)
        try:
            page = self._pages.get(name)
        except TypeError:
            raise InvalidRequestError(
                f"state {self.name!r}: namespace {namespace} has a value that can't be hashed; use the state of many "
                "keys at once, with `in_namespaces`"
            ) from None
        if page is None:
            if self._make_page is None:
                self._refuse()
            keys = self._cursor.keys
            assert keys is not None  # pages are used within a batch
            scalars = self._scalars(namespace)
            if scalars:
                keys = keys.in_namespace(scalars, self._columns.rows.hash_of)
            page = self._pages[name] = self._make_page(keys)
        return page

    def _namespace_key(self, namespace: Namespace) -> Namespace:
        """Return the namespace as a dictionary's key, equal to another one exactly where Arrow's values are equal."""
        parts = []
        for scalar in self._scalars(namespace):
            try:
                part = scalar.as_py()
            except (OverflowError, ValueError) as error:
                raise InvalidRequestError(
                    f"state {self.name!r}: Python has no object for a namespace of type {scalar.type}; use the state "
                    "of many keys at once, with `in_namespaces`"
                ) from error
            as_key = dictionary_key(scalar.type)
            parts.append(part if as_key is None or part is None else as_key(part))
        return tuple(parts)

    def _scalars(self, namespace: Namespace) -> list[pa.Scalar]:
        """Convert a namespace to Arrow scalars, and None to null. Raises `InvalidRequestError`."""
        schema = self._namespace
        if len(namespace) != len(schema):
            own = f"namespaces of {schema.names}" if len(schema) else "no namespaces"
            raise InvalidRequestError(
                f"state {self.name!r} has {own}, got a namespace of {len(namespace)} values"
            )
        scalars = []
        for value, field in zip(namespace, schema, strict=True):
            try:
                scalars.append(
                    pa.scalar(None, field.type) if value is None else scalar_of(value, field.type)
                )
            except IncompatibleValueError as error:
                raise InvalidRequestError(
                    f"state {self.name!r}: namespace {field.name!r} of type {field.type}: {error}"
                ) from None
        return scalars

    def _refuse(self) -> NoReturn:
        raise InvalidRequestError(self._closed_reason)


class MergeablePage(Page, Protocol):
    """The values of a state whose namespaces can be merged."""

    def take(self, index: int) -> Any:
        """Remove the value of a key, and return it; None without one."""
        ...

    def merge(self, index: int, value: Any) -> None:
        """Merge a value into that of a key."""
        ...


_Mergeable = TypeVar("_Mergeable", bound=MergeablePage)


class MergeableView(CurrentKeyView[_Mergeable, _Columns]):
    """A state of the current key whose namespaces can be merged."""

    def merge_namespaces(self, target: Sequence[Any], sources: Iterable[Sequence[Any]]) -> None:
        """Move the current key's values from some namespaces to another one, where they are merged with its own.

        Args:
            target: The namespace that gets the values: a value for each of its columns.
            sources: The namespaces that lose their values, in the order in which these are merged.

        Raises:
            InvalidRequestError: A namespace is not valid for the state.
        """
        index = self._cursor.current()
        values = [self._page_in(tuple(source)).take(index) for source in sources]
        merged = self._page_in(tuple(target))
        for value in values:
            if value is not None:
                merged.merge(index, value)


class ValuePage:
    """A value of each key, or None.

    Attributes:
        rows: The rows of the state.
        keys: The keys of the batch, in the page's namespace.
        values: The value of each key; None without one, and `UNREAD` before it was read. Always the same list.
        changed: 1 for the keys whose value must be written back, else 0.
        refreshed: 1 for the keys whose time to live restarts when they are read; None if it never does.
    """

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

    def take(self, index: int) -> Any:
        """Remove the value of a key, and return it; None without one."""
        value = self.read(index)
        if value is not None:
            self.write(index, None)
        return value

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


class ReadAhead:
    """Chooses the keys whose lists or maps a page reads: all of the batch, or some keys ahead if their order is known.

    In a known order the first read is of one key. How many keys the next ones are of depends on their sizes.

    Args:
        cursor: The current key.
        keys: The keys of the batch, in the page's namespace.

    Attributes:
        elements_per_key: The mean size of the lists or maps that were read last; 0 before the first read.
    """

    def __init__(self, cursor: KeyCursor, keys: Keys) -> None:
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

    def note(self, keys: int, elements: int) -> None:
        """Note the numbers of keys and elements of a read, to choose the number of keys of the next one."""
        self.elements_per_key = elements / max(1, keys)
        fitting = int(_READ_ELEMENTS / max(self.elements_per_key, 1 / 16))
        self._positions = max(1, min(self._positions * _READ_GROWTH, fitting))
