"""Columns without what they only share with the columns that they were cut out of.

A slice of most columns is written without the rest. Three kinds of columns are not: views keep all texts
that the column was made with, dictionaries all values, list views all items. After a rescale ten subtasks
may share such a state, and each would store all of it.
"""

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow.casts import is_list_view

_NUMBERS_OF_A_VIEW = 4
"""What a column of views has for each text: numbers of 32 bits, its length first."""


def trimmed(rows: pa.Table) -> pa.Table:
    """The rows, with little more memory than they need; the same table if nothing in it is shared."""
    plain_types = [_plain(field.type) for field in rows.schema]
    if all(plain is None for plain in plain_types):
        return rows
    columns = [
        column
        if plain is None
        else pa.chunked_array(
            [_trimmed(chunk, plain) for chunk in column.chunks if len(chunk)], column.type
        )
        for column, plain in zip(rows.columns, plain_types, strict=True)
    ]
    return pa.table(columns, rows.schema)


def _trimmed(array: pa.Array, plain: pa.DataType) -> pa.Array:
    if not _has_slack(array):
        return array
    array = pa.concat_arrays([array])  # this cuts list views, and nested types around them
    if plain.equals(array.type):
        return array
    # A cast there and back copies only what is used. Arrow can't cast all types; the others stay large.
    with suppress(pa.ArrowException):
        anew = array.cast(plain).cast(array.type)
        if anew.type.equals(array.type):
            return anew
    return array


def _plain(type: pa.DataType) -> pa.DataType | None:
    """The type without views and dictionaries; None if it has neither, nor a list view."""
    if types.is_string_view(type):
        return pa.large_string()
    if types.is_binary_view(type):
        return pa.large_binary()
    if types.is_dictionary(type):
        # An ordered dictionary's order says more than the rows do.
        return None if type.ordered else type.value_type
    return _plain_nested(type) if types.is_nested(type) else None


def _plain_nested(type: pa.DataType) -> pa.DataType | None:
    if types.is_struct(type):
        inner = [_plain(field.type) for field in type]
        if all(plain is None for plain in inner):
            return None
        return pa.struct(
            [
                field if plain is None else field.with_type(plain)
                for field, plain in zip(type, inner, strict=True)
            ]
        )
    if types.is_map(type):
        key, item = _plain(type.key_type), _plain(type.item_type)
        if key is None and item is None:
            return None
        return pa.map_(
            type.key_type if key is None else key,
            type.item_field if item is None else type.item_field.with_type(item),
            keys_sorted=type.keys_sorted,
        )
    return _plain_list(type)


def _plain_list(type: pa.DataType) -> pa.DataType | None:
    make = next((make for is_kind, make in _LISTS if is_kind(type)), None)
    if make is None:
        return None
    inner = _plain(type.value_type)
    if inner is not None:
        return make(type, type.value_field.with_type(inner))
    return type if is_list_view(type) else None


_LISTS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.Field], pa.DataType]], ...
] = (
    (types.is_list, lambda _, item: pa.list_(item)),
    (types.is_large_list, lambda _, item: pa.large_list(item)),
    (types.is_fixed_size_list, lambda whole, item: pa.list_(item, whole.list_size)),
    (types.is_list_view, lambda _, item: pa.list_view(item)),
    (types.is_large_list_view, lambda _, item: pa.large_list_view(item)),
)


def _has_slack(array: pa.Array) -> bool:
    """Whether the array keeps half as much again as its rows need, or more."""
    type = array.type
    if types.is_dictionary(type):
        return bool(not type.ordered and len(array.dictionary) > len(array))
    if types.is_string_view(type) or types.is_binary_view(type):
        # An array that was put together of parts may name a buffer several times.
        kept = {buffer.address: buffer.size for buffer in array.buffers()[2:]}
        return bool(2 * sum(kept.values()) > 3 * _view_bytes(array))
    if types.is_struct(type):
        return any(_has_slack(array.field(i)) for i in range(type.num_fields))
    if types.is_map(type):
        entries = array.offsets
        first, end = entries[0].as_py(), entries[-1].as_py()
        inside = (array.keys, array.items)
        return any(_has_slack(values.slice(first, end - first)) for values in inside)
    if is_list_view(type):
        needed = pc.sum(pc.list_value_length(array)).as_py() or 0
        return bool(2 * len(array.values) > 3 * needed) or _has_slack(array.values)
    if any(is_kind(type) for is_kind, _ in _LISTS):
        return _has_slack(array.flatten())
    return False


def _view_bytes(array: pa.Array) -> int:
    """About the length of all texts: short ones are counted, although they lie elsewhere."""
    views = array.buffers()[1]
    count = _NUMBERS_OF_A_VIEW * (views.size // (4 * _NUMBERS_OF_A_VIEW))
    numbers = pa.Array.from_buffers(pa.int32(), count, [None, views]).to_numpy()
    first, end = (_NUMBERS_OF_A_VIEW * row for row in (array.offset, array.offset + len(array)))
    return int(numbers[first:end:_NUMBERS_OF_A_VIEW].sum(dtype="int64"))
