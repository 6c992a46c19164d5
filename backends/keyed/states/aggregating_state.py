"""A result of each key, aggregated from all added values."""

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import Elements, IncompatibleValueError, chunks_of, named_conversion
from holdfast.backends.descriptors import AggregateFunction
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import KeyCursor, MergeableView, ValuePage
from holdfast.backends.keyed.states.reducing_state import FoldingColumns
from holdfast.backends.keyed.states.state_rows import StateColumns, ValueRows, combine_chunks
from holdfast.backends.serializers import serializer_of
from holdfast.errors import InvalidRequestError


class AverageColumns(StateColumns):
    """A state of means of many keys at once: sums and counts, which are written without reading."""

    def __init__(self, rows: ValueRows) -> None:
        super().__init__(rows)
        self.sums = FoldingColumns(rows, ("sum", "count"))

    def get(self, keys: Keys) -> pa.DoubleArray:
        """Return the mean of each key; null for keys without values."""
        sums = self.sums.get(keys)
        total, count = sums.flatten()
        return pc.divide(total, count.cast(pa.float64()))

    def add(self, keys: Keys, values: Elements) -> None:
        """Add the number of each row of the batch to the mean of its key."""
        try:
            numbers = combine_chunks(chunks_of(values, pa.float64()), pa.float64())
        except IncompatibleValueError as error:
            raise InvalidRequestError(
                f"values don't fit state {self.rows.name!r}, which is a mean of floats: {error}"
            ) from None
        self.sums.add(keys, {"sum": numbers})


class AggregatingColumns(StateColumns):
    """A state of many keys at once with an `AggregateFunction`, which is called for each value."""

    def __init__(self, rows: ValueRows, function: AggregateFunction) -> None:
        super().__init__(rows)
        self.function = function

    def get(self, keys: Keys) -> list[Any]:
        """Return the result of each key; None for keys without values."""
        self.rows.begin(keys)
        present, stored = self.rows.get(keys)
        return [
            None if accumulator is None else self.function.get_result(accumulator)
            for accumulator in self.rows.form.objects(stored, present)
        ]

    def add(self, keys: Keys, values: Any) -> None:
        """Add the value of each row of the batch to the accumulator of its key, in the order of rows.

        The function gets Arrow data as Python objects. Raises `InvalidRequestError` if it returns an accumulator of another
        type than it declares.
        """
        self.rows.check(keys)
        if hasattr(values, "to_pylist"):
            with named_conversion(f"values for state {self.rows.name!r}", values.type):
                objects = values.to_pylist()
        else:
            objects = list(values)
        if any(value is None for value in objects):
            message = f"values don't fit state {self.rows.name!r}: values must not be None"
            raise InvalidRequestError(message)
        self._fold(keys, objects, partial(_add, self.function))


def _add(function: AggregateFunction, accumulator: Any | None, value: Any) -> Any:
    """Return the accumulator of a key with another value."""
    return function.add(
        value, function.create_accumulator() if accumulator is None else accumulator
    )


_FLOATS = serializer_of(float, {})


class Average(AggregateFunction):
    """The mean of numbers. Errors name the state."""

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
                message = f"state {self._name!r} is a mean of floats, got {type(value).__name__}"
                raise InvalidRequestError(message) from None
        return {"sum": accumulator["sum"] + value, "count": accumulator["count"] + 1}

    def get_result(self, accumulator: Any) -> float:
        mean: float = accumulator["sum"] / accumulator["count"]
        return mean

    def merge(self, accumulator: Any, other: Any) -> dict[str, Any]:
        return {name: accumulator[name] + other[name] for name in ("sum", "count")}


class AccumulatorPage(ValuePage):
    """The accumulators of the keys of a batch."""

    def __init__(self, rows: ValueRows, function: AggregateFunction, keys: Keys) -> None:
        super().__init__(rows, keys)
        self._function = function

    def merge(self, index: int, accumulator: Any) -> None:
        """Merge an accumulator into that of a key."""
        before = self.read(index)
        if before is not None:
            accumulator = self._function.merge(before, accumulator)
        self.write(index, accumulator)


class AggregatingState(MergeableView[AccumulatorPage, AggregatingColumns | AverageColumns]):
    """A result of the current key, aggregated from all added values, in the current namespace if there are namespaces.

    Source:
        Flink, AggregatingState.
    """

    def __init__(
        self,
        columns: AggregatingColumns | AverageColumns,
        function: AggregateFunction,
        cursor: KeyCursor,
    ) -> None:
        super().__init__(columns, cursor, partial(AccumulatorPage, columns.rows, function))
        self._function = function

    def get(self) -> Any:
        """Return the result of the current key, or None if nothing was added."""
        page, index = self._current()
        accumulator = page.read(index)
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value; None clears the state. Raises `InvalidRequestError` if it is not a number for a mean."""
        page, index = self._current()
        accumulator = None
        if value is not None:
            accumulator = _add(self._function, page.read(index), value)
        page.write(index, accumulator)

    def clear(self) -> None:
        """Remove the accumulator."""
        page, index = self._current()
        page.write(index, None)
