"""Known functions of two Python objects: the same as of whole columns.

Both objects are what a column of the state's type gives back, and so is the result, but for sums that are too large
for the type: those are found when they are written back.
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
"""Arrow's decimals have 76 digits at most; more sums than there is time for don't fill the rest."""


def combination_of(
    function: KnownFunction | Mapping[str, KnownFunction], type_: pa.DataType
) -> Combine:
    """Returns the function that makes one value of two: a known function, or one for each field of a struct.

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
            name: _combined(combination, field_of(value, name), field_of(other, name))
            for name, combination in combinations.items()
        }
        return fields if isinstance(value, Mapping) else type(value)(**fields)

    return combine


def _combination_of(function: KnownFunction, type_: pa.DataType) -> Combine:
    """The function for values of a type."""
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
            with np.errstate(over="ignore"):  # floats have infinity for that
                return float(narrow(value + other))

        return add
    return _durations if types.is_duration(type_) else operator.add


def _durations(value: Any, other: Any) -> Any:
    try:
        return value + other
    except (ArithmeticError, ValueError) as error:  # of pandas, too
        raise InvalidRequestError("a sum of durations is more than Python has room for") from error


def _rank(type_: pa.DataType, value: Any) -> Any:
    """The sort key of a value: of a struct its fields in turn, null first and NaN last; of an instant its distance from 1970."""
    if types.is_struct(type_):
        fields = [(field.type, field_of(value, field.name)) for field in type_]
        return [(0,) if inner is None else (1, _rank(kind, inner)) for kind, inner in fields]
    if types.is_timestamp(type_) and type_.tz is not None:
        value -= (
            _EPOCH  # clocks of one zone show some times twice, and Python compares what they show
        )
    return (1, 0.0) if _is_nan(value) else (0, value)


def field_of(value: Any, name: str) -> Any:
    """A field of a struct: of a mapping, or of an object."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)


def _combined(combination: Combine, value: Any, other: Any) -> Any:
    """A null is no operand."""
    if value is None or other is None:
        return other if value is None else value
    return combination(value, other)


def _least(value: Any, other: Any) -> Any:
    """The least of both; NaN is the greatest."""
    return other if _is_nan(value) or other < value else value


def _greatest(value: Any, other: Any) -> Any:
    return other if _is_nan(other) or other > value else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _concatenated(value: Any, other: Any) -> Any:
    return [*value, *other]


def _union(value: bytes, other: bytes) -> bytes:
    try:
        return union_of_sketches([value, other])
    except IncompatibleValueError as error:
        raise InvalidRequestError(str(error)) from error


_COMBINATIONS: dict[KnownFunction, Combine] = {
    "count": operator.add,
    "min": _least,
    "max": _greatest,
    "any": operator.or_,
    "all": operator.and_,
    "concatenate": _concatenated,
    "hll_union": _union,
}
