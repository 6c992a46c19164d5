"""Rows of keyed state that differ between two checkpoints."""

from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.inspection.keyed_parts import Table, shown_values
from holdfast.backends.inspection.reading import readable_state, tables_in
from holdfast.backends.inspection.state_parts import (
    CHANGED,
    VALUE,
    ReadableState,
    ShownColumn,
    to_shown,
)
from holdfast.backends.keyed import row_changes, sort_key_range
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import hold_found_checkpoint

_COLUMNS = ("change", "before", "after")

_STEP_ROWS = 1 << 20
"""Approximate number of stored rows that are compared at a time."""


def state_changes(
    before: str | PathLike[str],
    after: str | PathLike[str],
    operator: str | None = None,
    state: str | None = None,
    *,
    kind: str | None = None,
) -> pa.Table:
    """Return the rows of keyed state that differ between two checkpoints or savepoints of a job.

    The columns are `change`, which is `added`, `removed` or `changed`; the columns of the key, the namespace and the sub key;
    and, if the state has values, `before` and `after`, null where there is no row. Parts of the state that are in the
    same files of both checkpoints are not read. The rest is compared piece by piece, so that only the differences have to
    fit into memory.

    Args:
        before: Pointer of the older one, as for `read_state`.
        after: Pointer of the newer one.
        operator: As for `read_state`.
        state: As for `read_state`.
        kind: As for `read_state`.

    Raises:
        InvalidRequestError: There is no such state, or it has no keys; or its columns, types or number of key groups
            differ.
        StateMigrationError: As for `read_state`.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    with hold_found_checkpoint(before) as old, hold_found_checkpoint(after) as new:
        older, newer = (
            readable_state(checkpoint.metadata, operator, state, kind=kind)
            for checkpoint in (old, new)
        )
        _check_comparable(older, newer)
        batches = list(_differences(older, newer))
        return pa.Table.from_batches(batches, _schema(older))


def _check_comparable(older: ReadableState, newer: ReadableState) -> None:
    for readable in (older, newer):
        if not tables_in(readable):
            raise InvalidRequestError(f"the state is {readable.kind}, which has no keys")
    if older.columns != newer.columns or not older.stored.equals(newer.stored):
        message = (
            f"the state has the columns {_text(older)} in the first checkpoint, and {_text(newer)} in the second; "
            "compare the results of read_state"
        )
        raise InvalidRequestError(message)
    if older.max_parallelism != newer.max_parallelism:
        message = (
            f"the operator has {older.max_parallelism} key groups in the first checkpoint, and "
            f"{newer.max_parallelism} in the second; compare the results of read_state"
        )
        raise InvalidRequestError(message)


def _text(readable: ReadableState) -> str:
    return ", ".join(f"{column.name}: {column.stored_name}" for column in readable.columns)


def _differences(older: ReadableState, newer: ReadableState) -> Iterator[pa.RecordBatch]:
    schema = _schema(older)
    sides = [tables_in(older), tables_in(newer)]
    spec = sides[1][0].table.spec
    for low, high in _ranges(sides, newer.max_parallelism):
        parts = [_within(tables, low, high) for tables in sides]
        if _has_same_files(*parts):
            continue
        changes = row_changes(
            spec, *([rows for part in of_side for rows in part.rows()] for of_side in parts)
        )
        if not len(changes.has_before):
            continue
        names = pc.if_else(
            changes.has_before, pc.if_else(changes.has_after, "changed", "removed"), "added"
        )
        ids, values = _split(older)
        columns = [to_shown(column, array) for column, array in zip(ids, changes.ids, strict=True)]
        for column in values:
            for stored, has_row in (
                (changes.before, changes.has_before),
                (changes.after, changes.has_after),
            ):
                (shown,) = shown_values(spec, stored)
                rows = pc.if_else(has_row, pa.array(np.arange(len(shown))), None)
                # By rows, so that a struct is null as a whole.
                columns.append(to_shown(column, shown).take(rows))
        yield pa.record_batch([names, *columns], schema=schema)


def _schema(readable: ReadableState) -> pa.Schema:
    change, *sides = _COLUMNS
    ids, values = _split(readable)
    fields = [(change, pa.string())]
    for column in ids:
        name = f"key.{column.name}" if column.name in _COLUMNS else column.name
        fields.append((name, column.type))
    fields += [(side, column.type) for column in values for side in sides]
    return pa.schema(fields)


def _split(readable: ReadableState) -> tuple[list[ShownColumn], list[ShownColumn]]:
    """Return the columns that identify a row, and that of its value, if it has one."""
    columns = [column for column in readable.columns if column.name != CHANGED]
    has_value = columns[-1].name == VALUE
    return (columns[:-1], columns[-1:]) if has_value else (columns, [])


def _ranges(sides: Sequence[Sequence[Table]], groups: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of sort keys that have about `_STEP_ROWS` rows, each of whole key groups."""
    rows = max(sum(table.elements for table in tables) for tables in sides)
    step = max(1, groups * _STEP_ROWS // max(1, rows))
    for first in range(0, groups, step):
        yield sort_key_range(KeyGroupRange(first, min(first + step, groups) - 1))


def _within(tables: Sequence[Table], low: int, high: int) -> list[Table]:
    """Return the parts of tables with sort keys in a range."""
    parts = (table.within(low, high) for table in tables)
    return [part for part in parts if part.table.runs]


def _has_same_files(older: Sequence[Table], newer: Sequence[Table]) -> bool:
    """Return whether both have the same rows of the same segments."""
    return [(part.table.specs, part.table.runs) for part in older] == [
        (part.table.specs, part.table.runs) for part in newer
    ]
