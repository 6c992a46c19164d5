"""Python values that Arrow would change silently on the way into a type, and how they are noticed.

Arrow cuts 1.5 to 1 and microseconds to seconds, takes a number for a date, text for bytes and for a
list, and drops values whose names are not among a struct's fields.
"""

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow.casts import MisfitError, cast
from holdfast.backends.arrow.nesting import is_bytes, is_list, is_list_view, is_text, plain_type
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_FLOATS = {16: "e", 32: "f"}
_NO_TIME = -(1 << 63)
_BYTES = bytes | bytearray | memoryview


def check_values(values: Iterable[Any], wanted: pa.DataType) -> None:
    """Check each value, and what is inside of it. None is allowed: it may be inside of an element.

    Raises:
        MisfitError: A value would be another one as the wanted type.
    """
    present = [value for value in values if value is not None]
    if isinstance(wanted, pa.BaseExtensionType):
        # Among Arrow's own extension types only that of UUIDs takes objects that its storage doesn't.
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in present]
        check_values(stored, wanted.storage_type)
    elif pa.types.is_dictionary(wanted):
        check_values(present, wanted.value_type)
    elif pa.types.is_struct(wanted):
        _check_structs(present, list(wanted))
    elif pa.types.is_map(wanted):
        pairs = [pair for mapping in present for pair in _pairs(mapping)]
        check_values([key for key, _ in pairs], wanted.key_type)
        _check_field([item for _, item in pairs], wanted.item_field)
    elif is_list(wanted) or is_list_view(wanted):
        if any(isinstance(value, str | _BYTES) for value in present):
            message = f"text or bytes are no {wanted}"
            raise MisfitError(message)
        if pa.types.is_fixed_size_list(wanted) and any(
            len(items) != wanted.list_size for items in present
        ):  # Arrow looks at some and ends the process when it reads others
            message = f"not every list has the {wanted.list_size} items of a {wanted}"
            raise MisfitError(message)
        _check_field([item for items in present for item in items], wanted.value_field)
    elif not _are_leaves(present, wanted):
        message = f"not every value is a {wanted}"
        raise MisfitError(message)


def _are_leaves(values: list[Any], wanted: pa.DataType) -> bool:
    if pa.types.is_float16(wanted) or pa.types.is_float32(wanted):
        return _are_narrow_floats(values, wanted)
    return all(
        fits(value, wanted) for is_kind, fits in _LEAVES if is_kind(wanted) for value in values
    )


def _check_structs(structs: list[Any], fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for value in structs:
        unknown = set(value) - set(names) if isinstance(value, Mapping) else set()
        if unknown:
            message = f"fields {sorted(map(str, unknown))} are not among {names}"
            raise MisfitError(message)
    for index, field in enumerate(fields):
        _check_field([_field_of(value, field.name, index) for value in structs], field)


def _check_field(values: list[Any], field: pa.Field) -> None:
    if not field.nullable and any(value is None for value in values):
        message = f"field {field.name!r} must not be None"
        raise MisfitError(message)
    check_values(values, field.type)


def _field_of(value: Any, name: str, index: int) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    return value[index] if isinstance(value, Sequence) and index < len(value) else None


def _pairs(mapping: Any) -> Iterable[tuple[Any, Any]]:
    return mapping.items() if isinstance(mapping, Mapping) else mapping


def _fits_integer(value: Any, _wanted: pa.DataType) -> bool:
    return not isinstance(value, str | bytes) and int(value) == value


def _are_narrow_floats(values: list[Any], wanted: pa.DataType) -> bool:
    """Whether no value is too large, and whole numbers are kept; fractions are rounded as everywhere."""
    form = f"<{len(values)}{_FLOATS[wanted.bit_width]}"
    try:
        packed = struct.pack(form, *values)  # all in one go: lists of floats may be long
    except (OverflowError, struct.error):
        return False
    if set(map(type, values)) <= {float}:
        return True
    pairs = zip(values, struct.unpack(form, packed), strict=True)
    return all(value == kept for value, kept in pairs if isinstance(value, int))


def _is_count(value: Any) -> bool:
    """Whether the value is a number of the type's own units, such as milliseconds since 1970.

    The least number of 64 bits means "no time" to NumPy and pandas, and Arrow's objects don't come back from it.
    """
    return type(value) is int and value > _NO_TIME


def _fits_timestamp(value: Any, wanted: pa.DataType) -> bool:
    return _is_count(value) or (
        isinstance(value, dt.datetime)
        and (value.tzinfo is None) == (wanted.tz is None)
        and value.microsecond % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(value, "nanosecond", 0))  # of pandas
    )


def _fits_date(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, dt.date) and not isinstance(value, dt.datetime)


def _fits_time(value: Any, wanted: pa.DataType) -> bool:
    day = (
        24
        * 60
        * 60
        * (1_000_000_000 if wanted.unit == "ns" else 1_000_000 // _MICROSECONDS[wanted.unit])
    )
    return (_is_count(value) and 0 <= value < day) or (
        isinstance(value, dt.time)
        and value.tzinfo is None
        and value.microsecond % _MICROSECONDS[wanted.unit] == 0
    )


def _fits_duration(value: Any, wanted: pa.DataType) -> bool:
    return _is_count(value) or (
        isinstance(value, dt.timedelta)
        and value.microseconds % _MICROSECONDS[wanted.unit] == 0
        and (wanted.unit == "ns" or not getattr(value, "nanoseconds", 0))  # of pandas
    )


def _fits_text(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, str)


def _fits_bytes(value: Any, _wanted: pa.DataType) -> bool:
    return isinstance(value, _BYTES)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], bool]], ...] = (
    (pa.types.is_integer, _fits_integer),
    (pa.types.is_timestamp, _fits_timestamp),
    (pa.types.is_date, _fits_date),
    (pa.types.is_time, _fits_time),
    (pa.types.is_duration, _fits_duration),
    (is_text, _fits_text),
    (is_bytes, _fits_bytes),
    (pa.types.is_fixed_size_binary, _fits_bytes),
)


Elements: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table | Iterable[Any]
"""Many elements at once. Record batches and tables are elements of struct type, one a row."""


def scalar_of(value: Any, element_type: pa.DataType) -> pa.Scalar:
    """One element, independent of `value` from now on. Raises `MisfitError`."""
    (array,) = chunks_of([value], element_type)
    return array[0]


def chunks_of(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    """The elements as arrays, without a copy where they are Arrow data of that type.

    Raises:
        MisfitError: An element is missing (None), or doesn't fit without loss.
    """
    chunks = _arrays(values, element_type)
    if any(_has_null(chunk) for chunk in chunks):
        message = "None is no element"
        raise MisfitError(message)
    return [chunk for chunk in chunks if len(chunk)]


def nullable(values: Sequence[Any], element_type: pa.DataType) -> pa.Array:
    """A column of Python values; None becomes null. Raises `MisfitError` for what doesn't fit without loss."""
    return _converted(values, element_type)


def _arrays(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    given = _arrow_data(values)
    if given is not None:
        return [cast(array, element_type) for array in given]
    objects = list(values)
    if objects and all(isinstance(value, pa.Scalar) for value in objects):
        return [cast(_converted(objects), element_type)]
    objects = [value.as_py() if isinstance(value, pa.Scalar) else value for value in objects]
    return [_converted(objects, element_type)]


def _arrow_data(values: Elements) -> list[pa.Array] | None:
    if isinstance(values, pa.RecordBatch):
        return [values.to_struct_array()]
    if isinstance(values, pa.Table):
        return list(values.to_struct_array().chunks)
    if isinstance(values, pa.ChunkedArray):
        return list(values.chunks)
    if isinstance(values, pa.Array):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        message = f"{type(values).__name__} is no list of elements"
        raise MisfitError(message)
    if hasattr(
        values, "__array__"
    ):  # NumPy and pandas have columns already, and may change them later
        return [pa.concat_arrays([_converted(_column(values))])]
    return None


def _column(values: Any) -> Any:
    """A column of numpy or pandas as Arrow takes it."""
    if len(getattr(values, "shape", ())) > 1:
        message = (
            f"{type(values).__name__} has rows and columns; make it a pyarrow.Table, for example by "
            "pyarrow.Table.from_pandas"
        )
        raise MisfitError(message)
    is_native = getattr(getattr(values, "dtype", None), "isnative", True)
    return values if is_native else values.astype(values.dtype.newbyteorder("="))


def _converted(values: Any, element_type: pa.DataType | None = None) -> pa.Array:
    """An array of the values, of their own type or of the given one.

    Arrow's texts quote values, which are rows of somebody's stream; ours don't.
    """
    try:
        if element_type is not None:
            check_values(values, element_type)
        # NaN in a column of floats is a number; elsewhere pandas has it for what is missing.
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        array = pa.array(values, type=element_type, from_pandas=False if kind == "f" else None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise_shortage(error)
        message = f"not every value is a {element_type or 'value of one Arrow type'}"
        raise MisfitError(message) from None
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _has_null(chunk: pa.Array) -> bool:
    if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count:
        return bool(pc.any(chunk.is_null()).as_py() or chunk.dictionary_decode().null_count)
    return bool(chunk.null_count)


def dictionary_key(type: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that makes a dictionary's key of a type's Python object; None if the object itself is one.

    Args:
        type: The values' type. Of nested types only the hash of objects decides, if they have one.
    """
    plain = plain_type(type)
    if types.is_floating(plain):
        return _single_nan
    if types.is_timestamp(plain) and plain.tz is not None:
        return _unambiguous
    return None


def _single_nan(value: Any) -> Any:
    """The number; the same object for every NaN."""
    return math.nan if value != value else value  # noqa: PLR0124  # NaN alone differs from itself


def _unambiguous(value: Any) -> Any:
    """The instant, which differs from every other instant: a second 02:30 of a day has its offset in place of its zone."""
    if isinstance(value, dt.datetime) and value.fold:
        return value.replace(tzinfo=dt.timezone(value.utcoffset() or dt.timedelta()), fold=0)
    return value


def no_object_error(what: str, type: pa.DataType, why: str) -> InvalidRequestError:
    """The error for a value that has no object.

    Args:
        what: The value and its place, such as the name of a column.
        type: Its type.
        why: The reason, such as the name of Python's own error; no values.
    """
    message = (
        f"{what}: Python has no object for a value of type {type} ({why}); take it as Arrow data, or give it another "
        "type"
    )
    return InvalidRequestError(message)


@contextmanager
def named_conversion(what: str, type: pa.DataType) -> Iterator[None]:
    """Convert values between Arrow and Python inside; what fails is one error with the name of the values.

    Raises:
        InvalidRequestError: A value has no object.
    """
    try:
        yield
    except InvalidRequestError:
        raise
    except (ArithmeticError, LookupError, OSError, ValueError, pa.ArrowException) as error:
        raise no_object_error(what, type, error.__class__.__name__) from error
