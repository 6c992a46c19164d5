"""Columns without what they only share with the columns that they were cut out of.

A slice of most columns is written without the rest. Three kinds of columns are not: views keep all texts
that the column was made with, dictionaries all values, list views all items. After a rescale ten subtasks
may share such a state, and each would store all of it.
"""

from contextlib import suppress

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.kinds import is_list_view
from holdfast.backends.arrow.nesting import children_of, mapped_type, offsets_of, types_in

_NUMBERS_OF_A_VIEW = 4
"""How many numbers of 32 bits a column of views has for each text; the first is the text's length."""


def trimmed(rows: pa.Table) -> pa.Table:
    """The rows, with little more memory than they need; the same table if nothing in it is shared."""
    may_share = [any(map(_may_share, types_in(field.type))) for field in rows.schema]
    if not any(may_share):
        return rows
    columns = [
        pa.chunked_array([_trimmed(chunk) for chunk in column.chunks if len(chunk)], column.type)
        if is_looked_at
        else column
        for column, is_looked_at in zip(rows.columns, may_share, strict=True)
    ]
    return pa.table(columns, rows.schema)


def _trimmed(array: pa.Array) -> pa.Array:
    if not _has_slack(array):
        return array
    array = pa.concat_arrays([array])  # this cuts list views, and nested types around them
    plain = mapped_type(array.type, _plain)
    if plain.equals(array.type):
        return array
    # A cast there and back copies only what is used. Arrow can't cast all types; the others stay large.
    with suppress(pa.ArrowException):
        anew = array.cast(plain).cast(array.type)
        if anew.type.equals(array.type):
            return anew
    return array


def _may_share(type: pa.DataType) -> bool:
    """Whether columns of the type may keep more than their rows; what is inside of it is not looked at."""
    return is_list_view(type) or not _plain(type).equals(type)


def _plain(type: pa.DataType) -> pa.DataType:
    """The type without views, and without a dictionary; what is inside of it is not looked at."""
    if types.is_string_view(type):
        return pa.large_string()
    if types.is_binary_view(type):
        return pa.large_binary()
    # An ordered dictionary's order says more than the rows do.
    return type.value_type if types.is_dictionary(type) and not type.ordered else type


def _has_slack(array: pa.Array) -> bool:
    """Whether the array keeps half as much again as its rows need, or more."""
    type = array.type
    if types.is_dictionary(type):
        return bool(not type.ordered and len(array.dictionary) > len(array))
    if types.is_string_view(type) or types.is_binary_view(type):
        # An array that was put together of parts may name a buffer several times.
        kept = {buffer.address: buffer.size for buffer in array.buffers()[2:] if buffer}
        return bool(2 * sum(kept.values()) > 3 * _view_bytes(array))
    if is_list_view(type):
        needed = offsets_of(array)[-1]
        return bool(2 * len(array.values) > 3 * needed) or _has_slack(array.values)
    return any(map(_has_slack, children_of(array)))


def _view_bytes(array: pa.Array) -> int:
    """About the length of all texts: short ones are counted, although they lie elsewhere."""
    views = array.buffers()[1]
    count = _NUMBERS_OF_A_VIEW * (views.size // (4 * _NUMBERS_OF_A_VIEW))
    numbers = pa.Array.from_buffers(pa.int32(), count, [None, views]).to_numpy()
    first, end = (_NUMBERS_OF_A_VIEW * row for row in (array.offset, array.offset + len(array)))
    return int(numbers[first:end:_NUMBERS_OF_A_VIEW].sum(dtype="int64"))
