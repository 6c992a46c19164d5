"""The keys of the batch, the current key and namespace, and the pages that states have of them."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import pyarrow as pa

from holdfast.backends.arrow import IncompatibleValueError, dictionary_key, scalar_of
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import CheckedRows
from holdfast.errors import InvalidRequestError

Namespace = tuple[Any, ...]

_NATIVE = {pa.int64(): int, pa.string(): str}
"""Types whose Python objects are equal where Arrow's values are, and are the same for all."""


class KeyContext:
    """The keys of the batch, and which of them is current.

    Attributes:
        keys: The keys of the batch; None between batches.
        count: The number of these keys, 0 between batches.
        index: The current key, by its index in `keys`; None if none is current.
        namespace: The current namespace; None if none is.
    """

    __slots__ = ("count", "index", "keys", "namespace")

    def __init__(self) -> None:
        self.keys: Keys | None = None
        self.count = 0
        self.index: int | None = None
        self.namespace: Namespace | None = None

    def begin(self, keys: Keys) -> None:
        """Begin a batch of these keys; none of them is current yet."""
        self.keys, self.count = keys, len(keys)

    def end(self) -> None:
        """End the batch: no key and no namespace is current."""
        self.keys = self.index = self.namespace = None
        self.count = 0

    def current(self) -> tuple[Keys, int]:
        """The keys of the batch, and the current one. Raises `InvalidRequestError` if no key is current."""
        if self.keys is None or self.index is None:
            message = (
                "no key is current: state of a key is there between `begin_batch`, `set_current_key` and the "
                "end of the batch"
            )
            raise InvalidRequestError(message)
        return self.keys, self.index


class Page(Protocol):
    """The values of one state for the keys of a batch in one namespace, as Python objects."""

    def store(self) -> None:
        """Write back what has changed."""
        ...


_Page = TypeVar("_Page", bound=Page)


class Pages(Generic[_Page]):
    """The pages of a state, by namespace: each is made when it is first asked for.

    Args:
        rows: The rows of the state.
        context: The current key.
        make: Makes a page for keys.
    """

    def __init__(
        self, rows: CheckedRows, context: KeyContext, make: Callable[[Keys], _Page]
    ) -> None:
        self._name = rows.name
        self._namespace = rows.table.spec.namespace
        self._natives = tuple(_NATIVE.get(field.type) for field in self._namespace)
        self._hash_of = rows.hash_of
        self._context = context
        self._make: Callable[[Keys], _Page] | None = make
        self._why = ""
        self._pages: dict[Namespace, _Page] = {}

    def current(self) -> _Page:
        """The page of the current namespace. Raises `InvalidRequestError` if there is no current key or namespace."""
        self._context.current()
        if not len(self._namespace):
            return self.of(())
        if self._context.namespace is None:
            message = f"state {self._name!r} has namespaces, and none is current: call `set_current_namespace`"
            raise InvalidRequestError(message)
        return self.of(self._context.namespace)

    def of(self, namespace: Namespace) -> _Page:
        """The page of a namespace. Raises `InvalidRequestError` if the state has no such namespaces."""
        name: Namespace = namespace
        if tuple(map(type, namespace)) != self._natives:
            name = self._own(namespace)
        try:
            page = self._pages.get(name)
        except TypeError:
            message = (
                f"state {self._name!r}: namespace {namespace} can't be looked up, because a value of it has no hash; "
                "take it by arrays, with `in_namespaces`"
            )
            raise InvalidRequestError(message) from None
        if page is None:
            if self._make is None:
                self.refuse()
            keys, _ = self._context.current()
            scalars = namespace_of(self._name, namespace, self._namespace)
            if scalars:
                keys = keys.in_namespace(scalars, self._hash_of)
            page = self._pages[name] = self._make(keys)
        return page

    def _own(self, namespace: Namespace) -> Namespace:
        """The namespace as dictionaries can look it up: equal to others where Arrow's values are."""
        parts = []
        for scalar in namespace_of(self._name, namespace, self._namespace):
            try:
                part = scalar.as_py()
            except (OverflowError, ValueError) as error:
                message = (
                    f"state {self._name!r}: Python has no object for a namespace of type {scalar.type}; take it by "
                    "arrays, with `in_namespaces`"
                )
                raise InvalidRequestError(message) from error
            as_key = dictionary_key(scalar.type)
            parts.append(part if as_key is None or part is None else as_key(part))
        return tuple(parts)

    def store(self) -> None:
        """Write back what has changed, and forget all pages."""
        pages, self._pages = self._pages, {}
        for page in pages.values():
            page.store()

    def close(self, why: str) -> None:
        """Forget all pages; no more are made, for this reason."""
        self._pages = {}
        self._make = None
        self._why = why

    def refuse(self) -> NoReturn:
        """Refuse to use the state, after `close`. Raises `InvalidRequestError`."""
        raise InvalidRequestError(self._why)


def namespace_of(name: str, namespace: Sequence[Any], schema: pa.Schema) -> list[pa.Scalar]:
    """A namespace as Arrow has it; None stands for null. Raises `InvalidRequestError`."""
    if len(namespace) != len(schema):
        own = f"namespaces of {schema.names}" if len(schema) else "no namespaces"
        message = f"state {name!r} has {own}, and one of {len(namespace)} values was given"
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
