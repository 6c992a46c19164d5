"""Look up the rows of many identities at once, in the runs of a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed.columns import Column, Rows, same_rows, take
from holdfast.backends.keyed.segments.merging import is_expired
from holdfast.backends.keyed.segments.rows import OpenSlice, RowSource
from holdfast.backends.keyed.segments.side_tables import Directory, Filter
from holdfast.backends.keyed.table import MIN_TIME_MS, Flags, Operation, SortKeys, TableSpec

_LOOKUPS_PER_HIT = 8
"""Estimated number of keys that are looked up in a newer run for each one that it has."""

Hits = list[tuple[Rows, list[Column]]]
"""Positions of identities, and the values of each one's row in a source."""

_Prefixes = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


@dataclass(slots=True)
class LookupKeys:
    """Sort keys to look up, ascending, and their places in filters."""

    sort_keys: SortKeys
    _prefixes: dict[int, _Prefixes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sort_keys)

    def prefixes(self, shift: int) -> _Prefixes:
        """Return byte and bit of each key in filters with this shift, which are computed once for all filters."""
        prefixes = self._prefixes.get(shift)
        if prefixes is None:
            numbers = self.sort_keys >> np.uint64(shift)
            byte = (numbers >> np.uint64(3)).view(np.int64)
            bit = np.left_shift(np.uint8(1), numbers.astype(np.uint8) & np.uint8(7))
            prefixes = self._prefixes[shift] = byte, bit
        return prefixes


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose slices are opened on demand, by their number.

    Attributes:
        ranges: First sort key and end of each slice; ascending, without overlaps.
        is_bottom: Whether most of the lookups are expected to hit.
    """

    ranges: Sequence[tuple[int, int]]
    open_slice: Callable[[int], OpenSlice]
    is_bottom: bool = False


def look_up(
    runs: Iterable[OpenRun],
    spec: TableSpec,
    sort_keys: SortKeys,
    ids: Sequence[Column],
    *,
    now_ms: int | None,
) -> Hits:
    """Find the rows that count for each identity, newest first; without folds an identity has at most one.

    Runs are given newest first; older ones are searched only for identities that newer ones leave open. Identities
    are given by ascending sort keys and id columns. Expired rows are kept if there is no present `now_ms`.
    """
    search = _Search(spec, sort_keys, ids, now_ms)
    for run in runs:
        if not len(search.keys):
            break
        bounds = search.keys.sort_keys.searchsorted(np.array(run.ranges, np.uint64)).tolist()
        for number, (first, end) in enumerate(bounds):
            if first < end:
                search.search(run.open_slice(number), first, end, is_bottom=run.is_bottom)
        search.drop_closed_keys()
    return search.live_hits()


class _Search:
    """A lookup in progress; its keys are the sort keys of all open identities, and of some closed ones."""

    def __init__(
        self, spec: TableSpec, sort_keys: SortKeys, ids: Sequence[Column], now_ms: int | None
    ) -> None:
        self.hits: Hits = []
        self.keys = LookupKeys(sort_keys)
        self._spec = spec
        self._sort_keys = sort_keys
        self._ids = ids
        self._now_ms = now_ms
        self._identities: Rows | None = None  # of the keys; None if these are of all identities
        self._is_open = np.ones(len(sort_keys), bool)
        self._closed = 0  # of the keys
        self._is_live: Flags | None = None  # for each identity, once an operand has expired

    def live_hits(self) -> Hits:
        """Return the hits, except for identities whose operands have all expired."""
        is_live = self._is_live
        if is_live is None:
            return self.hits
        hits = []
        for identities, values in self.hits:
            rows = is_live.take(identities).nonzero()[0]
            hits.append((identities.take(rows), [take(column, rows) for column in values]))
        return hits

    def search(self, slice_: OpenSlice, first: int, end: int, *, is_bottom: bool) -> None:
        """Search a slice for the keys from `first` up to `end`."""
        source = slice_.source
        source.advise(end - first if is_bottom else (end - first) // _LOOKUPS_PER_HIT)
        match = self._find_integers(source, first, end) if is_bottom else None
        is_verified = match is not None
        if match is None:
            match = find_sort_keys(source, self.keys, first, end, use_filter=not is_bottom)
        if match is None:
            return
        identities, rows = match
        if self._identities is not None:
            identities = self._identities.take(identities)
        if self._closed:
            is_open = self._is_open.take(identities)
            if not is_open.all():
                identities, rows = identities[is_open], rows[is_open]
        if not is_verified:
            identities, rows = _verify_ids(source, self._sort_keys, self._ids, identities, rows)
        if slice_.deleted_up_to_ms != MIN_TIME_MS:
            is_live = slice_.is_live(rows)
            identities, rows = identities[is_live], rows[is_live]
        if not len(identities):
            return
        closed = self._add_hits(source, identities, rows)
        if not is_bottom:
            self._is_open[closed] = False
            self._closed += len(closed)

    def _find_integers(self, source: RowSource, first: int, end: int) -> tuple[Rows, Rows] | None:
        """Find the keys from `first` up to `end` by `find_integers`.

        Returns None if identities aren't integers, or the source has no directory: then they must be found by sort
        key, and verified.
        """
        if len(self._ids) != 1 or source.rows <= (end - first) >> 1:
            return None
        wanted, directory = self._ids[0], source.directory
        if directory is None or not _is_integers(wanted):
            return None
        integers = source.ids[0]
        if not _is_integers(integers):  # there are nulls
            return None
        at = slice(first, end)
        wanted = wanted[at] if self._identities is None else wanted.take(self._identities[at])
        hits, rows = find_integers(directory, integers, self.keys.sort_keys[at], wanted)
        return (hits + first if first else hits), rows

    def drop_closed_keys(self) -> None:
        """Drop the keys of closed identities, which need no older rows, if there are many."""
        if self._closed * 4 > len(self.keys):
            if self._identities is None:
                self._identities = self._is_open.nonzero()[0]
            else:
                self._identities = self._identities.compress(self._is_open.take(self._identities))
            self.keys = LookupKeys(self._sort_keys.take(self._identities))
            self._closed = 0

    def _add_hits(self, source: RowSource, identities: Rows, rows: Rows) -> Rows:
        """Add the rows that count; return the identities that need no older rows."""
        operations = None if source.operations is None else source.operations.take(rows)
        if self._spec.ttl_ms is not None and self._now_ms is not None:
            # Expired rows are like DELETEs.
            times = source.times_ms
            assert times is not None
            expired = is_expired(times.take(rows), self._spec, self._now_ms)
            if expired.any():
                operations = np.zeros(len(rows), np.uint8) if operations is None else operations
                operands = operations == Operation.APPEND
                operations[expired & ~operands] = Operation.DELETE
                if self._is_live is None and (expired & operands).any():
                    self._is_live = np.zeros(len(self._is_open), np.bool_)
                    for known, _ in self.hits:
                        self._is_live[known] = True
            if self._is_live is not None:
                self._is_live[identities[~expired]] = True
        if operations is None:
            self.hits.append((identities, source.values_at(rows)))
            return identities
        counts = operations != Operation.DELETE
        if counts.all():
            self.hits.append((identities, source.values_at(rows)))
        elif counts.any():
            self.hits.append((identities[counts], source.values_at(rows[counts])))
        return identities[operations != Operation.APPEND] if self._spec.folds else identities


def _is_integers(column: Column) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(column, np.ndarray) and column.dtype.kind in "iu"


def _verify_ids(
    source: RowSource, sort_keys: SortKeys, ids: Sequence[Column], identities: Rows, rows: Rows
) -> tuple[Rows, Rows]:
    """Return the identities whose ids a row with their sort key has, and that row.

    `rows` are the first ones with these sort keys.
    """
    columns = source.ids
    same = same_rows(columns, rows, ids, identities)
    if same.all():
        return identities, rows
    verified = [(identities[same], rows[same])]
    identities, rows = identities[~same], rows[~same] + 1
    while len(identities):
        alike = rows < source.rows
        alike &= source.sort_keys.take(rows, mode="clip") == sort_keys.take(identities)
        identities, rows = identities[alike], rows[alike]
        same = same_rows(columns, rows, ids, identities)
        verified.append((identities[same], rows[same]))
        identities, rows = identities[~same], rows[~same] + 1
    identities, rows = (np.concatenate(arrays) for arrays in zip(*verified, strict=True))
    order = np.argsort(identities, kind="stable")
    return identities[order], rows[order]


def find_sort_keys(
    source: RowSource, keys: LookupKeys, first: int, end: int, *, use_filter: bool
) -> tuple[Rows, Rows] | None:
    """Find the keys from `first` up to `end` that a source has, and the first row of each; None if it has none.

    The source's filter is of use if most keys are absent.
    """
    sort_keys = source.sort_keys
    directory, filter_ = source.directory, source.filter if use_filter else None
    if directory is not None or filter_ is not None:  # neither has places for keys outside
        first, end = _clip(keys.sort_keys, first, end, sort_keys)
    if first == end or not len(sort_keys):
        return None
    at = None if filter_ is None else _pass_filter(filter_, keys, first, end)
    wanted = keys.sort_keys[first:end] if at is None else keys.sort_keys.take(at)
    if directory is not None and len(sort_keys) > len(wanted) >> 1:
        rows = _find_by_directory(directory, sort_keys, wanted)
    else:
        rows = sort_keys.searchsorted(wanted)
    hits = (sort_keys.take(rows, mode="clip") == wanted).nonzero()[0]
    if not len(hits):
        return None
    if len(hits) < len(rows):
        rows = rows.take(hits)
        return (hits + first if at is None else at.take(hits)), rows
    return (hits + first if at is None else at), rows


def find_integers(
    directory: Directory,
    integers: npt.NDArray[np.integer],
    wanted: SortKeys,
    wanted_integers: npt.NDArray[np.integer],
) -> tuple[Rows, Rows]:
    """Find identities that are a single integer; return the positions of those that a source has, and their rows.

    `integers` are the identities of the source's rows, `wanted` the sort keys of the wanted identities, ascending.
    Rows of one prefix are distinguished by the integer, which must be read anyway, so no sort key is read.
    """
    low = int(wanted.searchsorted(np.uint64(directory.first)))
    distances = wanted[low:] - np.uint64(directory.first)
    buckets = (distances >> np.uint64(directory.shift)).view(np.int64)
    rows = directory.starts.take(buckets, mode="clip").astype(np.int64)
    wanted_integers = wanted_integers[low:]
    is_found = integers.take(rows, mode="clip") == wanted_integers
    left = (~is_found).nonzero()[0]
    at = rows.take(left)
    ends = directory.starts.take(buckets.take(left) + 1, mode="clip")
    while len(left):
        at += 1
        is_within = at < ends
        is_same = integers.take(at, mode="clip") == wanted_integers.take(left)
        is_same &= is_within
        hits = left.compress(is_same)
        rows[hits] = at.compress(is_same)
        is_found[hits] = True
        is_left = is_within ^ is_same
        left, at, ends = left.compress(is_left), at.compress(is_left), ends.compress(is_left)
    hits = is_found.nonzero()[0]
    if len(hits) < len(rows):
        rows = rows.take(hits)
    return hits + low, rows


def _clip(wanted: SortKeys, first: int, end: int, sort_keys: SortKeys) -> tuple[int, int]:
    """Restrict the keys from `first` up to `end` to those between a source's first and last sort key."""
    if wanted[first] < sort_keys[0]:
        first += int(wanted[first:end].searchsorted(sort_keys[0]))
    if first < end and wanted[end - 1] > sort_keys[-1]:
        end = first + int(wanted[first:end].searchsorted(sort_keys[-1], "right"))
    return first, end


def _pass_filter(filter_: Filter, keys: LookupKeys, first: int, end: int) -> Rows:
    """Return the keys from `first` up to `end` whose prefix occurs."""
    byte, bit = keys.prefixes(filter_.shift)
    byte = byte[first:end]
    if filter_.first_byte:
        byte = byte - filter_.first_byte
    passed: Rows = (filter_.bits.take(byte, mode="clip") & bit[first:end]).nonzero()[0]
    if first:
        passed += first
    return passed


def _find_by_directory(directory: Directory, sort_keys: SortKeys, wanted: SortKeys) -> Rows:
    """Return the first row that is not before each wanted key; a bucket has few rows before it."""
    distances = wanted - np.uint64(directory.first)
    buckets = (distances >> np.uint64(directory.shift)).view(np.int64)
    rows = directory.starts.take(buckets, mode="clip").astype(np.int64)
    before = (sort_keys.take(rows, mode="clip") < wanted).nonzero()[0]
    while len(before):
        after = rows.take(before) + 1
        rows[before] = after
        is_before = sort_keys.take(after, mode="clip") < wanted.take(before)
        is_before &= after < len(sort_keys)
        before = before.compress(is_before)
    return rows
