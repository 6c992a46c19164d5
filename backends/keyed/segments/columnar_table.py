"""A table in sorted columns: recent writes in memory, over immutable runs in segments."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    concatenate,
    from_arrow,
    take,
    take_or_null,
    to_arrays,
    to_arrow,
)
from holdfast.backends.keyed.folding import fold_values
from holdfast.backends.keyed.segments.cold_reads import (
    ColdSlice,
    fetch_first_keys,
    fetch_rows,
    fetch_sort_keys,
)
from holdfast.backends.keyed.segments.lookup import Hits, OpenRun, look_up
from holdfast.backends.keyed.segments.manifest import (
    END,
    Run,
    Slice,
    TableManifest,
    resolve_migration,
)
from holdfast.backends.keyed.segments.merging import merge, rows_between, scan
from holdfast.backends.keyed.segments.rows import (
    OpenSlice,
    RowRange,
    SectionRows,
    SortedRows,
    take_rows,
)
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment_store import SegmentStore
from holdfast.backends.keyed.table import (
    GROUP,
    MIN_TIME_MS,
    STEP,
    Flags,
    Identities,
    Migration,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
    advance_to_time,
)
from holdfast.errors import InvalidRequestError

_MAX_RECENT_WRITES = 8
"""More recent writes are merged into one."""

_MAX_FETCHED_BYTES = 128 << 20
"""Estimated bytes of rows that a merge fetches into memory. Segments with more are fetched whole, to files."""


class ColumnarTable:
    """The rows of one state.

    Args:
        spec: The last spec of the manifest.
        manifest: The table's runs.
        segments: The segments of the runs.
        sort_keys: The first sort key of the subtask, and the end, exclusive.
        now_ms: Returns the time of the batch.
        migration: Migrates values of sections that were written with another spec.
        rewrite: Whether the next snapshot must rewrite such sections.
    """

    def __init__(
        self,
        spec: TableSpec,
        manifest: TableManifest,
        *,
        segments: SegmentStore,
        sort_keys: tuple[int, int],
        now_ms: Callable[[], int],
        migration: Migration | None = None,
        rewrite: bool = False,
    ) -> None:
        self.spec = spec
        self.manifest = manifest
        self.sort_keys = sort_keys
        self._recent: list[SortedRows] = []  # newest first
        self._segments = segments
        self._local_manifest: TableManifest | None = None  # the last one with complete segments
        self.now_ms = now_ms
        self._migration = migration
        self._rewrite = rewrite
        self._set_specs(manifest)
        # By segment and section. A section changes when its segment is fetched again.
        self._sources: dict[tuple[str, int], tuple[Section, SectionRows]] = {}

    @property
    def is_rewritten(self) -> bool:
        """True if the next snapshot must merge all runs, because some were written with another spec."""
        return self._rewrite and len(self.manifest.specs) > 1

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        ids = [from_arrow(column) for column in identities.columns]
        now_ms = None if include_expired else self.now_ms()
        fetched = self._fetch_rows(identities.sort_keys)
        runs = self._open_runs(fetched)
        hits = look_up(runs, self.spec, identities.sort_keys, ids, now_ms=now_ms)
        present = np.zeros(len(identities), bool)
        for positions, _ in hits:
            present[positions] = True
        if self.spec.folds and sum(len(positions) for positions, _ in hits) > int(present.sum()):
            return present, self._fold_hits(hits, len(identities), present)
        return present, self._gather_hits(hits, len(identities), present)

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        count = len(identities)
        self._check(identities, values)
        if not count:
            return
        operations: npt.NDArray[np.uint8] | None
        if isinstance(operation, np.ndarray):
            operations = operation if operation.any() else None
        else:
            operations = None if operation is Operation.PUT else np.full(count, operation, np.uint8)
        times = None if self.spec.ttl_ms is None else np.full(count, self.now_ms(), np.int64)
        ids = [from_arrow(column) for column in identities.columns]
        columns = [from_arrow(column) for column in values]
        self._recent.insert(0, SortedRows(identities.sort_keys, operations, times, ids, columns))
        if len(self._recent) > _MAX_RECENT_WRITES:
            self.merge_recent()

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        fetched = self._fetch_rows(first, end, endings)
        slices = self._open_slices_between(first, end, fetched)
        now_ms = None if include_expired else self.now_ms()
        rows = rows_between(slices, self.spec, first, end, endings=endings, now_ms=now_ms)
        return rows.table_rows(self.spec)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        count = sum(rows.rows for rows in self._recent)
        count += sum(run.rows for run in self.manifest.runs)
        self._fetch_sections(self.manifest.slices())
        slices = self._open_slices()
        steps = scan(
            lambda *_: slices, self.spec, self.sort_keys, count, step_rows, now_ms=self.now_ms()
        )
        return (step.table_rows(self.spec) for step in steps)

    def delete_up_to(self, time_ms: int) -> None:
        runs = []
        for run in self.manifest.runs:
            slices = (
                msgspec.structs.replace(
                    slice_, deleted_up_to_ms=max(slice_.deleted_up_to_ms, time_ms)
                )
                for slice_ in run.slices
            )
            runs.append(Run(run.level, tuple(slices)))
        self.manifest = msgspec.structs.replace(self.manifest, runs=tuple(runs))
        recent = []
        for rows in self._recent:
            is_live = OpenSlice(rows, deleted_up_to_ms=time_ms).is_live(np.arange(rows.rows))
            if is_live.any():
                recent.append(take_rows(rows, is_live.nonzero()[0]))
        self._recent = recent

    def earliest_time(self) -> int | None:
        slices = self._open_slices()
        groups = np.arange(*self.sort_keys, GROUP, dtype=np.uint64)
        low, width = 0, STEP
        while True:  # timers of a key group are ordered by time, so few rows are read
            low = _first_timer(slices, groups, low)
            if low >= GROUP:
                return None
            low -= low % STEP
            high = min(low + width, GROUP)
            first, end = groups + np.uint64(low), groups + np.uint64(high)
            between: Iterable[OpenSlice] = slices
            if not self._has_all_segments():
                between = self._open_slices_between(first, end, self._fetch_rows(first, end))
            rows = rows_between(between, self.spec, first, end)
            if rows.rows:
                return int(rows.ids[-1].min())
            low, width = high, 2 * width  # all of these were deleted

    def merge_recent(self) -> SortedRows | None:
        """Merge recent writes into one, and return it; None without recent writes."""
        if len(self._recent) > 1:
            ranges = [RowRange.whole(rows) for rows in self._recent]
            self._recent = [merge(ranges, self.spec, is_bottom=False, now_ms=self.now_ms())]
        return self._recent[0] if self._recent else None

    def is_local(self, runs: Iterable[Run]) -> bool:
        """Return whether all segments of runs are complete on this host."""
        return self._segments.has_all(slice_.segment for run in runs for slice_ in run.slices)

    def open_ranges(self, runs: Sequence[Run]) -> list[RowRange]:
        """Return the rows of the slices of runs; missing rows are fetched to memory, or to files if they are many."""
        slices = [slice_ for run in runs for slice_ in run.slices]
        cold = self._open_cold(slices, *self._all_keys)
        large = {slice_ for slice_, rows in cold.items() if 2 * slice_.rows > rows.section_rows}
        if sum(slice_.size for slice_ in cold.keys() - large) > _MAX_FETCHED_BYTES:
            large = set(cold)
        self._fetch_sections(large)
        fetched = _fetch({slice_: rows for slice_, rows in cold.items() if slice_ not in large})
        return [(fetched.get(slice_) or self.open_slice(slice_)).row_range() for slice_ in slices]

    def _fetch_sections(self, slices: Iterable[Slice]) -> None:
        self._segments.fetch_sections((slice_.segment, slice_.section) for slice_ in slices)

    def sort_keys_of(self, slices: Sequence[Slice]) -> list[SortKeys]:
        """Return the sort keys of each slice, with a few others if its segment is not complete on this host."""
        cold = self._open_cold(slices, *self._all_keys)
        fetched = dict(zip(cold, fetch_sort_keys(list(cold.values())), strict=True))
        return [
            fetched[slice_] if slice_ in fetched else self.open_slice(slice_).sort_keys()
            for slice_ in slices
        ]

    def open_slice(self, slice_: Slice) -> OpenSlice:
        key = slice_.segment, slice_.section
        segment = self._segments.segment(slice_.segment)
        section = segment.section(slice_.section)
        if section.table != self.spec.name:
            message = f"section {slice_.section} belongs to table {section.table!r}"
            raise segment.corrupted_error(message)
        known, source = self._sources.get(key, (None, None))
        if source is None or known is not section:
            stored, migration = self._stored[slice_.spec], self._migrations[slice_.spec]
            source = SectionRows(section, stored, migration)
            self._sources[key] = section, source
        return OpenSlice(source, slice_.first, slice_.end, slice_.deleted_up_to_ms)

    def commit(self, manifest: TableManifest) -> None:
        """Continue with a manifest that contains all recent writes."""
        if manifest.specs != self.manifest.specs:
            self._set_specs(manifest)
        self.manifest = manifest
        self._recent = []
        keys = {(slice_.segment, slice_.section) for slice_ in manifest.slices()}
        self._sources = {key: source for key, source in self._sources.items() if key in keys}

    def _set_specs(self, manifest: TableManifest) -> None:
        self._stored = [stored.spec() for stored in manifest.specs]
        self._migrations = [
            *(resolve_migration(spec, self.spec, self._migration) for spec in self._stored[:-1]),
            None,
        ]

    def _fetch_rows(
        self, first: SortKeys, end: SortKeys | None = None, endings: Flags | None = None
    ) -> dict[Slice, OpenSlice]:
        """Fetch the rows that may be in ranges of sort keys; return the slices that aren't complete on this host.

        Without `end` the ranges are single sort keys.
        """
        if self._has_all_segments():
            return {}
        ends = first + np.uint64(1) if end is None else end
        slices = [slice_ for slice_ in self.manifest.slices() if _overlaps(slice_, first, ends)]
        is_some = first < ends
        bounds = first[is_some], ends[is_some] - np.uint64(1)
        newer = () if end is not None else set(slices).difference(self.manifest.runs[-1].slices)
        return _fetch(self._open_cold(slices, *bounds, filtered=newer, endings=endings))

    def _open_cold(
        self,
        slices: Sequence[Slice],
        first: SortKeys,
        last: SortKeys,
        *,
        filtered: Container[Slice] = (),
        endings: Flags | None = None,
    ) -> dict[Slice, ColdSlice]:
        """Open slices in one round of requests; return those whose segments are not complete on this host.

        The filters of the `filtered` ones are used, if they have some.
        """
        if self._segments.has_all(slice_.segment for slice_ in slices):
            return {}
        self._segments.open_all({slice_.segment: None for slice_ in slices})
        opened = {slice_: self.open_slice(slice_) for slice_ in slices}
        return {
            slice_: ColdSlice(rows, first, last, use_filter=slice_ in filtered, endings=endings)
            for slice_, rows in opened.items()
            if rows.is_partial
        }

    def _has_all_segments(self) -> bool:
        """Return whether all segments are complete on this host."""
        if self.manifest is not self._local_manifest and self.is_local(self.manifest.runs):
            self._local_manifest = self.manifest
        return self.manifest is self._local_manifest

    @property
    def _all_keys(self) -> tuple[SortKeys, SortKeys]:
        """The first and the last sort key of the subtask."""
        first, end = self.sort_keys
        return np.array([first], np.uint64), np.array([end - 1], np.uint64)

    def _open_slices(self) -> list[OpenSlice]:
        """Open all slices, newest first."""
        first, last = self._all_keys
        if not self._has_all_segments():
            self._segments.open_all({slice_.segment: None for slice_ in self.manifest.slices()})
        return list(self._open_slices_between(first, last + np.uint64(1), {}))

    def _open_slices_between(
        self, first: SortKeys, end: SortKeys, fetched: Mapping[Slice, OpenSlice]
    ) -> Iterator[OpenSlice]:
        """Open the slices that may have rows in one of the ranges, newest first."""
        yield from (OpenSlice(rows) for rows in self._recent)
        for slice_ in self.manifest.slices():
            if _overlaps(slice_, first, end):
                yield fetched.get(slice_) or self.open_slice(slice_)

    def _open_runs(self, fetched: Mapping[Slice, OpenSlice]) -> Iterator[OpenRun]:
        for rows in self._recent:
            yield OpenRun([(0, END)], [OpenSlice(rows)].__getitem__)
        for run in self.manifest.runs:
            yield OpenRun(
                [(slice_.first, slice_.end) for slice_ in run.slices],
                partial(self._open_slice_of_run, run, fetched),
                is_bottom=run is self.manifest.runs[-1],
            )

    def _open_slice_of_run(
        self, run: Run, fetched: Mapping[Slice, OpenSlice], number: int
    ) -> OpenSlice:
        slice_ = run.slices[number]
        return fetched[slice_] if slice_ in fetched else self.open_slice(slice_)

    def _gather_hits(self, hits: Hits, count: int, present: Flags) -> tuple[pa.Array, ...]:
        """Return the values of each identity, which has at most one row."""
        if len(hits) == 1 and present.all():
            return to_arrays(hits[0][1], self.spec.values)
        return tuple(
            _scatter([(at, columns[number]) for at, columns in hits], count, present, field.type)
            for number, field in enumerate(self.spec.values)
        )

    def _fold_hits(self, hits: Hits, count: int, present: Flags) -> tuple[pa.Array, ...]:
        """Return the values of each identity, folded from several rows."""
        hits = hits[::-1]  # oldest first
        all_positions = np.concatenate([positions for positions, _ in hits])
        order = np.argsort(all_positions, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(all_positions, minlength=count))])
        columns = [
            take(concatenate([values[number] for _, values in hits], field.type), order)
            for number, field in enumerate(self.spec.values)
        ]
        folded = fold_values(columns, bounds, self.spec)
        if present.all():
            return to_arrays(folded, self.spec.values)
        at = np.where(present, np.arange(count), -1)
        pairs = zip(folded, self.spec.values, strict=True)
        return tuple(take_or_null(column, at, field.type) for column, field in pairs)

    def _check(self, identities: Identities, values: Sequence[pa.Array]) -> None:
        types = [column.type for column in (*identities.columns, *values)]
        expected = [field.type for field in (*self.spec.id_fields, *self.spec.values)]
        lengths = {len(column) for column in (*identities.columns, *values)}
        if types != expected or lengths - {len(identities)}:
            message = (
                f"state {self.spec.name!r} needs columns of types {expected} with {len(identities)} rows, "
                f"got {types} with {sorted(lengths)} rows"
            )
            raise InvalidRequestError(message)


def _overlaps(slice_: Slice, first: SortKeys, end: SortKeys) -> bool:
    """Return whether a slice may have rows in one of ascending ranges of sort keys."""
    number = int(end.searchsorted(np.uint64(slice_.first), "right"))
    return number < len(first) and bool(first[number] < slice_.end)


def _fetch(cold: Mapping[Slice, ColdSlice]) -> dict[Slice, OpenSlice]:
    return dict(zip(cold, fetch_rows(list(cold.values())), strict=True))


def _first_timer(slices: Sequence[OpenSlice], groups: SortKeys, low: int) -> int:
    """Return the place in its key group of the first timer that is not before `low`; `GROUP` without one."""
    begins = [_begins(slice_, groups, low) for slice_ in slices]
    cold = {
        number: ColdSlice(slice_, begins[number], begins[number])
        for number, slice_ in enumerate(slices)
        if slice_.is_partial
    }
    fetched = dict(zip(cold, fetch_first_keys(list(cold.values())), strict=True))
    first = GROUP
    for number, slice_ in enumerate(slices):
        sort_keys = fetched.get(number)
        if sort_keys is None:
            sort_keys = slice_.source.sort_keys
        rows = sort_keys.searchsorted(begins[number])
        inside = rows < sort_keys.searchsorted(np.uint64(slice_.end))
        # The place of a row of another key group is at least `GROUP`.
        places = sort_keys[rows[inside]] - groups[inside]
        first = int(places.min(initial=first))
    return first


def _begins(slice_: OpenSlice, groups: SortKeys, low: int) -> SortKeys:
    """Return the first sort key of each key group that a timer of the slice, not before `low`, may have."""
    begins: SortKeys = np.maximum(groups + np.uint64(low), np.uint64(slice_.first))
    if slice_.deleted_up_to_ms != MIN_TIME_MS:
        begins = advance_to_time(begins, slice_.deleted_up_to_ms)
    return begins


def _scatter(
    hits: Sequence[tuple[Rows, Column]], count: int, present: Flags, type: pa.DataType
) -> pa.Array:
    """Return a column of `count` rows with the values of the hits; null elsewhere."""
    if not hits:
        return pa.nulls(count, type)
    first = hits[0][1]
    if isinstance(first, np.ndarray) and all(isinstance(c, np.ndarray) for _, c in hits):
        values = np.zeros(count, first.dtype)
        for positions, column in hits:
            values[positions] = column
        return to_arrow(values, type, None if present.all() else present)
    rows = np.full(count, -1, np.int64)
    all_positions = np.concatenate([positions for positions, _ in hits])
    rows[all_positions] = np.arange(len(all_positions))
    return take_or_null(concatenate([column for _, column in hits], type), rows, type)
