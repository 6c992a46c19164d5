"""Casts of Arrow data that keep every value, and checks of data that Arrow accepts.

Arrow itself is too permissive: it parses strings as numbers, makes large numbers infinite, drops fields of a struct that
the wanted type doesn't have, and allows nulls in fields that are not nullable. Errors name types and fields, never
values, which are user data.
"""

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow.nesting import (
    children_of,
    conform,
    fields_of,
    is_bytes,
    is_list,
    is_text,
    mapped_type,
    plain_array,
    plain_type,
    types_in,
)
from holdfast.common import raise_shortage

_DOUBLE = pa.float64()
_INDEX_INTO_NOTHING = "out of bounds: 0 (should be in [0, -1])"


def check_memory(array: pa.Array) -> None:
    """Check that the lengths, offsets and indices in an array refer only to its own memory.

    Text may be any bytes, as in Spark, except next to Arrow's extension types, which have no view as bytes. An index
    into an empty dictionary may be 0, which Arrow itself writes inside a struct that is null. Raises `pa.ArrowInvalid`
    if they refer to other memory.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        array.validate()
        _check_without_text(array)


def _check_without_text(array: pa.Array) -> None:
    # Not the first check: in a view of nested data as bytes Arrow gives nulls without a type a wrong length.
    with suppress(pa.ArrowNotImplementedError):
        array = array.view(mapped_type(array.type, _without_text, may_be_null=True))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not str(error).endswith(_INDEX_INTO_NOTHING):
            raise


def missing_field(array: pa.Array) -> str:
    """Return the first field inside these values that has a null and must not; empty if no field does."""
    if not has_required(array.type):
        return ""
    array = plain_array(array)
    for field, values in zip(fields_of(array.type), _present_in(array), strict=True):
        if not field.nullable and values.null_count:
            return str(field.name)
        name = missing_field(values)
        if name:
            return name
    return ""


def has_required(data_type: pa.DataType) -> bool:
    """Return whether some values inside the type must not be null, except keys of maps, which Arrow checks."""
    data_type = plain_type(data_type)
    fields = fields_of(data_type)
    values = fields[1:] if types.is_map(data_type) else fields
    return any(not field.nullable for field in values) or any(
        has_required(field.type) for field in fields
    )


def keeps_numbers(before: pa.Array, after: pa.Array) -> bool:
    """Return whether no number changed or became infinite in a cast; rounding a fraction is fine."""
    if not any(map(_is_narrow_float, types_in(after.type))):
        return True
    before, after = plain_array(before), plain_array(after)
    if fields_of(after.type):
        # Nulls without a type have nothing inside.
        return all(map(keeps_numbers, _present_in(before), _present_in(after)))
    if before.type.equals(after.type) or types.is_null(before.type):
        return True
    if types.is_integer(before.type):
        numbers, other = before.cast(_DOUBLE, safe=False), after.cast(_DOUBLE)
        return not pc.any(pc.not_equal(numbers, other)).as_py()
    return bool(pc.sum(pc.is_inf(after)) == pc.sum(pc.is_inf(before)))


def _is_narrow_float(data_type: pa.DataType) -> bool:
    return bool(types.is_floating(data_type) and data_type.bit_width < _DOUBLE.bit_width)


def _present_in(array: pa.Array) -> list[pa.Array]:
    """Return the values inside those that are not null."""
    return children_of(array.drop_null())


def _without_text(data_type: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of text, in the same layout."""
    if types.is_dictionary(data_type):
        values = mapped_type(data_type.value_type, _without_text)
        return pa.dictionary(data_type.index_type, values, ordered=data_type.ordered)
    if not is_text(data_type):
        return data_type
    if types.is_large_string(data_type):
        return pa.large_binary()
    return pa.binary_view() if types.is_string_view(data_type) else pa.binary()


class IncompatibleValueError(Exception):
    """Data can't be converted to the wanted type without loss; the message has the reason."""


def cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast an array to the wanted type; returns the same array if that is its type.

    Raises `IncompatibleValueError` if the array's type has another meaning, a value would change, or a value inside is
    null and must not be.
    """
    if not array.type.equals(wanted):
        array = _cast(array, wanted)
    name = missing_field(array)
    if name:
        raise IncompatibleValueError(f"field {name!r} must not be None")
    return array


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not _is_same_kind(array.type, wanted):
        raise IncompatibleValueError(f"type {array.type} can't be cast to {wanted}")
    try:
        result = conform(array, wanted)
    except pa.ArrowException as error:
        raise_shortage(error)
        result = None
    if result is None or not keeps_numbers(array, result):
        raise IncompatibleValueError(f"not every value of type {array.type} is a {wanted}")
    return result


def cast_rows(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Cast rows to the wanted schema; returns the same batch if that is its schema.

    Raises `IncompatibleValueError` if the rows have other columns, or a column can't be cast.
    """
    is_same = batch.schema.equals(wanted)
    if is_same and all(field.nullable and not has_required(field.type) for field in wanted):
        return batch
    if batch.schema.names != wanted.names:
        raise IncompatibleValueError(f"columns are {batch.schema.names}, expected {wanted.names}")
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        try:
            columns.append(cast(column, field.type))
        except IncompatibleValueError as error:
            raise IncompatibleValueError(f"column {field.name!r}: {error}") from None
        if not field.nullable and column.null_count:
            raise IncompatibleValueError(f"column {field.name!r} must not be None")
    return batch if is_same else pa.RecordBatch.from_arrays(columns, schema=wanted)


def _is_same_kind(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast keeps the meaning of the values."""
    actual, wanted = _value_type(actual), _value_type(wanted)
    if types.is_null(actual):
        return True
    if _has_same_nesting(actual, wanted):
        pairs = zip(fields_of(actual), fields_of(wanted), strict=True)
        return all(_is_same_kind(inner.type, other.type) for inner, other in pairs)
    if types.is_timestamp(actual) and types.is_timestamp(wanted):
        return (actual.tz is None) == (wanted.tz is None)
    widens = types.is_integer(actual) and types.is_floating(wanted)
    return (
        widens
        or _is_held_by_spark(actual, wanted)
        or actual.equals(wanted)
        or any(is_kind(actual) and is_kind(wanted) for is_kind in _KINDS)
    )


def _has_same_nesting(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_struct(actual) and types.is_struct(wanted):
        # Arrow casts structs by name, drops some fields and fills in others.
        return [field.name for field in actual] == [field.name for field in wanted]
    return any(is_kind(actual) and is_kind(wanted) for is_kind in (is_list, types.is_map))


def _is_held_by_spark(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether `actual` is the type in which Spark stores values of `wanted`, a type that Spark lacks."""
    if isinstance(wanted, pa.BaseExtensionType):
        return not isinstance(actual, pa.BaseExtensionType) and _is_same_kind(
            actual, wanted.storage_type
        )
    if types.is_uint64(wanted):
        return bool(types.is_decimal(actual) and actual.scale == 0)
    return is_bytes(actual) and bool(types.is_fixed_size_binary(wanted))


def _value_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values; any other type itself."""
    return data_type.value_type if types.is_dictionary(data_type) else data_type


_KINDS = (
    types.is_integer,
    types.is_floating,
    types.is_decimal,
    types.is_boolean,
    types.is_date,
    types.is_time,
    types.is_duration,
    is_text,
    is_bytes,
)
