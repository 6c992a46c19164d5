"""Known functions of two Python objects, with the same results as those of whole columns.

Both objects are values as a column of the state's type returns them, and so is the result, except a sum that is too
large for the type: that is found when it is written back.
"""

import datetime as dt
import decimal
import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import IncompatibleValueError, union_of_sketches
from holdfast.backends.descriptors import KnownFunction
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


def _concatenate(value: Any, other: Any) -> Any:
    return [*value, *other]


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
    "concatenate": _concatenate,
    "hll_union": _union,
}
