"""Rows of several sources as those of a single one: one row an identity.

Of rows with one identity the newest counts. A DELETE and an expired row hide what is older; operands are
folded, oldest first, down to the newest PUT or DELETE. Where nothing older can be, at the bottom, what hides
is dropped. An expired operand hides nothing: clocks go back, so an older operand can have a later time. The time of
folded operands is the latest of theirs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import run_starts
from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    concatenated,
    cut,
    fold_values,
    from_arrow,
    same_rows,
    take,
    values_of_rows,
)
from holdfast.backends.keyed.segments.rows import Operations, RowSource, SortedRows, Times
from holdfast.backends.keyed.table import Operation, SortKeys, TableSpec

_PUT, _APPEND, _DELETE = (np.uint8(operation) for operation in Operation)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a source from `first` up to `end`."""

    source: RowSource
    first: int
    end: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.end - self.first


def whole(source: RowSource) -> Part:
    """All rows of a source."""
    return Part(source, 0, source.rows)


def is_expired(times_ms: Times, spec: TableSpec, now_ms: int) -> npt.NDArray[np.bool_]:
    """Which rows' time is over, by when they were written."""
    assert spec.ttl_ms is not None
    return times_ms <= now_ms - spec.ttl_ms


def empty_rows(spec: TableSpec) -> SortedRows:
    """No rows of a table."""
    ids = [from_arrow(pa.array([], field.type)) for field in spec.id_fields]
    values = [from_arrow(pa.array([], field.type)) for field in spec.values]
    times = None if spec.ttl_ms is None else np.empty(0, np.int64)
    return SortedRows(np.empty(0, np.uint64), None, times, ids, values)


def merged(
    parts: Sequence[Part], spec: TableSpec, *, is_bottom: bool, now_ms: int | None
) -> SortedRows:
    """The rows of all parts as those of one.

    Args:
        parts: Newest first.
        spec: What the table holds.
        is_bottom: Whether there is nothing older anywhere.
        now_ms: The time by which rows expire; None if none does.

    Raises:
        InvalidRequestError: A sum is not among the numbers of its type.
        CheckpointCorruptedError: A part can't be read.
    """
    parts = [part for part in parts if part.rows]
    if not parts:
        return empty_rows(spec)
    rows = _joined(parts, spec)
    operations = rows.operations
    if rows.times_ms is not None and spec.ttl_ms is not None and now_ms is not None:
        expired = is_expired(rows.times_ms, spec, now_ms)
        if expired.any():
            operations = np.zeros(rows.rows, np.uint8) if operations is None else operations.copy()
            operations[expired & (operations != _APPEND)] = _DELETE
    if len(parts) == 1 and not (is_bottom and operations is not None):
        return SortedRows(rows.sort_keys, operations, rows.times_ms, rows.ids, rows.values)
    order, is_newest = _by_identity(rows.sort_keys, rows.ids)
    if operations is None or not (spec.folds and (operations == _APPEND).any()):
        return _newest(rows, operations, order.take(is_newest.nonzero()[0]), is_bottom=is_bottom)
    return _folded(rows, operations, order, is_newest, spec, is_bottom=is_bottom, now_ms=now_ms)


def _joined(parts: Sequence[Part], spec: TableSpec) -> SortedRows:
    """All rows, one part behind the other."""
    sort_keys = [part.source.sort_keys[part.first : part.end] for part in parts]
    operations = None
    if any(part.source.operations is not None for part in parts):
        operations = _concatenated([_operations(part) for part in parts])
    times = None
    if spec.ttl_ms is not None:
        times = _concatenated([_times(part) for part in parts])
    ids = [[cut(column, part.first, part.end) for column in part.source.ids] for part in parts]
    values = [part.source.values_between(part.first, part.end) for part in parts]
    return SortedRows(
        _concatenated(sort_keys),
        operations,
        times,
        _side_by_side(ids, [field.type for field in spec.id_fields]),
        _side_by_side(values, spec.values.types),
    )


_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def _concatenated(arrays: Sequence[_Array]) -> _Array:
    return arrays[0] if len(arrays) == 1 else cast("_Array", np.concatenate(arrays))


def _operations(part: Part) -> Operations:
    operations = part.source.operations
    if operations is None:
        return np.zeros(part.rows, np.uint8)
    return operations[part.first : part.end]


def _times(part: Part) -> Times:
    times = part.source.times_ms
    assert times is not None
    return times[part.first : part.end]


def _side_by_side(parts: Sequence[Sequence[Column]], types: Sequence[pa.DataType]) -> list[Column]:
    return [
        concatenated([columns[number] for columns in parts], type)
        for number, type in enumerate(types)
    ]


def _by_identity(sort_keys: SortKeys, ids: Sequence[Column]) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """An order in which the rows of an identity lie side by side, newest first; and which of them is the newest."""
    order = np.argsort(sort_keys, kind="stable")
    ordered = sort_keys.take(order)
    is_newest = np.ones(len(order), bool)
    alike = (ordered[1:] == ordered[:-1]).nonzero()[0]
    if len(alike):
        same = same_rows(ids, order.take(alike + 1), ids, order.take(alike))
        if not same.all():
            order = _disentangled(order, ordered, ids, alike[~same])
            same = same_rows(ids, order.take(alike + 1), ids, order.take(alike))
        is_newest[alike[same] + 1] = False
    return order, is_newest


def _disentangled(order: Rows, ordered: SortKeys, ids: Sequence[Column], unlike: Rows) -> Rows:
    """The order, with the rows of an identity side by side where several have one sort key.

    Args:
        order: Rows by sort key, newest first.
        ordered: Their sort keys.
        ids: The id columns of all rows.
        unlike: Positions in the order that have the sort key of the next, and another identity.
    """
    group = np.cumsum(run_starts(ordered)) - 1
    is_mixed = np.zeros(int(group[-1]) + 1, bool)
    is_mixed[group.take(unlike)] = True
    at = is_mixed.take(group).nonzero()[0]
    rows, groups = order.take(at), group.take(at)
    sorted_at = _sorted_by_arrow(groups, [take(column, rows) for column in ids])
    if sorted_at is None:
        numbers: dict[tuple[object, ...], int] = {}
        identities = zip(groups.tolist(), values_of_rows(ids, rows), strict=True)
        identity = [numbers.setdefault((number, *key), len(numbers)) for number, key in identities]
        sorted_at = np.lexsort((np.array(identity), groups))  # stable: the newest stays first
    order = order.copy()
    order[at] = rows.take(sorted_at)
    return order


def _sorted_by_arrow(groups: Rows, ids: Sequence[Column]) -> Rows | None:
    """Positions by group, then by identity, then as they were; None if Arrow can't sort an id column."""
    sorted_by = [part for column in ids for part in _parts_to_sort_by(column)]
    table = {f"id {number}": column for number, column in enumerate(sorted_by)}
    keys = [(name, "ascending") for name in ("group", *table, "row")]
    table |= {"group": groups, "row": np.arange(len(groups))}
    try:
        indices = pc.sort_indices(pa.table(table), keys)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    return cast("Rows", indices.to_numpy().astype(np.int64))


def _parts_to_sort_by(column: Column) -> Iterator[Column]:
    """The column, or of structs whether there is a value, and each field: Arrow takes null for a struct of nulls."""
    if isinstance(column, pa.StructArray):
        yield column.is_valid()
        for field in column.flatten():
            yield from _parts_to_sort_by(field)
    elif isinstance(column, np.ndarray) and column.dtype.kind == "f":
        yield column + column.dtype.type(0)  # -0.0 becomes 0.0, its equal
    else:
        yield column


def _newest(
    rows: SortedRows, operations: Operations | None, newest: Rows, *, is_bottom: bool
) -> SortedRows:
    """The newest row of each identity, as it is."""
    kept = None if operations is None else operations.take(newest)
    if kept is not None and is_bottom:
        newest, kept = newest[kept != _DELETE], None
    if kept is not None and not kept.any():
        kept = None
    return SortedRows(
        rows.sort_keys.take(newest),
        kept,
        None if rows.times_ms is None else rows.times_ms.take(newest),
        [take(column, newest) for column in rows.ids],
        [take(column, newest) for column in rows.values],
    )


def _folded(
    rows: SortedRows,
    operations: Operations,
    order: Rows,
    is_newest: npt.NDArray[np.bool_],
    spec: TableSpec,
    *,
    is_bottom: bool,
    now_ms: int | None,
) -> SortedRows:
    """The operands of each identity as one row: those that are newer than the newest PUT or DELETE, and that PUT."""
    newest = is_newest.nonzero()[0]
    groups = len(newest)
    ordered = operations.take(order)
    group = np.cumsum(is_newest) - 1
    ends_history = (ordered != _APPEND).astype(np.int64)
    ends_before = np.cumsum(ends_history) - ends_history
    is_live = ends_before == ends_before.take(newest).take(group)
    is_whole = np.zeros(groups, bool)
    is_whole[group[(ends_history == 1) & is_live]] = True
    operands = (is_live & (ordered != _DELETE)).nonzero()[0]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group.take(operands), minlength=groups))])
    oldest_first = order.take(operands).take(_turned(group.take(operands), bounds))
    values = fold_values([take(column, oldest_first) for column in rows.values], bounds, spec)
    is_empty = bounds[1:] == bounds[:-1]
    folded_operations = np.where(is_whole | is_bottom, _PUT, _APPEND).astype(np.uint8)
    folded_operations[is_empty] = _DELETE
    at = order.take(newest)
    times = rows.times_ms
    is_dropped = is_empty
    if times is not None:
        latest = times.take(at)  # of a DELETE its own
        filled = (~is_empty).nonzero()[0]
        if len(filled):
            latest[filled] = np.maximum.reduceat(times.take(oldest_first), bounds.take(filled))
        times = latest
        if now_ms is not None:
            is_dropped = is_empty | is_expired(times, spec, now_ms)
    if is_bottom and is_dropped.any():
        kept = (~is_dropped).nonzero()[0]
        at, values = at.take(kept), [take(column, kept) for column in values]
        folded_operations = folded_operations.take(kept)
        times = None if times is None else times.take(kept)
    return SortedRows(
        rows.sort_keys.take(at),
        folded_operations if folded_operations.any() else None,
        times,
        [take(column, at) for column in rows.ids],
        values,
    )


def _turned(group: Rows, bounds: Rows) -> Rows:
    """Positions that turn the rows of each group around."""
    return bounds.take(group) + bounds.take(group + 1) - 1 - np.arange(len(group))
