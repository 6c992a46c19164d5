"""Looks up the rows of many identities at once, in the layers of a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columnar.needles import Needles, first_rows, rows_by_number
from holdfast.backends.keyed.columns import Column, Rows, same_rows, take
from holdfast.backends.keyed.segments import NEVER, Layer, RowSource, is_expired
from holdfast.backends.keyed.table import Flags, Operation, SortKeys, TableSpec

_NEEDLES_OF_A_HIT = 8
"""About how many keys are looked for in a newer layer for each one that it has."""

Hits = list[tuple[Rows, list[Column]]]
"""Positions of identities, and the values of the row that each has in a source."""


@dataclass(frozen=True, slots=True)
class Level:
    """Layers that don't overlap, ascending.

    Attributes:
        ranges: For each layer the least sort key, and the least above its own.
        layer: Returns a layer by its number.
        is_bottom: Whether most of what is looked for is expected here.
    """

    ranges: Sequence[tuple[int, int]]
    layer: Callable[[int], Layer]
    is_bottom: bool = False


def look_up(
    levels: Iterable[Level],
    spec: TableSpec,
    sort_keys: SortKeys,
    ids: Sequence[Column],
    *,
    now_ms: int | None,
) -> Hits:
    """The rows that count, those of newer levels first.

    Args:
        levels: Newest first; the next is asked for what the ones before leave open.
        spec: What the table holds. Without folds an identity has one row at most.
        sort_keys: The sort keys of the identities, ascending.
        ids: The id columns of the identities.
        now_ms: The time by which rows expire; None if none does.
    """
    search = _Search(spec, sort_keys, ids, now_ms)
    for level in levels:
        if not len(search.needles):
            break
        for layer, first, end in _places(level, search.needles.sort_keys):
            search.ask(layer, first, end, is_bottom=level.is_bottom)
        search.go_on()
    return search.living_hits()


class _Search:
    """Which identities are still looked for.

    Attributes:
        hits: The rows that count.
        needles: The sort keys that are looked for: of all identities that are open, and some that are not.
    """

    def __init__(
        self, spec: TableSpec, sort_keys: SortKeys, ids: Sequence[Column], now_ms: int | None
    ) -> None:
        self.hits: Hits = []
        self.needles = Needles(sort_keys)
        self._spec = spec
        self._sort_keys = sort_keys
        self._ids = ids
        self._now_ms = now_ms
        self._identities: Rows | None = None  # of the needles; None if these are of all identities
        self._is_open = np.ones(len(sort_keys), bool)
        self._closed = 0  # of the needles
        self._lives: Flags | None = None  # for each identity, once an operand has expired

    def living_hits(self) -> Hits:
        """The rows that count, without those of identities of which every operand has expired."""
        lives = self._lives
        if lives is None:
            return self.hits
        hits = []
        for identities, values in self.hits:
            chosen = lives.take(identities).nonzero()[0]
            hits.append((identities.take(chosen), [take(column, chosen) for column in values]))
        return hits

    def ask(self, layer: Layer, first: int, end: int, *, is_bottom: bool) -> None:
        """Look into a layer for the needles from `first` up to `end`."""
        source = layer.source
        source.expect(end - first if is_bottom else (end - first) // _NEEDLES_OF_A_HIT)
        where = self._rows_by_number(source, first, end) if is_bottom else None
        is_verified = where is not None
        if where is None:
            where = first_rows(source, self.needles, first, end, with_filter=not is_bottom)
        if where is None:
            return
        identities, rows = where
        if self._identities is not None:
            identities = self._identities.take(identities)
        if self._closed:
            still = self._is_open.take(identities)
            if not still.all():
                identities, rows = identities[still], rows[still]
        if not is_verified:
            identities, rows = _verified(source, self._sort_keys, self._ids, identities, rows)
        if layer.dead_up_to_ms != NEVER:
            living = layer.is_living(rows)
            identities, rows = identities[living], rows[living]
        if not len(identities):
            return
        done = self._accept(source, identities, rows)
        if not is_bottom:
            self._is_open[done] = False
            self._closed += len(done)

    def _rows_by_number(self, source: RowSource, first: int, end: int) -> tuple[Rows, Rows] | None:
        """Which of the needles from `first` up to `end` a source has, and their rows.

        None if identities aren't whole numbers, or the source has no directory: then they have to be looked for
        by sort key, and verified.
        """
        if len(self._ids) != 1 or source.rows <= (end - first) >> 1:
            return None
        wanted, directory = self._ids[0], source.directory
        if directory is None or not _is_whole_numbers(wanted):
            return None
        numbers = source.ids[0]
        if not _is_whole_numbers(numbers):  # there are nulls
            return None
        wanted = (
            wanted[first:end]
            if self._identities is None
            else wanted.take(self._identities[first:end])
        )
        hits, rows = rows_by_number(directory, numbers, self.needles.sort_keys[first:end], wanted)
        return (hits + first if first else hits), rows

    def go_on(self) -> None:
        """Leave out the needles that need no older rows, if they are many."""
        if self._closed * 4 > len(self.needles):
            if self._identities is None:
                self._identities = self._is_open.nonzero()[0]
            else:
                self._identities = self._identities.compress(self._is_open.take(self._identities))
            self.needles = Needles(self._sort_keys.take(self._identities))
            self._closed = 0

    def _accept(self, source: RowSource, identities: Rows, rows: Rows) -> Rows:
        """Note what counts of the rows; gives the identities for which older rows don't matter."""
        operations = None if source.operations is None else source.operations.take(rows)
        if (
            self._spec.ttl_ms is not None and self._now_ms is not None
        ):  # what has expired is like a DELETE
            times = source.times_ms
            assert times is not None
            expired = is_expired(times.take(rows), self._spec, self._now_ms)
            if expired.any():
                operations = np.zeros(len(rows), np.uint8) if operations is None else operations
                operands = operations == Operation.APPEND
                operations[expired & ~operands] = Operation.DELETE
                if self._lives is None and (expired & operands).any():
                    self._lives = np.zeros(len(self._is_open), np.bool_)
                    for known, _ in self.hits:
                        self._lives[known] = True
            if self._lives is not None:
                self._lives[identities[~expired]] = True
        if operations is None:
            self.hits.append((identities, source.values_at(rows)))
            return identities
        counts = operations != Operation.DELETE
        if counts.all():
            self.hits.append((identities, source.values_at(rows)))
        elif counts.any():
            self.hits.append((identities[counts], source.values_at(rows[counts])))
        return identities[operations != Operation.APPEND] if self._spec.folds else identities


def _is_whole_numbers(column: Column) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(column, np.ndarray) and column.dtype.kind in "iu"


def _places(level: Level, sort_keys: SortKeys) -> list[tuple[Layer, int, int]]:
    """Each layer that has sort keys in its range, and which of them."""
    bounds = sort_keys.searchsorted(np.array(level.ranges, np.uint64)).tolist()
    return [
        (level.layer(number), first, end)
        for number, (first, end) in enumerate(bounds)
        if first < end
    ]


def _verified(
    source: RowSource, sort_keys: SortKeys, ids: Sequence[Column], identities: Rows, rows: Rows
) -> tuple[Rows, Rows]:
    """The identities whose ids are those of a row with their sort key, and that row."""
    columns = source.ids
    same = same_rows(columns, rows, ids, identities)
    if same.all():
        return identities, rows
    kept = [(identities[same], rows[same])]
    identities, rows = identities[~same], rows[~same] + 1
    while len(identities):
        alike = rows < source.rows
        alike &= source.sort_keys.take(rows, mode="clip") == sort_keys.take(identities)
        identities, rows = identities[alike], rows[alike]
        same = same_rows(columns, rows, ids, identities)
        kept.append((identities[same], rows[same]))
        identities, rows = identities[~same], rows[~same] + 1
    identities, rows = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    order = np.argsort(identities, kind="stable")
    return identities[order], rows[order]
