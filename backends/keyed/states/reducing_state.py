"""A value of each key, to which all added values are reduced.

A known function such as `sum` has the same results for two Python objects as for whole columns. Both objects are values as
a column of the state's type returns them, and so is the result, except a sum that is too large for the type: that is
found when it is written back.
"""

import datetime as dt
import decimal
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import Elements, IncompatibleValueError, chunks_of, union_of_sketches
from holdfast.backends.descriptors import KnownFunction
from holdfast.backends.keyed.columns import from_arrow, take, to_arrow
from holdfast.backends.keyed.folding import fold_column, fold_into
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.current_key import UNREAD, KeyCursor, MergeableView, ValuePage
from holdfast.backends.keyed.states.state_rows import StateColumns, ValueRows, combine_chunks
from holdfast.backends.keyed.table import Operation
from holdfast.errors import InvalidRequestError

Combine = Callable[[Any, Any], Any]

_DOUBLE_BITS = 64
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EXACT = decimal.Context(
    prec=200, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[decimal.Inexact]
)
"""Arrow's decimals have at most 76 digits; sums of decimals can't use up the rest in any realistic time."""


def combination_of(
    function: KnownFunction | Mapping[str, KnownFunction], type_: pa.DataType
) -> Combine:
    """Return the function that reduces two values to one: a known function, or one for each field of a struct.

    Args:
        function: The function, or functions by the names of fields.
        type_: Type of the values.
    """
    if isinstance(function, str):
        return _combination_of(function, type_)
    combinations = {
        name: _combination_of(known, type_.field(name).type) for name, known in function.items()
    }

    def combine(value: Any, other: Any) -> Any:
        fields = {
            name: _combine_or_null(combination, field_of(value, name), field_of(other, name))
            for name, combination in combinations.items()
        }
        return fields if isinstance(value, Mapping) else type(value)(**fields)

    return combine


def _combination_of(function: KnownFunction, type_: pa.DataType) -> Combine:
    """Return the function for values of a type."""
    if function == "sum":
        return _sum_of(type_)
    if function in ("min", "max") and (types.is_struct(type_) or types.is_timestamp(type_)):
        pick = min if function == "min" else max
        return lambda value, other: pick(value, other, key=partial(_rank, type_))
    return _COMBINATIONS[function]


def _sum_of(type_: pa.DataType) -> Combine:
    if types.is_decimal(type_):
        return _EXACT.add
    if types.is_floating(type_) and type_.bit_width < _DOUBLE_BITS:
        narrow = np.dtype(type_.to_pandas_dtype()).type

        def add(value: Any, other: Any) -> Any:
            with np.errstate(over="ignore"):  # infinity is a valid sum
                return float(narrow(value + other))

        return add
    return _add_durations if types.is_duration(type_) else operator.add


def _add_durations(value: Any, other: Any) -> Any:
    try:
        return value + other
    except (ArithmeticError, ValueError) as error:  # of pandas, too
        raise InvalidRequestError(
            "a sum of durations is too large for Python's timedelta"
        ) from error


def _rank(type_: pa.DataType, value: Any) -> Any:
    """Return the sort key of a value: for a struct those of its fields, null first and NaN last; for an instant the time since 1970."""
    if types.is_struct(type_):
        fields = [(field.type, field_of(value, field.name)) for field in type_]
        return [(0,) if inner is None else (1, _rank(kind, inner)) for kind, inner in fields]
    if types.is_timestamp(type_) and type_.tz is not None:
        value -= _EPOCH  # Python compares local times, and some of a zone occur twice
    return (1, 0.0) if _is_nan(value) else (0, value)


def field_of(value: Any, name: str) -> Any:
    """Return a field of a struct: of a mapping, or of an object."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)


def _combine_or_null(combination: Combine, value: Any, other: Any) -> Any:
    """Combine two values; a null counts for nothing."""
    if value is None or other is None:
        return other if value is None else value
    return combination(value, other)


def _min(value: Any, other: Any) -> Any:
    """Return the smaller value; NaN is greater than all others."""
    return other if _is_nan(value) or other < value else value


def _max(value: Any, other: Any) -> Any:
    return other if _is_nan(other) or other > value else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _union(value: bytes, other: bytes) -> bytes:
    try:
        return union_of_sketches([value, other])
    except IncompatibleValueError as error:
        raise InvalidRequestError(str(error)) from error


_COMBINATIONS: dict[KnownFunction, Combine] = {
    "count": operator.add,
    "min": _min,
    "max": _max,
    "any": operator.or_,
    "all": operator.and_,
    "concatenate": lambda value, other: [*value, *other],
    "hll_union": _union,
}


class FoldingColumns(StateColumns):
    """A reducing state of many keys at once, with known functions: values are added without reading.

    Each column of values has a function.
    """

    def __init__(self, rows: ValueRows, functions: Sequence[KnownFunction]) -> None:
        super().__init__(rows)
        self.functions = tuple(functions)
        self._fields = list(rows.form.schema)

    def add(self, keys: Keys, values: Elements | Mapping[str, Elements] | None = None) -> None:
        """Add the value of each row of the batch to the value of its key.

        Args:
            keys: The keys.
            values: A value for each row; for structs also a mapping from the fields' names to columns. Fields
                that are counted may be left out; None if all fields are counted.

        Raises:
            InvalidRequestError: As for all methods, or a sum is too large for its type.
        """
        self.rows.check(keys)
        columns = self.operands(keys, values)
        self.rows.flush()
        self.append(keys, columns)

    def append(self, keys: Keys, columns: Sequence[pa.Array]) -> None:
        """Fold a row of operands into the value of each key."""
        if not len(keys):
            return
        form = self.rows.form
        if self.rows.has_ttl:  # operands that are appended to a row have no times
            table = self.rows.table
            present, before = table.get(keys.identities)
            self.rows.put(keys, form.values_of(fold_into(before, columns, present, table.spec)))
        else:
            self.rows.write(keys, form.values_of(columns), Operation.APPEND)

    def operands(
        self, keys: Keys, values: Elements | Mapping[str, Elements] | None
    ) -> list[pa.Array]:
        """Reduce the values of a batch to a row for each key. Raises `InvalidRequestError`."""
        given = self._columns_of(values)
        order = keys.rows.order
        bounds = np.append(keys.rows.starts, len(order))
        columns = []
        for field, function, column in zip(self._fields, self.functions, given, strict=True):
            if function == "count":
                columns.append(pa.array(keys.rows.counts, field.type))
                continue
            self.rows.check_length(len(column), len(order), "rows")
            operands = take(from_arrow(column), order)
            value = fold_column(operands, field.type, bounds, function, state=self.rows.name)
            columns.append(to_arrow(value, field.type))
        return columns

    def _columns_of(self, values: Elements | Mapping[str, Elements] | None) -> list[pa.Array]:
        """Return the columns of values, and placeholders for counted columns."""
        if values is None or isinstance(values, Mapping):
            given, names = values or {}, [field.name for field in self._fields]
            counted = {
                name
                for name, function in zip(names, self.functions, strict=True)
                if function == "count"
            }
            missing = [name for name in names if name not in {*given, *counted}]
            unknown = [name for name in given if name not in names]
            if missing or unknown:
                raise InvalidRequestError(
                    f"state {self.rows.name!r} adds columns {names}; "
                    f"{missing or unknown} {'are missing' if missing else 'are unknown'}"
                )
            return [
                pa.nulls(0) if field.name in counted else self._cast(field, given[field.name])
                for field in self._fields
            ]
        if self.functions == ("count",) and not self.rows.form.is_struct:
            return [pa.nulls(0)]
        return list(self.rows.form.columns_of(self.rows.form.encode(values)))

    def _cast(self, field: pa.Field, values: Elements) -> pa.Array:
        try:
            return combine_chunks(chunks_of(values, field.type), field.type)
        except IncompatibleValueError as error:
            raise InvalidRequestError(
                f"state {self.rows.name!r}, field {field.name!r} of type {field.type}: {error}"
            ) from None


class CombiningColumns(StateColumns):
    """A reducing state of many keys at once, with a Python function of two values that is called for each value."""

    def __init__(self, rows: ValueRows, combine: Combine) -> None:
        super().__init__(rows)
        self.combine = combine

    def add(self, keys: Keys, values: Elements) -> None:
        """Add the value of each row of the batch to the value of its key, in the order of rows."""
        self.rows.check(keys)
        form = self.rows.form
        self._fold(
            keys,
            form.decode(form.encode(values)),
            lambda earlier, value: value if earlier is None else self.combine(earlier, value),
        )


class ReducingState(MergeableView["FoldPage", FoldingColumns | CombiningColumns]):
    """A value of the current key to which all added values are reduced, in the current namespace if there are namespaces.

    With a known function, values that are only added are written without reading.

    Source:
        Flink, ReducingState.
    """

    def __init__(
        self,
        columns: FoldingColumns | CombiningColumns,
        function: KnownFunction | Mapping[str, KnownFunction] | Combine,
        cursor: KeyCursor,
    ) -> None:
        combine = (
            function if callable(function) else combination_of(function, columns.rows.form.type)
        )
        super().__init__(columns, cursor, partial(FoldPage, columns, combine))
        self._function = function
        self._form = columns.rows.form

    def get(self) -> Any:
        """Return the value of the current key, or None if nothing was added."""
        page, index = self._current()
        value, copied = page.read(index), self._form.copied
        return value if copied is None or value is None else copied(value)

    def add(self, value: Any) -> None:
        """Add a value, which is converted to the state's type; None clears the state.

        A sum that is too large for the type is refused when the batch is written back. Raises `InvalidRequestError` for a
        value of another type, or with other fields than the state's structs.
        """
        page, index = self._current()
        if value is None:
            page.write(index, None)
        else:
            page.merge(index, self._operand(value))

    def clear(self) -> None:
        """Remove the value."""
        page, index = self._current()
        page.write(index, None)

    def _operand(self, value: Any) -> Any:
        """Return the operand for a value: 1 where values are counted. Raises `InvalidRequestError`."""
        functions = self._function
        if functions == "count":
            return 1
        if type(value) is self._form.native:
            return value
        if isinstance(functions, Mapping):
            value = self._with_counts(value, functions)
        return self._form.own(value)

    def _with_counts(self, value: Any, functions: Mapping[str, KnownFunction]) -> Any:
        """Return a struct with 1 in the fields that are counted."""
        if isinstance(value, Mapping):
            is_valid, given = all(name in functions for name in value), str(list(value))
        else:
            is_valid, given = all(hasattr(value, name) for name in functions), type(value).__name__
        if not is_valid:
            raise InvalidRequestError(
                f"state {self.name!r} adds fields {list(functions)}, got {given}"
            )
        if "count" not in functions.values():
            return value
        fields = {
            name: 1 if known == "count" else field_of(value, name)
            for name, known in functions.items()
        }
        return fields if isinstance(value, Mapping) else type(value)(**fields)


class FoldPage(ValuePage):
    """The values of the keys of a batch, and values that were added to keys that were not read."""

    def __init__(
        self, columns: FoldingColumns | CombiningColumns, combine: Combine, keys: Keys
    ) -> None:
        super().__init__(columns.rows, keys)
        self._columns = columns
        self._combine = combine
        self._added: dict[int, Any] = {}

    def merge(self, index: int, value: Any) -> None:
        """Add a value to that of a key."""
        known = self.values[index]
        if known is UNREAD and isinstance(self._columns, CombiningColumns):
            # A Python function may depend on the order of its calls.
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

    def encode(self, values: list[Any]) -> pa.Array:
        try:
            return super().encode(values)
        except InvalidRequestError as error:
            if isinstance(self._columns, CombiningColumns):
                raise
            # Every operand had the state's type, so only a sum can be too large.
            form = self.rows.form
            raise InvalidRequestError(
                f"state {form.name!r}: a sum is too large for type {form.serializer.name}; give the state a wider "
                "type, or floats"
            ) from error

    def store(self) -> None:
        super().store()
        if self._added and isinstance(self._columns, FoldingColumns):
            indices = sorted(self._added)
            values = self.encode([self._added[index] for index in indices])
            keys = self.keys.take(np.array(indices, np.int64))
            self._columns.append(keys, self.rows.form.columns_of(values))
