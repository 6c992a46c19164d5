"""A result of the current key that is made of all added values."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from holdfast.backends.arrow import IncompatibleValueError
from holdfast.backends.descriptors import AggregateFunction
from holdfast.backends.keyed.states.aggregating_columns import AggregatingColumns, AverageColumns
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.object_page import ObjectPage
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.serializers import serializer_of
from holdfast.errors import InvalidRequestError

_FLOATS = serializer_of(float, {})


class Average(AggregateFunction):
    """The mean of numbers, of Python objects.

    Args:
        name: The state's name, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def accumulator_type(self) -> Any:
        raise NotImplementedError  # the descriptor has it

    def create_accumulator(self) -> dict[str, Any]:
        return {"sum": 0.0, "count": 0}

    def add(self, value: Any, accumulator: Any) -> dict[str, Any]:
        if type(value) is not float:
            try:
                value = _FLOATS.canonical(value)
            except IncompatibleValueError:
                self._refuse(value)
        return {"sum": accumulator["sum"] + value, "count": accumulator["count"] + 1}

    def get_result(self, accumulator: Any) -> float:
        mean: float = accumulator["sum"] / accumulator["count"]
        return mean

    def merge(self, accumulator: Any, other: Any) -> dict[str, Any]:
        return {name: accumulator[name] + other[name] for name in ("sum", "count")}

    def _refuse(self, value: Any) -> NoReturn:
        message = (
            f"state {self._name!r} is a mean of floats, and {type(value).__name__} was added, which is no "
            "such number"
        )
        raise InvalidRequestError(message)


class AggregatingState(OfCurrentKey[ObjectPage, AggregatingColumns | AverageColumns]):
    """A result of each key, which is made of all added values; its methods are about the current key.

    If the state has namespaces, they are about the current namespace.

    Source:
        Flink, AggregatingState.
    """

    def __init__(
        self,
        columns: AggregatingColumns | AverageColumns,
        function: AggregateFunction,
        context: KeyContext,
    ) -> None:
        super().__init__(columns, context, partial(ObjectPage, columns.rows))
        self._function = function

    def get(self) -> Any:
        """The result of the current key, or None if nothing was added.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        accumulator = page.read(index)
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value; None clears the state.

        Raises:
            InvalidRequestError: No key is current, or the value is no number where the state is a mean.
        """
        page, index = self._current()
        if value is None:
            page.write(index, None)
            return
        accumulator = page.read(index)
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        page.write(index, self._function.add(value, accumulator))

    def clear(self) -> None:
        """Remove the accumulator. Raises `InvalidRequestError` if no key is current."""
        page, index = self._current()
        page.write(index, None)

    def merge_namespaces(self, target: Sequence[Any], sources: Iterable[Sequence[Any]]) -> None:
        """Move the current key's accumulators of some namespaces into that of another one.

        Args:
            target: The namespace that gets them: a value for each of its columns.
            sources: The namespaces that lose them.

        Raises:
            InvalidRequestError: No key is current, or the state has no such namespaces.
        """
        _, index = self._context.current()
        for source in sources:
            page = self._pages.of(tuple(source))
            accumulator = page.read(index)
            if accumulator is None:
                continue
            page.write(index, None)
            merged = self._pages.of(tuple(target))
            before = merged.read(index)
            if before is not None:
                accumulator = self._function.merge(before, accumulator)
            merged.write(index, accumulator)
