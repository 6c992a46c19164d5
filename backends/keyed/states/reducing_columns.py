"""A value of each key that all added values are made one with, for many keys at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError, chunks_of
from holdfast.backends.descriptors import KnownFunction
from holdfast.backends.keyed.columns import from_arrow, take, to_arrow
from holdfast.backends.keyed.folding import fold_column, fold_into
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_columns import StateColumns
from holdfast.backends.keyed.states.state_rows import ValueRows, check_length
from holdfast.backends.keyed.states.value_form import joined
from holdfast.errors import InvalidRequestError

Combine = Callable[[Any, Any], Any]


class FoldingColumns(StateColumns):
    """The values of a state that known functions make one, by arrays: added without reading what is there.

    Args:
        rows: The rows of the state, one for each key that has a value.
        functions: The function of each column of values.
    """

    def __init__(self, rows: ValueRows, functions: Sequence[KnownFunction]) -> None:
        super().__init__(rows)
        self.functions = tuple(functions)
        self._fields = list(rows.form.schema)

    def add(self, keys: Keys, values: Elements | Mapping[str, Elements] | None = None) -> None:
        """Add a value for each row of the batch to that of its key.

        Args:
            keys: The keys to whose values it adds.
            values: A value for each row; for structs also a mapping from the fields' names to columns. Fields
                that are counted may be left out, and where all are, None is enough.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is null or of another
                type, or a sum is too large for its type.
        """
        self.rows.check(keys)
        columns = self.operands(keys, values)
        self.rows.settle()
        self.append(keys, columns)

    def append(self, keys: Keys, columns: Sequence[pa.Array]) -> None:
        """Fold a row of operands into the value of each key."""
        if not len(keys):
            return
        form = self.rows.form
        if self.rows.has_ttl:  # a row of several operands has a single time
            table = self.rows.table
            present, before = table.get(keys.identities)
            self.rows.put(keys, form.values_of(fold_into(before, columns, present, table.spec)))
        else:
            self.rows.append(keys, form.values_of(columns))

    def operands(
        self, keys: Keys, values: Elements | Mapping[str, Elements] | None
    ) -> list[pa.Array]:
        """The values of a batch reduced to a row for each key. Raises `InvalidRequestError`."""
        given = self._columns_of(values)
        order = keys.rows.order
        bounds = np.append(keys.rows.starts, len(order))
        columns = []
        for field, function, column in zip(self._fields, self.functions, given, strict=True):
            if function == "count":
                columns.append(pa.array(keys.rows.counts, field.type))
                continue
            check_length(self.rows.name, len(column), len(order), "rows")
            operands = take(from_arrow(column), order)
            value = fold_column(operands, field.type, bounds, function, state=self.rows.name)
            columns.append(to_arrow(value, field.type))
        return columns

    def _columns_of(self, values: Elements | Mapping[str, Elements] | None) -> list[pa.Array]:
        """The columns of values that were given; what stands for counted columns doesn't matter."""
        if values is None or isinstance(values, Mapping):
            given = values or {}
            counted = {
                field.name
                for field, function in zip(self._fields, self.functions, strict=True)
                if function == "count"
            }
            missing = [field.name for field in self._fields if field.name not in {*given, *counted}]
            unknown = [name for name in given if name not in {field.name for field in self._fields}]
            if missing or unknown:
                message = (
                    f"state {self.rows.name!r} adds columns {[field.name for field in self._fields]}; "
                    f"{missing or unknown} {'are missing' if missing else 'are unknown'}"
                )
                raise InvalidRequestError(message)
            return [
                pa.nulls(0) if field.name in counted else self._cast(field, given[field.name])
                for field in self._fields
            ]
        if self.functions == ("count",) and not self.rows.form.is_struct:
            return [pa.nulls(0)]
        return list(self.rows.form.columns_of(self.rows.form.encoded(values)))

    def _cast(self, field: pa.Field, values: Elements) -> pa.Array:
        try:
            return joined(chunks_of(values, field.type), field.type)
        except IncompatibleValueError as error:
            message = (
                f"state {self.rows.name!r}, field {field.name!r} of type {field.type}: {error}"
            )
            raise InvalidRequestError(message) from None


class CombiningColumns(StateColumns):
    """The values of a state that a function of Python makes one, by arrays: it is called for each value.

    Args:
        rows: The rows of the state, one for each key that has a value.
        combine: Makes one value of two.
    """

    def __init__(self, rows: ValueRows, combine: Combine) -> None:
        super().__init__(rows)
        self.combine = combine

    def add(self, keys: Keys, values: Elements) -> None:
        """Add a value for each row of the batch to that of its key, in the order of rows.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is null or of another
                type.
        """
        self.rows.check(keys)
        form = self.rows.form
        encoded = form.encoded(values)
        check_length(self.rows.name, len(encoded), len(keys.codes), "rows")
        self.rows.settle()
        results = self.rows.objects(keys)
        for index, value in zip(keys.codes.tolist(), form.decoded(encoded), strict=True):
            earlier = results[index]
            results[index] = value if earlier is None else self.combine(earlier, value)
        if len(keys):
            self.rows.put(keys, form.encoded(results))
