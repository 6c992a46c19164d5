"""Descriptors: the name of a state, the type of its values, and their time to live."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import IncompatibleValueError, check_sketches, is_list, is_text
from holdfast.backends.serializers import ElementType, Serializer, serializer_of
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError

KnownFunction = Literal["sum", "count", "min", "max", "any", "all", "concatenate", "hll_union"]
ReduceFunction: TypeAlias = KnownFunction | Mapping[str, KnownFunction] | Callable[[Any, Any], Any]
"""A known function, a known function for each field of a struct, or a Python function of two values."""

AVERAGE = pa.struct([("sum", pa.float64()), ("count", pa.int64())])
"""The accumulator of `avg`."""

_MILLISECOND = timedelta(milliseconds=1)

_Predicate = Callable[[pa.DataType], bool]
_NUMBERS: tuple[_Predicate, ...] = (
    types.is_integer,
    types.is_float32,
    types.is_float64,
    types.is_decimal128,
    types.is_duration,
)
_ORDERED: tuple[_Predicate, ...] = (
    *_NUMBERS,
    types.is_boolean,
    types.is_temporal,
    types.is_binary,
    types.is_large_binary,
    is_text,
)
_ACCEPTED: dict[str, tuple[_Predicate, ...]] = {
    "sum": _NUMBERS,
    "count": (types.is_int64,),
    "min": _ORDERED,
    "max": _ORDERED,
    "any": (types.is_boolean,),
    "all": (types.is_boolean,),
    "concatenate": (is_list,),
    "hll_union": (types.is_binary,),
}


class UpdateType(Enum):
    """The accesses that restart the time to live of a value.

    Attributes:
        ON_CREATE_AND_WRITE: Each write.
        ON_READ_AND_WRITE: Each write, and each read.
        DISABLED: No access, because values don't expire.

    Source:
        Flink, StateTtlConfig.UpdateType.
    """

    ON_CREATE_AND_WRITE = "on create and write"
    ON_READ_AND_WRITE = "on read and write"
    DISABLED = "disabled"


class StateVisibility(Enum):
    """The visibility of expired values that have not been cleaned up yet.

    Attributes:
        NEVER_RETURN_EXPIRED: Reads never return them.
        RETURN_EXPIRED_IF_NOT_CLEANED_UP: Reads return them.

    Source:
        Flink, StateTtlConfig.StateVisibility.
    """

    NEVER_RETURN_EXPIRED = "never return expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return expired if not cleaned up"


@dataclass(frozen=True)
class StateTtlConfig:
    """The time to live of a state's values: of whole values, of each list element, and of each map entry.

    The clock is the processing time of batches. Expired values are dropped when state files are merged; no
    batch searches for them.

    Attributes:
        ttl: The time to live in whole milliseconds, at least 1. A value of time `t` expires at `t + ttl`.
        update_type: The accesses that restart the time; `DISABLED` means that values don't expire.
        visibility: Whether reads return expired values that have not been cleaned up yet.

    Raises:
        InvalidRequestError: The time to live is shorter than a millisecond, or a field has the wrong type.

    Source:
        Flink, StateTtlConfig.
    """

    ttl: timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        for name, wanted in (
            ("ttl", timedelta),
            ("update_type", UpdateType),
            ("visibility", StateVisibility),
        ):
            value = getattr(self, name)
            if not isinstance(value, wanted):
                message = f"{name} of a StateTtlConfig must be a {wanted.__name__}, got {value!r}"
                raise InvalidRequestError(message)
        if self.ttl < _MILLISECOND:
            raise InvalidRequestError(f"ttl must be >= 1 millisecond, got {self.ttl}")

    @property
    def ttl_ms(self) -> int | None:
        """The time to live in milliseconds; None if values don't expire."""
        if self.update_type is UpdateType.DISABLED:
            return None
        return min(self.ttl // _MILLISECOND, MAX_INT64)

    @property
    def is_refreshed_by_reading(self) -> bool:
        """Return whether a read restarts the time to live."""
        return self.update_type is UpdateType.ON_READ_AND_WRITE

    @property
    def shows_expired(self) -> bool:
        """Return whether reads return expired values that have not been cleaned up yet."""
        return self.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


class StateOptions(TypedDict, total=False):
    """Options of all descriptors; `ListStateDescriptor` describes them."""

    defaults: Mapping[str, Any] | None
    renamed: Mapping[str, str] | None
    dropped: Collection[str]
    ttl: StateTtlConfig | None


class _StateDescriptor:
    """The name of a state, the type of its values, and their time to live."""

    def __init__(
        self,
        name: str,
        type: ElementType,
        *,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = _validate_name(name)
        self.serializer = _make_serializer(name, type, defaults, renamed, dropped)
        self.ttl = ttl

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.name!r}, {self.serializer.name})"


class ListStateDescriptor(_StateDescriptor):
    """Names a list state and gives the type of its elements.

    Args:
        name: Unique among the operator's states.
        type: Arrow type of an element; a schema is a struct of its fields, for elements that are rows. Or a
            Python type: `str`, `bytes`, `int`, `float`, `bool`, a msgspec Struct, a dataclass. Or `Pickled`.
        defaults: For Arrow structs that gained fields since they were stored: the value of each such
            field, by name.
        renamed: Stored names of renamed fields, by their present paths: `{"latest": "last"}`, or
            `{"lines[].price": "cost"}` inside of a list. No effect once the state is migrated.
        dropped: Paths of stored fields whose values are discarded. No effect once the state is migrated.
        ttl: The time to live of elements, in keyed state only; None means that elements don't expire.

    Raises:
        InvalidRequestError: The name can't be stored, or the type is not supported.
    """

    def __eq__(self, other: object) -> bool:
        """Compare names and types; defaults and times to live don't count."""
        return (
            isinstance(other, ListStateDescriptor)
            and self.name == other.name
            and self.serializer == other.serializer
        )

    def __hash__(self) -> int:
        return hash(self.name)


class ValueStateDescriptor(_StateDescriptor):
    """Names a value state, one value per key, and gives its type.

    Args:
        name: Unique among the operator's states.
        type: Type of the value, as for list elements.
        default: The value of keys without one; each reader gets a copy. Ignored if values have a time to live.
        options: `defaults`, `renamed`, `dropped` and `ttl`, as for `ListStateDescriptor`.

    Raises:
        InvalidRequestError: The name can't be stored, the type is not supported, or the default is not a
            value of the type.
    """

    def __init__(
        self, name: str, type: ElementType, *, default: Any = None, **options: Unpack[StateOptions]
    ) -> None:
        super().__init__(name, type, **options)
        self.default = default
        if default is not None:
            try:
                self.serializer.encode_one(default)
            except IncompatibleValueError as error:
                message = f"state {name!r}: default is not a valid {self.serializer.name}: {error}"
                raise InvalidRequestError(message) from None


class MapStateDescriptor(_StateDescriptor):
    """Names a broadcast state, or a map per key, and gives the types of its entries.

    Args:
        name: Unique among the operator's states.
        key_type: Type of the keys, as for list elements. Its values must be hashable.
        value_type: Type of the values, as for list elements.
        options: `defaults`, `renamed` and `dropped` for values, and the `ttl` of entries, as for
            `ListStateDescriptor`.

    Raises:
        InvalidRequestError: The name can't be stored, or a type is not supported.
    """

    def __init__(
        self,
        name: str,
        key_type: ElementType,
        value_type: ElementType,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(name, value_type, **options)
        self.key_serializer = _make_serializer(name, key_type, None, None, None)
        self.value_serializer = self.serializer

    def __eq__(self, other: object) -> bool:
        """Compare names and types; defaults and times to live don't count."""
        return (
            isinstance(other, MapStateDescriptor)
            and self.name == other.name
            and self.key_serializer == other.key_serializer
            and self.value_serializer == other.value_serializer
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        key, value = self.key_serializer.name, self.value_serializer.name
        return f"MapStateDescriptor({self.name!r}, {key}, {value})"


class ReducingStateDescriptor(_StateDescriptor):
    """Names a state that reduces all values added for a key to a single value of the same type.

    Args:
        name: Unique among the operator's states.
        function: Combines two values, in any order and grouping. Known functions work on whole columns, and
            write without reading: `sum` of numbers, decimals and durations; `count`, an int64; `min` and `max`
            of ordered types, where NaN is the greatest; `any` and `all` of booleans; `concatenate` of lists;
            `hll_union` of HLL sketches of Apache DataSketches as bytes, as Spark's `hll_sketch_agg` makes them.
            For a struct give a mapping from each of its fields to a known function; `min` and `max` compare
            inner structs field by field, null first. A Python function is called for each value.
        type: Type of the values, as for list elements.
        options: `defaults`, `renamed` and `dropped` as for `ListStateDescriptor`, and `ttl`: the time to live of a
            value since the last addition.

    Raises:
        InvalidRequestError: The name can't be stored, the type is not supported or not accepted by the
            function, or sketches need a package that is not installed.

    Source:
        Flink, ReducingStateDescriptor, which has no known functions.
    """

    def __init__(
        self,
        name: str,
        function: ReduceFunction,
        type: ElementType,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(name, type, **options)
        self.function = function
        if not callable(function):
            _check_functions(f"state {name!r}", function, self.serializer.storage_type)

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
        """Type of the accumulator, as for list elements."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return an accumulator of no values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with an additional value; it may be the same object, modified."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of all values in the accumulator."""

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return an accumulator of the values of both; it may be one of them, modified."""


class AggregatingStateDescriptor(_StateDescriptor):
    """Names a state that keeps, for each key, the result of an aggregation over all values added.

    Args:
        name: Unique among the operator's states.
        function: `avg` is the mean of numbers as a float64; it works on whole columns, and writes without
            reading. An `AggregateFunction` is called for each value.
        options: `defaults`, `renamed` and `dropped` for accumulators as for `ListStateDescriptor`, and `ttl`: the
            time to live of an accumulator since the last addition.

    Raises:
        InvalidRequestError: The name can't be stored, the function is neither `avg` nor an
            `AggregateFunction`, or the type of its accumulators is not supported.

    Source:
        Flink, AggregatingStateDescriptor, which has no known functions.
    """

    def __init__(
        self,
        name: str,
        function: Literal["avg"] | AggregateFunction,
        **options: Unpack[StateOptions],
    ) -> None:
        if isinstance(function, AggregateFunction):
            type = function.accumulator_type
        elif function == "avg":
            type = AVERAGE
        else:
            message = f"state {name!r}: {function!r} is neither 'avg' nor an AggregateFunction"
            raise InvalidRequestError(message)
        super().__init__(name, type, **options)
        self.function = function

    def __repr__(self) -> str:
        return f"AggregatingStateDescriptor({self.name!r}, {self.function!r})"


def _validate_name(name: str) -> str:
    """Return the name of a state. Raises `InvalidRequestError` if it can't be stored."""
    if not isinstance(name, str):
        raise InvalidRequestError(f"state name {name!r} is not a string")
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"state name {name!r} has a lone surrogate, which can't be stored"
        raise InvalidRequestError(message) from None
    return name


def _make_serializer(
    name: str,
    type: ElementType,
    defaults: Mapping[str, Any] | None,
    renamed: Mapping[str, str] | None,
    dropped: Collection[str] | None,
) -> Serializer:
    """Return the serializer of a state's type. Raises `InvalidRequestError`, which names the state."""
    try:
        return serializer_of(type, defaults, renamed=renamed, dropped=dropped)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"state {name!r}: {error.args[0]}") from error


def _check_functions(label: str, function: object, type: pa.DataType) -> None:
    if not isinstance(function, Mapping):
        _check_function(label, function, type)
        return
    fields = {field.name: field.type for field in type} if types.is_struct(type) else {}
    if not fields or function.keys() != fields.keys():
        message = f"{label}: functions of fields {sorted(function)} don't match type {type}; give one for each field"
        raise InvalidRequestError(message)
    for field, known in function.items():
        _check_function(f"{label}, field {field!r}", known, fields[field], is_field=True)


def _check_function(
    label: str, function: object, type: pa.DataType, *, is_field: bool = False
) -> None:
    if is_field and function in ("min", "max") and types.is_struct(type):
        for inner in type:
            _check_function(f"{label}, {inner.name!r}", function, inner.type, is_field=True)
        return
    accepted = _ACCEPTED.get(function) if isinstance(function, str) else None
    if accepted is None:
        message = f"{label}: unknown function {function!r}; use one of {', '.join(_ACCEPTED)}, or a function of two values"
        raise InvalidRequestError(message)
    if not any(is_accepted(type) for is_accepted in accepted):
        raise InvalidRequestError(
            f"{label}: function {function!r} doesn't accept values of type {type}"
        )
    if function == "hll_union":
        check_sketches()
