"""Turns what users hand over into Arrow arrays of a state's type, without changing any value.

Arrow itself is too obliging here: it cuts 1.5 down to 1 for a list of integers, parses strings as
numbers, and drops fields of a struct that it doesn't know.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Elements: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table | Iterable[Any]
"""Many elements at once. Record batches and tables are elements of struct type, one a row."""


class MisfitError(Exception):
    """A value that is none of the wanted type; the message says why."""


def scalar_of(value: Any, element_type: pa.DataType) -> pa.Scalar:
    """One element, independent of `value` from now on."""
    (array,) = chunks_of([value], element_type)
    return array[0]


def chunks_of(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    """The elements as arrays, without a copy where they are Arrow data of that type.

    Raises:
        MisfitError: An element is missing (None), or doesn't fit without loss.
    """
    try:
        chunks = [_cast(chunk, element_type) for chunk in _arrays(values, element_type)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise MisfitError(str(error)) from error
    if any(_has_null(chunk) for chunk in chunks):
        message = "None is no element"
        raise MisfitError(message)
    return [chunk for chunk in chunks if len(chunk)]


def _arrays(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    if isinstance(values, pa.RecordBatch):
        return [values.to_struct_array()]
    if isinstance(values, pa.Table):
        return list(values.to_struct_array().chunks)
    if isinstance(values, pa.ChunkedArray):
        return list(values.chunks)
    if isinstance(values, pa.Array):
        return [values]
    objects = [one.as_py() if isinstance(one, pa.Scalar) else one for one in values]
    _check_objects(objects, element_type)
    return [pa.array(objects, type=element_type)]


def _check_objects(objects: Iterable[Any], wanted: pa.DataType) -> None:
    """Find what Arrow would change silently. None is allowed here: it may be inside an element."""
    present = [one for one in objects if one is not None]
    if pa.types.is_integer(wanted):
        for one in present:
            if int(one) != one:
                message = f"{one!r} is no whole number"
                raise MisfitError(message)
    elif pa.types.is_struct(wanted):
        names = {field.name for field in wanted}
        for one in present:
            if isinstance(one, Mapping) and not names.issuperset(one):
                message = f"fields {sorted(set(one) - names)} are not in {wanted}"
                raise MisfitError(message)
        for field in wanted:
            inner = [one.get(field.name) for one in present if isinstance(one, Mapping)]
            _check_objects(inner, field.type)
    elif _is_list(wanted):
        _check_objects([item for one in present for item in one], wanted.value_type)


def _cast(chunk: pa.Array, wanted: pa.DataType) -> pa.Array:
    if chunk.type.equals(wanted):
        return chunk
    if not _is_same_kind(chunk.type, wanted):
        message = f"they have type {chunk.type}"
        raise MisfitError(message)
    return chunk.cast(wanted)  # refuses to lose digits


def _is_same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast keeps what the values mean."""
    found, wanted = _plain(found), _plain(wanted)
    if pa.types.is_null(found):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        # Arrow casts structs by name, drops some fields and fills in others.
        same_names = [field.name for field in found] == [field.name for field in wanted]
        return same_names and all(map(_is_same_kind, _types(found), _types(wanted)))
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if _is_list(found) and _is_list(wanted):
        return _is_same_kind(found.value_type, wanted.value_type)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return all(map(_is_same_kind, _types(found), _types(wanted)))
    widens = pa.types.is_integer(found) and pa.types.is_floating(wanted)
    return widens or any(is_kind(found) and is_kind(wanted) for is_kind in _KINDS)


def _plain(one: pa.DataType) -> pa.DataType:
    """What the values of a dictionary type are; any other type itself."""
    return one.value_type if pa.types.is_dictionary(one) else one


def _types(one: pa.DataType) -> list[pa.DataType]:
    return [one.field(i).type for i in range(one.num_fields)]


def _is_text(one: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(one) or pa.types.is_large_string(one) or pa.types.is_string_view(one)
    )


def _is_bytes(one: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(one) or pa.types.is_large_binary(one) or pa.types.is_binary_view(one)
    )


def _is_list(one: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(one) or pa.types.is_large_list(one) or pa.types.is_fixed_size_list(one)
    )


_KINDS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    pa.types.is_fixed_size_binary,
    _is_text,
    _is_bytes,
)


def _has_null(chunk: pa.Array) -> bool:
    if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count:
        return bool(pc.any(chunk.is_null()).as_py() or chunk.dictionary_decode().null_count)
    return bool(chunk.null_count)
