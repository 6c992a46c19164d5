"""The rows of two versions of a table that differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.columns import Rows, from_arrow, same_rows
from holdfast.backends.keyed.grouping import group_rows, has_vector_sort
from holdfast.backends.keyed.table import TableRows, TableSpec


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Identities whose rows differ, ascending by sort key.

    Attributes:
        ids: Their id columns.
        before: The values of their older rows; null where it does not exist.
        after: The values of their newer rows.
        has_before: Whether each has an older row.
        has_after: Whether each has a newer row.
    """

    ids: tuple[pa.Array, ...]
    before: tuple[pa.Array, ...]
    after: tuple[pa.Array, ...]
    has_before: pa.Array
    has_after: pa.Array


def row_changes(
    spec: TableSpec, older: Sequence[TableRows], newer: Sequence[TableRows]
) -> RowChanges:
    """Compare all rows of two versions of a table with the same specification."""
    width = len(spec.id_fields)
    fields = [*spec.id_fields, *spec.values]
    sides = [_columns(rows, fields) for rows in (older, newer)]
    counts = [sum(map(len, rows)) for rows in (older, newer)]
    ids = [pa.concat_arrays([side[place] for side in sides]) for place in range(width)]
    keys = [rows.identities.sort_keys for rows in (*older, *newer)]
    sort_keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
    groups = group_rows(sort_keys, ids, by_counting=not has_vector_sort())
    rows = [np.full(len(groups), -1, np.int64) for _ in sides]
    rows[0][groups.codes[: counts[0]]] = np.arange(counts[0])
    rows[1][groups.codes[counts[0] :]] = np.arange(counts[1])
    differs = (rows[0] < 0) | (rows[1] < 0)
    common = (~differs).nonzero()[0]
    values = [[from_arrow(column) for column in side[width:]] for side in sides]
    same = same_rows(values[0], rows[0].take(common), values[1], rows[1].take(common))
    differs[common[~same]] = True
    chosen = differs.nonzero()[0]
    firsts = pa.array(groups.firsts.take(chosen))
    before, after = (
        [column.take(_indices(of_side.take(chosen))) for column in side[width:]]
        for side, of_side in zip(sides, rows, strict=True)
    )
    return RowChanges(
        tuple(column.take(firsts) for column in ids),
        tuple(before),
        tuple(after),
        pa.array(rows[0].take(chosen) >= 0),
        pa.array(rows[1].take(chosen) >= 0),
    )


def _columns(rows: Sequence[TableRows], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return the id columns and values of rows, concatenated."""
    columns = [[*each.identities.columns, *each.values] for each in rows]
    return [
        pa.concat_arrays([pa.array([], field.type), *(each[place] for each in columns)])
        for place, field in enumerate(fields)
    ]


def _indices(rows: Rows) -> pa.Array:
    """Return the rows to take; null for -1."""
    return pa.array(rows, mask=rows < 0)
