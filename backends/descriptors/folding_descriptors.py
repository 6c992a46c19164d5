"""Descriptors of reducing and aggregating states, which make one value of many: names, types and functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import check_sketches, is_list, is_text
from holdfast.backends.descriptors.descriptors import checked_name, named_serializer
from holdfast.backends.descriptors.ttl import StateTtlConfig
from holdfast.backends.serializers import ElementType
from holdfast.errors import InvalidRequestError

KnownFunction = Literal["sum", "count", "min", "max", "any", "all", "concatenate", "hll_union"]
ReduceFunction: TypeAlias = KnownFunction | Mapping[str, KnownFunction] | Callable[[Any, Any], Any]
"""A known function; one for each field of a struct; or a function of two values that gives one."""

_IsKind = Callable[[pa.DataType], bool]

_NUMBERS: tuple[_IsKind, ...] = (
    types.is_integer,
    types.is_float32,
    types.is_float64,
    types.is_decimal128,
    types.is_duration,
)
_ORDERED: tuple[_IsKind, ...] = (
    *_NUMBERS,
    types.is_boolean,
    types.is_temporal,
    types.is_binary,
    types.is_large_binary,
    is_text,
)
_ACCEPTED: dict[str, tuple[_IsKind, ...]] = {
    "sum": _NUMBERS,
    "count": (types.is_int64,),
    "min": _ORDERED,
    "max": _ORDERED,
    "any": (types.is_boolean,),
    "all": (types.is_boolean,),
    "concatenate": (is_list,),
    "hll_union": (types.is_binary,),
}


class ReducingStateDescriptor:
    """Names a state that reduces all values added for a key to a single value of their own type.

    Args:
        name: Unique among the operator's states.
        function: How two values become one, in any order and grouping. Known functions take whole columns,
            and write without reading. `sum` is of numbers, decimals and durations; `count` counts values, as
            int64; `min` and `max` are of what has an order, and NaN is the greatest; `any` and `all` are of
            booleans, `concatenate` is of lists; `hll_union` is of HLL sketches of Apache DataSketches as bytes,
            such as Spark's `hll_sketch_agg` makes. For a struct give a known function for each of its fields, by
            the field's name; of these, structs are compared by their own fields in their order, null first.
            A function of Python is called for each value.
        type: Type of the values, as for a list's elements.
        defaults: For structs of Arrow that have got more fields since they were stored.
        renamed: Renamed fields, as for a list's elements.
        dropped: Dropped fields, as for a list's elements.
        ttl: How long a value lives after the last one was added; None for ever.

    Raises:
        InvalidRequestError: The name is no string that can be stored, or the type is none of these, or
            none that the function takes; or sketches need a package that is not installed.

    Source:
        Flink, ReducingStateDescriptor, which has no known functions.
    """

    __slots__ = ("function", "name", "serializer", "ttl", "type")

    def __init__(
        self,
        name: str,
        function: ReduceFunction,
        type: ElementType,
        *,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.function = function
        self.type = type
        self.serializer = named_serializer(name, type, defaults, renamed, dropped)
        self.ttl = ttl
        if not callable(function):
            _check_functions(name, function, self.serializer.storage_type)

    def __repr__(self) -> str:
        return f"ReducingStateDescriptor({self.name!r}, {self.function!r}, {self.serializer.name})"


class AggregateFunction(ABC):
    """Aggregates values into an accumulator, which is stored, and computes a result from it.

    Source:
        Flink, AggregateFunction.
    """

    @property
    @abstractmethod
    def accumulator_type(self) -> ElementType:
        """Type of the accumulator, as for a list's elements."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """An accumulator of no values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with one more value; it may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result of all values of the accumulator."""

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """An accumulator of the values of both; it may be one of them, changed."""


class AggregatingStateDescriptor:
    """Names a state that keeps, for each key, the result of an aggregation over all values added.

    Args:
        name: Unique among the operator's states.
        function: `avg` is the mean of numbers as a float64, takes whole columns, and writes without
            reading. A function of Python is called for each value.
        defaults: For accumulators that are structs of Arrow and have got more fields since they were stored.
        renamed: Renamed fields, as for a list's elements.
        dropped: Dropped fields, as for a list's elements.
        ttl: How long an accumulator lives after the last value was added; None for ever.

    Raises:
        InvalidRequestError: The name is no string that can be stored, or the function is none, or its
            accumulators have a type that can't be stored.

    Source:
        Flink, AggregatingStateDescriptor, which has no known functions.
    """

    __slots__ = ("function", "name", "serializer", "ttl")

    def __init__(
        self,
        name: str,
        function: Literal["avg"] | AggregateFunction,
        *,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.function = function
        if isinstance(function, AggregateFunction):
            type = function.accumulator_type
        elif function == "avg":
            type = AVERAGE
        else:
            message = f"state {name!r}: {function!r} is neither 'avg' nor an AggregateFunction"
            raise InvalidRequestError(message)
        self.serializer = named_serializer(name, type, defaults, renamed, dropped)
        self.ttl = ttl

    def __repr__(self) -> str:
        return f"AggregatingStateDescriptor({self.name!r}, {self.function!r})"


AVERAGE = pa.struct([("sum", pa.float64()), ("count", pa.int64())])
"""The accumulator of `avg`."""


def _check_functions(name: str, function: object, type: pa.DataType) -> None:
    if isinstance(function, Mapping):
        fields = {field.name: field.type for field in type} if types.is_struct(type) else {}
        if not fields or function.keys() != fields.keys():
            message = (
                f"state {name!r}: there are functions of {sorted(function)}, but the type is {type}; give "
                "a function of each of its fields"
            )
            raise InvalidRequestError(message)
        for field, known in function.items():
            _check_field(f"state {name!r}, field {field!r}", known, fields[field])
        return
    _check_function(f"state {name!r}", function, type)


def _check_field(what: str, function: object, type: pa.DataType) -> None:
    if function in ("min", "max") and types.is_struct(type):
        for inner in type:
            _check_field(f"{what}, {inner.name!r}", function, inner.type)
        return
    _check_function(what, function, type)


def _check_function(what: str, function: object, type: pa.DataType) -> None:
    accepted = _ACCEPTED.get(function) if isinstance(function, str) else None
    if accepted is None:
        message = f"{what}: {function!r} is no known function; take {', '.join(_ACCEPTED)}, or give a function of two values"
        raise InvalidRequestError(message)
    if not any(is_kind(type) for is_kind in accepted):
        raise InvalidRequestError(f"{what}: {function!r} is not of values of type {type}")
    if function == "hll_union":
        check_sketches()
