"""Columns of Arrow as lists of Python objects: what `to_pylist` gives, several times as fast where types are simple."""

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow import is_text

_FIRST_DAY, _LAST_DAY = -719162, 2932896  # of the years 1 and 9999, which Python can say


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column; None for null."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            return [value for chunk in column.chunks for value in objects_of(chunk)]
        column = column.chunk(0)
    kind = column.type
    if is_text(kind):
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
