"""Casts of Arrow data that keep every value.

Arrow itself is too obliging here: it parses strings as numbers, makes large numbers infinite, and
drops fields of a struct that it doesn't know. Errors name types and fields, never values: those are
rows of somebody's stream.
"""

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.array_checks import are_kept, has_required, missing_in
from holdfast.backends.arrow.kinds import is_bytes, is_list, is_text
from holdfast.backends.arrow.nesting import conformed, fields_of
from holdfast.common import raise_shortage


class MisfitError(Exception):
    """Data is none of the wanted type, and can't be made so without loss; the message says why."""


def cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array as the wanted type; the same array if that is its type.

    Raises:
        MisfitError: The array's type is of another kind, a value would change, or a value inside is
            null and must not be.
    """
    return _without_missing(array if array.type.equals(wanted) else _cast(array, wanted))


def _without_missing(array: pa.Array) -> pa.Array:
    name = missing_in(array)
    if name:
        message = f"field {name!r} must not be None"
        raise MisfitError(message)
    return array


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not _is_same_kind(array.type, wanted):
        message = f"type {array.type} is no {wanted}"
        raise MisfitError(message)
    try:
        result = conformed(array, wanted)
    except pa.ArrowException as error:
        raise_shortage(error)
        result = None
    if result is None or not are_kept(array, result):
        message = f"not every value of type {array.type} is a {wanted}"
        raise MisfitError(message)
    return result


def cast_rows(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The rows as the wanted schema says; the same batch if they are so already.

    Raises:
        MisfitError: The rows have other columns, or a column doesn't fit.
    """
    is_same = batch.schema.equals(wanted)
    if is_same and all(field.nullable and not has_required(field.type) for field in wanted):
        return batch
    if batch.schema.names != wanted.names:
        message = f"columns {batch.schema.names} are not {wanted.names}"
        raise MisfitError(message)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        try:
            columns.append(cast(column, field.type))
        except MisfitError as error:
            message = f"column {field.name!r}: {error}"
            raise MisfitError(message) from None
        if not field.nullable and column.null_count:
            message = f"column {field.name!r} must not be None"
            raise MisfitError(message)
    return batch if is_same else pa.RecordBatch.from_arrays(columns, schema=wanted)


def _is_same_kind(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast keeps what the values mean."""
    actual, wanted = _decoded(actual), _decoded(wanted)
    if types.is_null(actual):
        return True
    if _are_nested_alike(actual, wanted):
        return all(map(_is_same_kind, _types_of(actual), _types_of(wanted)))
    if types.is_timestamp(actual) and types.is_timestamp(wanted):
        return (actual.tz is None) == (wanted.tz is None)
    widens = types.is_integer(actual) and types.is_floating(wanted)
    return (
        widens
        or _is_held_by_spark(actual, wanted)
        or actual.equals(wanted)
        or any(is_kind(actual) and is_kind(wanted) for is_kind in _KINDS)
    )


def _are_nested_alike(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_struct(actual) and types.is_struct(wanted):
        # Arrow casts structs by name, drops some fields and fills in others.
        return [field.name for field in actual] == [field.name for field in wanted]
    return any(is_kind(actual) and is_kind(wanted) for is_kind in (is_list, types.is_map))


def _is_held_by_spark(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `actual` is the type in which Spark holds values of `wanted`, which it doesn't have."""
    if isinstance(wanted, pa.BaseExtensionType):
        return not isinstance(actual, pa.BaseExtensionType) and _is_same_kind(
            actual, wanted.storage_type
        )
    if types.is_uint64(wanted):
        return bool(types.is_decimal(actual) and actual.scale == 0)
    return is_bytes(actual) and bool(types.is_fixed_size_binary(wanted))


def _decoded(data_type: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values; any other type itself."""
    return data_type.value_type if types.is_dictionary(data_type) else data_type


def _types_of(data_type: pa.DataType) -> list[pa.DataType]:
    return [field.type for field in fields_of(data_type)]


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
