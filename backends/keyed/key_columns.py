"""The columns that are given as a key's, by their types and names."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import conformed, nullable_type
from holdfast.backends.keyed.columns import combine_chunks
from holdfast.backends.keyed.compatibility import shown
from holdfast.errors import InvalidRequestError

_COLUMN = (pa.Array, pa.ChunkedArray)


def key_columns(
    given: Sequence[pa.Array | pa.ChunkedArray] | pa.RecordBatch | pa.Table, key: pa.Schema
) -> list[pa.Array]:
    """The columns of a key among what was given: arrays in order, or rows that have columns of their names.

    Raises:
        InvalidRequestError: A column is missing, or there twice, or has another type, or is none of Arrow, or
            has more values than an array holds.
    """
    if isinstance(given, pa.RecordBatch | pa.Table):
        columns = [_column(given, name) for name in key.names]
    else:
        columns = arrow_columns(given, f"the key's columns {shown(key)}")
    types = [column.type for column in columns]
    if types != key.types and list(map(nullable_type, types)) != key.types:
        listed = ", ".join(map(str, types)) or "no type"
        message = f"the key has columns {shown(key)}, and columns of {listed} were given"
        raise InvalidRequestError(message)
    return [
        conformed(combine_chunks(column), type)
        for column, type in zip(columns, key.types, strict=True)
    ]


def arrow_columns(given: Iterable[Any], what: str) -> list[pa.Array | pa.ChunkedArray]:
    """The columns that were given in a list. Raises `InvalidRequestError` for what is no list of Arrow arrays.

    Args:
        given: The columns.
        what: What they are, for errors.
    """
    is_column = isinstance(given, _COLUMN)  # a single column, whose values would pass for columns
    columns = list(given)
    if is_column or not all(isinstance(column, _COLUMN) for column in columns):
        message = (
            f"{what} are given as a list of Arrow arrays, and not as {type(given).__name__} of "
            f"{', '.join(sorted({type(column).__name__ for column in columns})) or 'nothing'}"
        )
        raise InvalidRequestError(message)
    return columns


def _column(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    count = rows.schema.names.count(name)
    if count != 1:
        message = f"the batch has {count or 'no'} columns {name!r}, and the key has one"
        raise InvalidRequestError(message)
    return rows.column(name)
