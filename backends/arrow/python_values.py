"""Conversions between Python objects and Arrow data that keep every value, or refuse it.

`check_values` and `quick_type` walk nested types; `leaf_rules` decides about the types that have nothing inside. Arrow
itself would make lists of texts and drop values whose names are not among a struct's fields.
"""

import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow.casts import IncompatibleValueError, cast
from holdfast.backends.arrow.leaf_rules import BYTES, Convert, NotQuickError, QuickType, leaf_rule
from holdfast.backends.arrow.nesting import is_list, is_list_view, is_text, plain_type
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError

_FIRST_DAY, _LAST_DAY = -719162, 2932896  # of the years 1 and 9999, the range of Python's dates

Elements: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table | Iterable[Any]
"""Many elements at once. Record batches and tables are elements of struct type, one a row."""


def check_values(values: Iterable[Any], wanted: pa.DataType) -> None:
    """Check each value and everything inside it. None is allowed: it may be inside an element.

    Raises `IncompatibleValueError` if a value would change in the conversion to the wanted type.
    """
    present = [value for value in values if value is not None]
    if isinstance(wanted, pa.BaseExtensionType):
        # Among Arrow's own extension types only that of UUIDs takes objects that its storage doesn't take.
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in present]
        check_values(stored, wanted.storage_type)
    elif pa.types.is_dictionary(wanted):
        check_values(present, wanted.value_type)
    elif pa.types.is_struct(wanted):
        _check_structs(present, list(wanted))
    elif pa.types.is_map(wanted):
        pairs = [
            pair
            for entries in present
            for pair in (entries.items() if isinstance(entries, Mapping) else entries)
        ]
        check_values([key for key, _ in pairs], wanted.key_type)
        _check_field([item for _, item in pairs], wanted.item_field)
    elif is_list(wanted) or is_list_view(wanted):
        if any(isinstance(value, str | BYTES) for value in present):
            raise IncompatibleValueError(f"text and bytes are not a {wanted}")
        if pa.types.is_fixed_size_list(wanted) and any(
            len(items) != wanted.list_size for items in present
        ):  # Arrow checks only some of them, and crashes the process when it reads the others
            message = f"not every list has the {wanted.list_size} items of a {wanted}"
            raise IncompatibleValueError(message)
        _check_field([item for items in present for item in items], wanted.value_field)
    elif (fits := leaf_rule(wanted).fits) is not None and not fits(present, wanted):
        raise IncompatibleValueError(f"not every value is a {wanted}")


def _check_structs(structs: list[Any], fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for value in structs:
        unknown = set(value) - set(names) if isinstance(value, Mapping) else set()
        if unknown:
            message = f"fields {sorted(map(str, unknown))} are not among {names}"
            raise IncompatibleValueError(message)
    for index, field in enumerate(fields):
        _check_field([_field_of(value, field.name, index) for value in structs], field)


def _check_field(values: list[Any], field: pa.Field) -> None:
    if not field.nullable and any(value is None for value in values):
        raise IncompatibleValueError(f"field {field.name!r} must not be None")
    check_values(values, field.type)


def _field_of(value: Any, name: str, index: int) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    return value[index] if isinstance(value, Sequence) and index < len(value) else None


def scalar_of(value: Any, element_type: pa.DataType) -> pa.Scalar:
    """Convert one element to a scalar that shares nothing with it. Raises `IncompatibleValueError`."""
    (array,) = chunks_of([value], element_type)
    return array[0]


def chunks_of(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    """Convert elements to arrays, without a copy if they are Arrow data of that type.

    Raises `IncompatibleValueError` if an element is missing (None), or can't be converted without loss.
    """
    chunks = _arrays(values, element_type)
    if any(_has_null(chunk) for chunk in chunks):
        raise IncompatibleValueError("None is not a valid element")
    return [chunk for chunk in chunks if len(chunk)]


def _arrays(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    given = _arrow_data(values)
    if given is not None:
        return [cast(array, element_type) for array in given]
    objects = list(values)
    if objects and all(isinstance(value, pa.Scalar) for value in objects):
        return [cast(nullable_array(objects), element_type)]
    objects = [value.as_py() if isinstance(value, pa.Scalar) else value for value in objects]
    return [nullable_array(objects, element_type)]


def _arrow_data(values: Elements) -> list[pa.Array] | None:
    if isinstance(values, pa.RecordBatch):
        return [values.to_struct_array()]
    if isinstance(values, pa.Table):
        # Of a table without rows, PyArrow 16 can't make a struct array.
        return [batch.to_struct_array() for batch in values.to_batches()]
    if isinstance(values, pa.ChunkedArray):
        return list(values.chunks)
    if isinstance(values, pa.Array):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        raise IncompatibleValueError(f"{type(values).__name__} is not a list of elements")
    if hasattr(values, "__array__"):  # the user may change a column of NumPy or pandas later
        return [pa.concat_arrays([nullable_array(_column(values))])]
    return None


def _column(values: Any) -> Any:
    """Return a column of NumPy or pandas in the byte order that Arrow reads."""
    if len(getattr(values, "shape", ())) > 1:
        raise IncompatibleValueError(
            f"{type(values).__name__} has rows and columns; make it a pyarrow.Table, for example by "
            "pyarrow.Table.from_pandas"
        )
    is_native = getattr(getattr(values, "dtype", None), "isnative", True)
    return values if is_native else values.astype(values.dtype.newbyteorder("="))


def nullable_array(values: Any, element_type: pa.DataType | None = None) -> pa.Array:
    """Convert objects to an array of the given type, or of the type that Arrow infers; None becomes null.

    Raises `IncompatibleValueError` if a value would change. Arrow's messages quote values, which are user data; ours don't.
    """
    try:
        if element_type is not None:
            check_values(values, element_type)
        # NaN in a column of floats is a number; elsewhere it is the missing value of pandas.
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        array = pa.array(values, type=element_type, from_pandas=False if kind == "f" else None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise_shortage(error)
        message = f"not every value is a {element_type or 'value of one Arrow type'}"
        raise IncompatibleValueError(message) from None
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _has_null(chunk: pa.Array) -> bool:
    if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count:
        return bool(pc.any(chunk.is_null()).as_py() or chunk.dictionary_decode().null_count)
    return bool(chunk.null_count)


@lru_cache(256)  # a state is opened for each batch
def quick_type(type: pa.DataType) -> QuickType | None:
    """Return the objects of an Arrow type that need no column; None if all do.

    Integers of more than 64 bits and text that is not valid Unicode are among these objects: the column refuses them when
    it is made.
    """
    if types.is_struct(type):
        return _quick_struct(type)
    if types.is_list(type) or types.is_large_list(type):
        return _quick_list(type)
    return leaf_rule(type).quick(type)


def convert_with_fallback(quick: QuickType, otherwise: Convert) -> Convert:
    """Return the function that converts quick objects, and calls another function for all others."""
    kind, convert = quick
    if convert is None:
        return otherwise

    def convert_any(value: Any) -> Any:
        if type(value) is kind:
            try:
                return convert(value)
            except Exception:  # noqa: BLE001, S110  # `otherwise` finds the error, if there is one
                pass
        return otherwise(value)

    return convert_any


def dictionary_key(type: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes a key of a dictionary from a type's object; None if the object itself is the key.

    Two keys are equal, with the same hash, exactly if Arrow's values are equal. Python disagrees with Arrow twice: NaN
    differs from itself, and two datetimes of one zone are equal if their clocks show the same, even an hour apart at
    the end of daylight saving time.

    Args:
        type: The values' type. For nested types only the hash of objects decides, if they have one.
    """
    plain = plain_type(type)
    if types.is_floating(plain):
        return _single_nan
    if types.is_timestamp(plain) and plain.tz is not None:
        return _unambiguous
    return None


def _single_nan(value: Any) -> Any:
    """Return the number; the same object for every NaN."""
    return math.nan if value != value else value  # noqa: PLR0124  # only NaN differs from itself


def _unambiguous(value: Any) -> Any:
    """Return a datetime that equals no other instant: the second 02:30 of a day has its offset in place of its zone."""
    if isinstance(value, dt.datetime) and value.fold:
        return value.replace(tzinfo=dt.timezone(value.utcoffset() or dt.timedelta()), fold=0)
    return value


def no_object_error(place: str, type: pa.DataType, reason: str) -> InvalidRequestError:
    """Return the error for a value without a Python object: a time beyond its calendar, text that is not UTF-8.

    It names the value's place, such as a column, and the reason, such as the name of Python's error, but no values.
    """
    message = (
        f"{place}: Python has no object for a value of type {type} ({reason}); take it as Arrow data, or give it another "
        "type"
    )
    return InvalidRequestError(message)


@contextmanager
def named_conversion(place: str, type: pa.DataType) -> Iterator[None]:
    """Convert values between Arrow and Python inside; a failure becomes one error that names the values' place.

    Raises `InvalidRequestError` if a value has no object.
    """
    try:
        yield
    except InvalidRequestError:
        raise
    except (ArithmeticError, LookupError, OSError, ValueError, pa.ArrowException) as error:
        raise no_object_error(place, type, error.__class__.__name__) from error


def _quick_struct(type_: pa.DataType) -> QuickType | None:
    quick = {field.name: quick_type(field.type) for field in type_}
    fields = [
        (field.name, each.kinds(may_be_none=field.nullable), each.convert)
        for field, each in zip(type_, quick.values(), strict=False)
        if each is not None
    ]
    if len(fields) != type_.num_fields:  # duplicate names are missing, too
        return None

    def convert(value: Any) -> Any:
        if len(value) != len(fields):
            raise NotQuickError
        made = {}
        for name, kinds, convert_item in fields:
            item = value[name]
            if type(item) not in kinds:
                raise NotQuickError
            made[name] = item if convert_item is None or item is None else convert_item(item)
        return made

    return QuickType(dict, convert)


def _quick_list(type_: pa.DataType) -> QuickType | None:
    quick = quick_type(type_.value_type)
    if quick is None:
        return None
    kinds, convert_item = quick.kinds(may_be_none=type_.value_field.nullable), quick.convert

    def convert(value: Any) -> Any:
        if not kinds.issuperset(map(type, value)):
            raise NotQuickError
        if convert_item is None:
            return value.copy()
        return [None if item is None else convert_item(item) for item in value]

    return QuickType(list, convert)


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the same as `to_pylist`, several times as fast for simple types."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            return [value for chunk in column.chunks for value in objects_of(chunk)]
        column = column.chunk(0)
    kind = column.type
    if is_text(kind):
        with suppress(pa.ArrowException):  # text is not UTF-8: `to_pylist` raises a better error
            return list(column.to_numpy(zero_copy_only=False))
    if not (
        types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
    ):
        return list(column.to_pylist())
    if not len(column):
        return []
    missing = None
    if column.null_count:
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
        plain = pa.int32() if types.is_date32(kind) else kind
        column = column.view(plain).fill_null(False if types.is_boolean(kind) else 0).view(kind)
    numbers = column.to_numpy(zero_copy_only=False)
    if types.is_date32(kind):
        days = numbers.view(np.int64)
        if not _FIRST_DAY <= days.min() <= days.max() <= _LAST_DAY:
            return list(column.to_pylist())
    objects: list[Any] = numbers.tolist()
    for index in missing or ():
        objects[index] = None
    return objects
