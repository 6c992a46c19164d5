"""A result of each key that is made of all added values, for many keys at once."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import Elements, IncompatibleValueError, chunks_of, named_conversion
from holdfast.backends.descriptors import AggregateFunction
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.reducing_columns import FoldingColumns
from holdfast.backends.keyed.states.state_columns import StateColumns
from holdfast.backends.keyed.states.state_rows import ValueRows, check_length
from holdfast.backends.keyed.states.value_form import joined
from holdfast.errors import InvalidRequestError


class AverageColumns(StateColumns):
    """The means of a state, by arrays: sums and counts, which are written without reading.

    Args:
        rows: The rows of the state, one for each key that has a value.
    """

    def __init__(self, rows: ValueRows) -> None:
        super().__init__(rows)
        self.sums = FoldingColumns(rows, ("sum", "count"))

    def get(self, keys: Keys) -> pa.DoubleArray:
        """The mean of each key; null where nothing was added.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        sums = self.sums.get(keys)
        total, count = sums.flatten()
        return pc.divide(total, count.cast(pa.float64()))

    def add(self, keys: Keys, values: Elements) -> None:
        """Add a number for each row of the batch to those of its key.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is null or no number.
        """
        try:
            numbers = joined(chunks_of(values, pa.float64()), pa.float64())
        except IncompatibleValueError as error:
            message = (
                f"values don't fit state {self.rows.name!r}, which is a mean of floats: {error}"
            )
            raise InvalidRequestError(message) from None
        self.sums.add(keys, {"sum": numbers})


class AggregatingColumns(StateColumns):
    """The results of a state with an `AggregateFunction`, by arrays: it is called for each value.

    Args:
        rows: The rows of the state, one for each key that has an accumulator.
        function: The aggregate function.
    """

    def __init__(self, rows: ValueRows, function: AggregateFunction) -> None:
        super().__init__(rows)
        self.function = function

    def get(self, keys: Keys) -> list[Any]:
        """The result of each key; None where nothing was added.

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
        """Add a value for each row of the batch to those of its key, in the order of rows.

        Args:
            keys: The keys to whose values it adds.
            values: The values to add, one for each row; the function gets Arrow data as Python objects.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is None, or an
                accumulator is of another type than the function says.
        """
        self.rows.check(keys)
        if hasattr(values, "to_pylist"):
            with named_conversion(f"values for state {self.rows.name!r}", values.type):
                objects = values.to_pylist()
        else:
            objects = list(values)
        check_length(self.rows.name, len(objects), len(keys.codes), "rows")
        if any(value is None for value in objects):
            message = f"values don't fit state {self.rows.name!r}: None is no value"
            raise InvalidRequestError(message)
        self.rows.settle()
        accumulators = self.rows.objects(keys)
        for index, value in zip(keys.codes.tolist(), objects, strict=True):
            accumulator = accumulators[index]
            if accumulator is None:
                accumulator = self.function.create_accumulator()
            accumulators[index] = self.function.add(value, accumulator)
        if len(keys):
            self.rows.put(keys, self.rows.form.encoded(accumulators))
