"""Aggregates of plain rows, independent of the product's code: each is computed from all rows at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa
from pyarrow import types

from proof.values.plain import frozen, order_of

MAX_DIGITS = 38
PlainRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """An aggregate.

    Attributes:
        kind: The function, as `holdfast.spark.aggregates` names it.
        column: The column; None for all rows.
        by: The column that `first` and `last` order rows by.
    """

    kind: str
    column: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The possible results.

    Attributes:
        value: The plain value.
        tolerance: Maximum error of a floating-point result.
        is_unordered: Whether the value is a list in any order.
        must_fail: Whether the result does not fit into its type, so that only an error is correct.
        may_fail: Whether an intermediate result may not fit, so that an error is also correct.
    """

    value: Any = None
    tolerance: float = 0.0
    is_unordered: bool = False
    must_fail: bool = False
    may_fail: bool = False

    def allows(self, value: Any) -> bool:
        """Return whether a value is correct."""
        if self.must_fail:
            return False
        if self.is_unordered:
            return bool(_bag(value) == _bag(self.value))
        if self.tolerance and isinstance(value, float) and isinstance(self.value, float):
            return bool(abs(value - self.value) <= self.tolerance)
        return bool(frozen(value) == frozen(self.value))


def _bag(values: Any) -> Any:
    return values if values is None else sorted(repr(frozen(value)) for value in values)


def result_type(spec: Spec, columns: pa.Schema) -> pa.DataType:
    """Return the type of an aggregate's result, which is that of Spark."""
    if spec.column is None or spec.kind == "count":
        return pa.int64()
    kind = columns.field(spec.column).type
    if spec.kind == "collect":
        return pa.list_(kind)
    if spec.kind == "sum":
        return sum_type(kind)
    if spec.kind == "avg":
        if not types.is_decimal(kind):
            return pa.float64()
        digits = min(kind.precision + 4, MAX_DIGITS)
        return pa.decimal128(digits, min(kind.scale + 4, MAX_DIGITS))
    return kind


def sum_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the sum of such values."""
    if types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, MAX_DIGITS), kind.scale)
    return pa.float64() if types.is_floating(kind) else pa.int64()


def limit_of(kind: pa.DataType) -> int:
    """Return the greatest number of a type of whole numbers or decimals, unscaled."""
    if types.is_decimal(kind):
        return int(10**kind.precision - 1)
    return int(2 ** (kind.bit_width - (0 if types.is_unsigned_integer(kind) else 1)) - 1)


def aggregate(spec: Spec, rows: Sequence[PlainRow], columns: pa.Schema) -> Expected:
    """Return the expected aggregate of these rows."""
    if spec.column is None:
        return Expected(len(rows))
    kind = columns.field(spec.column).type
    if spec.by is not None:
        pairs = [(row[spec.by], row[spec.column]) for row in rows if row[spec.by] is not None]
        choose = min if spec.kind == "first" else max
        return Expected(choose(pairs, key=order_of)[1] if pairs else None)
    values = [row[spec.column] for row in rows if row[spec.column] is not None]
    if spec.kind == "count":
        return Expected(len(values))
    if spec.kind == "collect":
        return Expected(values, is_unordered=True)
    if not values:
        return Expected(None)
    if spec.kind in {"min", "max"}:
        return Expected((min if spec.kind == "min" else max)(values, key=order_of))
    if types.is_floating(kind):
        total = float_sum(values)
        return Expected(total if spec.kind == "sum" else total / len(values))
    if spec.kind == "avg" and not types.is_decimal(kind):
        mean = float(Fraction(sum(values), len(values)))
        return Expected(mean, tolerance=1e-12 * (sum(map(abs, values)) / len(values)) + 1e-300)
    total, has_failed, may_fail = exact_sum(values, sum_type(kind))
    if spec.kind == "sum":
        return Expected(total, must_fail=has_failed, may_fail=may_fail)
    result = result_type(spec, columns)
    mean = _half_up(Fraction(total, len(values)) * 10 ** (result.scale - kind.scale))
    does_not_fit = has_failed or abs(mean) > limit_of(result)
    return Expected(mean, must_fail=does_not_fit, may_fail=may_fail)


def exact_sum(values: Sequence[int], kind: pa.DataType) -> tuple[int, bool, bool]:
    """Return a sum, whether it does not fit into its type, and whether a part of it may not."""
    total = sum(values)
    maximum = limit_of(kind)
    minimum = -maximum if types.is_decimal(kind) else -maximum - 1
    if types.is_unsigned_integer(kind):
        minimum = 0
    ups, downs = sum(v for v in values if v > 0), sum(v for v in values if v < 0)
    return total, not minimum <= total <= maximum, not minimum <= downs <= ups <= maximum


def float_sum(values: Sequence[float]) -> float:
    """Return a sum of floats that are exact in any order, or are infinite or NaN."""
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    return math.fsum(values)


def reduce_values(function: str, values: Sequence[Any], kind: pa.DataType) -> Expected:
    """Return the expected value of a reducing state after these values, which are not null, were added."""
    if not values:
        return Expected(None)
    if function == "concatenate":
        return Expected([element for value in values for element in value])
    if function in {"any", "all"}:
        return Expected(any(values) if function == "any" else all(values))
    if function in {"min", "max"}:
        return Expected((min if function == "min" else max)(values, key=order_of))
    if types.is_floating(kind):
        return Expected(float_sum(values))
    total, has_failed, may_fail = exact_sum(values, kind)
    return Expected(total, must_fail=has_failed, may_fail=may_fail)


def _half_up(number: Fraction) -> int:
    """Round to a whole number, halves away from zero."""
    magnitude = math.floor(abs(number) + Fraction(1, 2))
    return magnitude if number >= 0 else -magnitude
