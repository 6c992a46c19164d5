"""Filters that Spark pushes down to the data source, as keys to look up.

Spark evaluates every filter again, so the rows of the keys only have to include all rows that it wants.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import pyarrow as pa

_MAX_KEYS = 1000
"""With more keys all rows are read."""


def keys_in(filters: Iterable[Any], key: pa.Schema) -> tuple[pa.Array, ...] | None:
    """Return the only keys whose rows can pass filters of `pyspark.sql.datasource`; None if filters don't name keys.

    The keys are columns, one for each of `key`.
    """
    values: dict[str, Sequence[Any]] = {}
    for each in filters:
        name, wanted = _values(each)
        if name in key.names and wanted is not None:
            values.setdefault(name, wanted)
    if values.keys() != set(key.names):
        return None
    columns: list[list[pa.Array]] = []
    for field in key:
        arrays = _arrays(values[field.name], field.type)
        if arrays is None:
            return None
        columns.append(arrays)
    if prod(map(len, columns)) > _MAX_KEYS:
        return None
    rows = list(product(*columns))
    return tuple(
        pa.concat_arrays([pa.array([], field.type), *(row[place] for row in rows)])
        for place, field in enumerate(key)
    )


def _values(each: Any) -> tuple[str, Sequence[Any] | None]:
    """Return the column that a filter compares, and the values that pass it; None if they are not a list."""
    path: Sequence[str] = getattr(each, "attribute", ())
    if len(path) != 1:
        return "", None
    match type(each).__name__:
        case "EqualTo" | "EqualNullSafe":
            return path[0], [each.value]
        case "In":
            return path[0], list(each.value)
        case "IsNull":
            return path[0], [None]
    return path[0], None


def _arrays(values: Sequence[Any], type: pa.DataType) -> list[pa.Array] | None:
    """Return an array of each different value; None if one can't be converted without loss."""
    different: list[pa.Array] = []
    for value in values:
        try:
            array = pa.array([value], type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
        if not any(array.equals(other) for other in different):
            different.append(array)
    return different
