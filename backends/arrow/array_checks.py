"""Finds what Arrow lets pass in its own data: nulls where none may be, numbers that no float holds, memory of others."""

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow.kinds import is_text
from holdfast.backends.arrow.nesting import (
    children_of,
    fields_of,
    mapped_type,
    plain_array,
    plain_type,
    types_in,
)

_DOUBLE = pa.float64()
_INDEX_INTO_NOTHING = "out of bounds: 0 (should be in [0, -1])"


def check_memory(array: pa.Array) -> None:
    """Make sure that the lengths, offsets and indices in an array lead to its own memory alone.

    Text may be any bytes, as it may in Spark, unless it is beside Arrow's extension types, which it does not show
    otherwise. An index into a dictionary of nothing may be 0, which Arrow itself writes inside of a struct that is null.

    Raises:
        pa.ArrowInvalid: They lead elsewhere.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        array.validate()
        _check_without_text(array)


def _check_without_text(array: pa.Array) -> None:
    # Not asked first: Arrow gives nulls without a type a wrong length where it shows what is around them as bytes.
    with suppress(pa.ArrowNotImplementedError):
        array = array.view(mapped_type(array.type, _without_text, may_be_null=True))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not str(error).endswith(_INDEX_INTO_NOTHING):
            raise


def missing_in(array: pa.Array) -> str:
    """The field that has a null inside of these values and must not; empty if there is none."""
    if not has_required(array.type):
        return ""
    array = plain_array(array)
    for field, values in zip(fields_of(array.type), _present_in(array), strict=True):
        if not field.nullable and values.null_count:
            return str(field.name)
        name = missing_in(values)
        if name:
            return name
    return ""


def has_required(data_type: pa.DataType) -> bool:
    """Whether some values inside of the type must not be null; keys of maps never are, Arrow sees to that."""
    data_type = plain_type(data_type)
    fields = fields_of(data_type)
    values = fields[1:] if types.is_map(data_type) else fields
    return any(not field.nullable for field in values) or any(
        has_required(field.type) for field in fields
    )


def are_kept(before: pa.Array, after: pa.Array) -> bool:
    """Whether no number became another one, or infinite, by a cast; rounding a fraction is fine."""
    if not any(map(_is_narrow_float, types_in(after.type))):
        return True
    before, after = plain_array(before), plain_array(after)
    if fields_of(after.type):
        # Nothing is inside of nulls without a type.
        return all(map(are_kept, _present_in(before), _present_in(after)))
    if before.type.equals(after.type) or types.is_null(before.type):
        return True
    if types.is_integer(before.type):
        numbers, other = before.cast(_DOUBLE, safe=False), after.cast(_DOUBLE)
        return not pc.any(pc.not_equal(numbers, other)).as_py()
    return bool(pc.sum(pc.is_inf(after)) == pc.sum(pc.is_inf(before)))


def _is_narrow_float(data_type: pa.DataType) -> bool:
    return bool(types.is_floating(data_type) and data_type.bit_width < _DOUBLE.bit_width)


def _present_in(array: pa.Array) -> list[pa.Array]:
    """The values inside of those that are not null."""
    return children_of(array.drop_null())


def _without_text(data_type: pa.DataType) -> pa.DataType:
    """The type with bytes in place of text, laid out alike."""
    if types.is_dictionary(data_type):
        values = mapped_type(data_type.value_type, _without_text)
        return pa.dictionary(data_type.index_type, values, ordered=data_type.ordered)
    if not is_text(data_type):
        return data_type
    if types.is_large_string(data_type):
        return pa.large_binary()
    return pa.binary_view() if types.is_string_view(data_type) else pa.binary()
