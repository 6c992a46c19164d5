"""A value of the current key that all added values are made one with."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.descriptors import KnownFunction
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.object_page import UNREAD, ObjectPage
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.states.reducing_columns import CombiningColumns, FoldingColumns
from holdfast.backends.keyed.states.scalar_folds import Combine, combination_of, field_of
from holdfast.errors import InvalidRequestError


class ReducingState(OfCurrentKey["FoldingPage", FoldingColumns | CombiningColumns]):
    """A value of each key, which all added values are reduced to; its methods are about the current key.

    If the state has namespaces, they are about the current namespace.

    Where the function is a known one, values that are only added are written without reading.

    Source:
        Flink, ReducingState.
    """

    def __init__(
        self,
        columns: FoldingColumns | CombiningColumns,
        function: KnownFunction | Mapping[str, KnownFunction] | Combine,
        context: KeyContext,
    ) -> None:
        combine = (
            function if callable(function) else combination_of(function, columns.rows.form.type)
        )
        super().__init__(columns, context, partial(FoldingPage, columns, combine))
        self._function = function
        self._form = columns.rows.form

    def get(self) -> Any:
        """The value of the current key, or None if nothing was added.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        value, copied = page.read(index), self._form.copied
        return value if copied is None or value is None else copied(value)

    def add(self, value: Any) -> None:
        """Add what the state's type makes of a value; None clears the state.

        A sum that is too large for the type is refused when the batch is written back.

        Raises:
            InvalidRequestError: No key is current, or the value is of another type or has other fields than the
                state's structs.
        """
        page, index = self._current()
        if value is None:
            page.write(index, None)
        else:
            page.add(index, self._operand(value))

    def clear(self) -> None:
        """Remove the value. Raises `InvalidRequestError` if no key is current."""
        page, index = self._current()
        page.write(index, None)

    def merge_namespaces(self, target: Sequence[Any], sources: Iterable[Sequence[Any]]) -> None:
        """Move the current key's values of some namespaces into that of another one.

        Args:
            target: The namespace that gets them: a value for each of its columns.
            sources: The namespaces that lose them.

        Raises:
            InvalidRequestError: No key is current, or the state has no such namespaces.
        """
        _, index = self._context.current()
        for source in sources:
            page = self._pages.of(tuple(source))
            value = page.read(index)
            if value is not None:
                page.write(index, None)
                self._pages.of(tuple(target)).add(index, value)

    def _operand(self, value: Any) -> Any:
        """The operand that stands for a value: 1 where values are counted. Raises `InvalidRequestError`."""
        functions = self._function
        if functions == "count":
            return 1
        if type(value) is self._form.native:
            return value
        if isinstance(functions, Mapping):
            value = self._counted(value, functions)
        return self._form.own(value)

    def _counted(self, value: Any, functions: Mapping[str, KnownFunction]) -> Any:
        """A struct, with 1 in the fields that are counted."""
        self._check_fields(value, functions)
        if "count" not in functions.values():
            return value
        fields = {
            name: 1 if known == "count" else field_of(value, name)
            for name, known in functions.items()
        }
        return fields if isinstance(value, Mapping) else type(value)(**fields)

    def _check_fields(self, value: Any, names: Collection[str]) -> None:
        if isinstance(value, Mapping):
            fits, given = all(name in names for name in value), str(list(value))
        else:
            fits, given = all(hasattr(value, name) for name in names), type(value).__name__
        if not fits:
            message = f"state {self.name!r} adds fields {list(names)}, and {given} was given"
            raise InvalidRequestError(message)


class FoldingPage(ObjectPage):
    """The values of the keys of a batch, and what is added to those that nobody has looked up."""

    __slots__ = ("_added", "_columns", "_combine")

    def __init__(
        self, columns: FoldingColumns | CombiningColumns, combine: Combine, keys: Keys
    ) -> None:
        super().__init__(columns.rows, keys)
        self._columns = columns
        self._combine = combine
        self._added: dict[int, Any] = {}

    def add(self, index: int, value: Any) -> None:
        """Make a value one with that of a key."""
        known = self.values[index]
        if known is UNREAD and isinstance(self._columns, CombiningColumns):
            # A function of Python may depend on the order in which it is called.
            known = self.read(index)
        if known is UNREAD:
            before = self._added.get(index)
            self._added[index] = value if before is None else self._combine(before, value)
        else:
            self.write(index, value if known is None else self._combine(known, value))

    def write(self, index: int, value: Any) -> None:
        super().write(index, value)
        self._added.pop(index, None)

    def load(self) -> None:
        super().load()
        added, self._added = self._added, {}
        for index, value in added.items():
            before = self.values[index]
            self.write(index, value if before is None else self._combine(before, value))

    def encoded(self, values: list[Any]) -> pa.Array:
        try:
            return super().encoded(values)
        except InvalidRequestError as error:
            if isinstance(self._columns, CombiningColumns):
                raise
            # Every operand had the state's type, so only a sum can be the misfit.
            form = self.rows.form
            message = (
                f"state {form.name!r}: a sum is too large for type {form.serializer.name}; give the state a wider "
                "type, or floats"
            )
            raise InvalidRequestError(message) from error

    def store(self) -> None:
        super().store()
        if self._added and isinstance(self._columns, FoldingColumns):
            indices = sorted(self._added)
            values = self.encoded([self._added[index] for index in indices])
            keys = self.keys.take(np.array(indices, np.int64))
            self._columns.append(keys, self.rows.form.columns_of(values))
