"""A result of each key, aggregated from all added values."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import Elements, IncompatibleValueError, chunks_of, named_conversion
from holdfast.backends.descriptors import AggregateFunction
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import CurrentKeyView, KeyCursor, ValuePage
from holdfast.backends.keyed.states.reducing_state import FoldingColumns
from holdfast.backends.keyed.states.state_rows import StateColumns, ValueRows, check_length
from holdfast.backends.keyed.states.value_form import combine_chunks
from holdfast.backends.serializers import serializer_of
from holdfast.errors import InvalidRequestError


class AverageColumns(StateColumns):
    """A state of means of many keys at once: sums and counts, which are written without reading.

    Args:
        rows: The rows of the state, one for each key with a value.
    """

    def __init__(self, rows: ValueRows) -> None:
        super().__init__(rows)
        self.sums = FoldingColumns(rows, ("sum", "count"))

    def get(self, keys: Keys) -> pa.DoubleArray:
        """Return the mean of each key; null for keys without values.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        sums = self.sums.get(keys)
        total, count = sums.flatten()
        return pc.divide(total, count.cast(pa.float64()))

    def add(self, keys: Keys, values: Elements) -> None:
        """Add the number of each row of the batch to the mean of its key.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is not a number.
        """
        try:
            numbers = combine_chunks(chunks_of(values, pa.float64()), pa.float64())
        except IncompatibleValueError as error:
            raise InvalidRequestError(
                f"values don't fit state {self.rows.name!r}, which is a mean of floats: {error}"
            ) from None
        self.sums.add(keys, {"sum": numbers})


class AggregatingColumns(StateColumns):
    """A state of many keys at once with an `AggregateFunction`, which is called for each value.

    Args:
        rows: The rows of the state, one for each key with an accumulator.
        function: The aggregate function.
    """

    def __init__(self, rows: ValueRows, function: AggregateFunction) -> None:
        super().__init__(rows)
        self.function = function

    def get(self, keys: Keys) -> list[Any]:
        """Return the result of each key; None for keys without values.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        self.rows.begin(keys)
        present, stored = self.rows.get(keys)
        return [
            None if accumulator is None else self.function.get_result(accumulator)
            for accumulator in self.rows.form.objects(stored, present)
        ]

    def add(self, keys: Keys, values: Any) -> None:
        """Add the value of each row of the batch to the accumulator of its key, in the order of rows.

        Args:
            keys: The keys.
            values: A value for each row; the function gets Arrow data as Python objects.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is `None`, or an
                accumulator is of another type than the function declares.
        """
        self.rows.check(keys)
        if hasattr(values, "to_pylist"):
            with named_conversion(f"values for state {self.rows.name!r}", values.type):
                objects = values.to_pylist()
        else:
            objects = list(values)
        check_length(self.rows.name, len(objects), len(keys.codes), "rows")
        if any(value is None for value in objects):
            message = f"values don't fit state {self.rows.name!r}: values must not be None"
            raise InvalidRequestError(message)
        self.rows.flush()
        accumulators = self.rows.objects(keys)
        for index, value in zip(keys.codes.tolist(), objects, strict=True):
            accumulator = accumulators[index]
            if accumulator is None:
                accumulator = self.function.create_accumulator()
            accumulators[index] = self.function.add(value, accumulator)
        if len(keys):
            self.rows.put(keys, self.rows.form.encode(accumulators))


_FLOATS = serializer_of(float, {})


class Average(AggregateFunction):
    """The mean of numbers.

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
                message = f"state {self._name!r} is a mean of floats, got {type(value).__name__}"
                raise InvalidRequestError(message) from None
        return {"sum": accumulator["sum"] + value, "count": accumulator["count"] + 1}

    def get_result(self, accumulator: Any) -> float:
        mean: float = accumulator["sum"] / accumulator["count"]
        return mean

    def merge(self, accumulator: Any, other: Any) -> dict[str, Any]:
        return {name: accumulator[name] + other[name] for name in ("sum", "count")}


class AggregatingState(CurrentKeyView[ValuePage, AggregatingColumns | AverageColumns]):
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
        super().__init__(columns, cursor, partial(ValuePage, columns.rows))
        self._function = function

    def get(self) -> Any:
        """Return the result of the current key, or None if nothing was added.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        accumulator = page.read(index)
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value; None clears the state.

        Raises:
            InvalidRequestError: No key is current, or the state is a mean and the value is not a number.
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
        """Merge the current key's accumulators in some namespaces into that of another one, and remove them there.

        Args:
            target: The namespace that gets the accumulators: a value for each of its columns.
            sources: The namespaces that lose their accumulators.

        Raises:
            InvalidRequestError: No key is current, or a namespace is not valid for the state.
        """
        _, index = self._cursor.current()
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
