"""Known functions of two Python objects: the same as of whole columns."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.backends.descriptors import KnownFunction

Combine = Callable[[Any, Any], Any]


def combination_of(function: KnownFunction | Mapping[str, KnownFunction]) -> Combine:
    """What makes one value of two by a known function, or by one for each field of a struct."""
    if isinstance(function, str):
        return _COMBINATIONS[function]
    combinations = {name: _COMBINATIONS[known] for name, known in function.items()}

    def combine(value: Any, other: Any) -> Any:
        fields = {
            name: _combined(combination, field_of(value, name), field_of(other, name))
            for name, combination in combinations.items()
        }
        return fields if isinstance(value, Mapping) else type(value)(**fields)

    return combine


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


_COMBINATIONS: dict[KnownFunction, Combine] = {
    "sum": operator.add,
    "count": operator.add,
    "min": _least,
    "max": _greatest,
    "any": operator.or_,
    "all": operator.and_,
    "concatenate": _concatenated,
}
