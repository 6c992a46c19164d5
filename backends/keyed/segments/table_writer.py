"""Write tables whole, into segments of one checkpoint: heap snapshots, and canonical savepoints.

A canonical savepoint has the rows of segments merged. Values stay as they were stored: after a state's type has
changed only the job can migrate the rows that still have the old form, so rows of different forms are not merged,
but written to separate runs.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import msgspec
import numpy as np

from holdfast.backends.keyed.segments.checkpoint_files import (
    finish_stream,
    handle_of_files,
    write_manifest,
)
from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    Run,
    Slice,
    StoredSpec,
    TableManifest,
    encode_manifest,
    resolve_migration,
)
from holdfast.backends.keyed.segments.merging import merge, sort_key_range
from holdfast.backends.keyed.segments.rows import SortedRows
from holdfast.backends.keyed.segments.segment_writer import MAX_SEGMENT_BYTES, SegmentWriter
from holdfast.backends.keyed.segments.table_reader import LocatedRows, StoredSegments, read_manifest
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import raise_if_cancelled
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStateOutputStream

STEP_ROWS = 1 << 18
"""Rows of a section: readers have whole sections in memory."""

MERGED_ROWS = STEP_ROWS * 3 // 4
"""Wanted rows per merge, so that most merges result in one section."""

_MAX_STEP_BYTES = 32 << 20
"""Fewer rows are merged at a time if they have more bytes."""

_MAX_STEPS = 2
"""A range of sort keys with more rows than this many steps is divided again."""


def write_tables(
    tables: Iterable[tuple[TableSpec, Iterable[TableRows]]],
    key_groups: KeyGroupRange,
    streams: SnapshotStreams,
) -> SegmentsStateHandle:
    """Write tables into segments that belong only to this checkpoint.

    The rows of each table are ascending by sort key, as `StateTable.scan` returns them, with times if it has a TTL.

    Raises:
        InvalidRequestError: Rows are not ascending by sort key.
        CancelledError: The snapshot was cancelled.
        StorageUnavailableError: The store did not take it.
    """

    def write(segments: _NewSegments) -> dict[str, TableManifest]:
        manifests: dict[str, TableManifest] = {}
        for spec, chunks in tables:
            run = _RunWriter(segments, spec.name)
            for chunk in chunks:
                run.add(SortedRows.from_table_rows(chunk), spec)
            manifests[spec.name] = TableManifest((StoredSpec.of(spec),), run.runs(end))
        return manifests

    _, end = sort_key_range(key_groups)
    return _write_segments(write, key_groups, streams)


def write_canonical_tables(
    handle: SegmentsStateHandle, streams: SnapshotStreams, *, now_ms: int
) -> SegmentsStateHandle:
    """Merge the rows of a handle's segments and key groups into new segments, step by step.

    Raises as `write_canonical`, and `UnsupportedFormatError` for a RocksDB database.
    """
    key_groups = KeyGroupRange(*handle.key_groups)
    manifest = read_manifest([handle], key_groups)
    stored = StoredSegments(handle.segments)
    first, end = sort_key_range(key_groups)

    def write(segments: _NewSegments) -> dict[str, TableManifest]:
        return {
            name: _CanonicalWriter(table, stored, now_ms).write(segments, first, end)
            for name, table in manifest.tables.items()
        }

    try:
        return _write_segments(write, key_groups, streams)
    finally:
        stored.close()


def _write_segments(
    write: Callable[["_NewSegments"], dict[str, TableManifest]],
    key_groups: KeyGroupRange,
    streams: SnapshotStreams,
) -> SegmentsStateHandle:
    """Write segments and a manifest; `write` adds sections to the segments, and returns their tables."""
    with closing(_NewSegments(streams)) as segments:
        tables = write(segments)
        segments.finish()
    content = Manifest({name: table.with_tails(segments.tails) for name, table in tables.items()})
    manifest = write_manifest(streams, encode_manifest(content))
    return handle_of_files(manifest, key_groups, segments.handles)


class _NewSegments:
    """Segments that are written to streams one after the other.

    Attributes:
        handles: The finished segments by name.
        tails: The lengths of their tails.
    """

    def __init__(self, streams: SnapshotStreams) -> None:
        self.handles: dict[str, StreamStateHandle] = {}
        self.tails: dict[str, int] = {}
        self._streams = streams
        self._current: tuple[SegmentWriter, CheckpointStateOutputStream] | None = None

    def writer_for(self, size: float) -> SegmentWriter:
        """Return the writer of the segment for rows of this size in bytes."""
        if self._current is not None and self._current[0].size + size > MAX_SEGMENT_BYTES:
            self.finish()
        if self._current is None:
            stream = self._streams.open(CheckpointedStateScope.EXCLUSIVE)
            self._current = SegmentWriter(stream.write), stream
        return self._current[0]

    def finish(self) -> None:
        """Finish the current segment, if there is one."""
        if self._current is not None:
            writer, stream = self._current
            writer.finish()
            self.handles[writer.name] = finish_stream(self._streams, stream)
            self.tails[writer.name] = writer.tail_bytes
            self._current = None

    def close(self) -> None:
        """Discard the segment that is not finished, if there is one."""
        if self._current is not None:
            self._current[1].close()


class _RunWriter:
    """Writer of a table's rows as slices of one run."""

    def __init__(self, segments: _NewSegments, table: str) -> None:
        self._segments = segments
        self._table = table
        self._slices: list[Slice] = []

    def add(self, rows: SortedRows, spec: TableSpec, number: int = 0) -> None:
        """Add rows with greater sort keys than before, else raise `InvalidRequestError`.

        `number` is the index of the spec among those of the table.
        """
        for step in rows.split(STEP_ROWS, MAX_SEGMENT_BYTES):
            first, last = int(step.sort_keys[0]), int(step.sort_keys[-1])
            if self._slices and first < self._slices[-1].end:
                message = f"rows of state {self._table!r} are not ascending by sort key"
                raise InvalidRequestError(message)
            writer = self._segments.writer_for(step.size)
            section = writer.add_section(self._table, step.sort_keys, step.columns(spec))
            row_bytes = step.size / step.rows
            self._slices.append(
                Slice(writer.name, section, first, last + 1, step.rows, row_bytes, number)
            )

    def runs(self, end: int) -> tuple[Run, ...]:
        ends = [slice_.first for slice_ in self._slices[1:]] + [end]
        slices = [
            msgspec.structs.replace(slice_, end=next_first)
            for slice_, next_first in zip(self._slices, ends, strict=False)
        ]
        return (Run(0, tuple(slices)),) if slices else ()


class _CanonicalWriter:
    """Writer of a table's merged rows.

    A form is the number of a spec; specs that store values like the newest one have its form.
    """

    def __init__(self, table: TableManifest, segments: StoredSegments, now_ms: int) -> None:
        self._table = table
        self._segments = segments
        self._specs = [stored.spec() for stored in table.specs]
        self._newest = len(self._specs) - 1
        self._forms = [
            self._newest if _has_newest_form(spec, table.spec) else number
            for number, spec in enumerate(self._specs)
        ]
        used = (self._forms[slice_.spec] for slice_ in table.slices())
        self._used = sorted({self._newest, *used})
        self._now_ms = [self._expiry_time(form, now_ms) for form in self._forms]
        rows = sum(slice_.rows for slice_ in table.slices())
        size = sum(slice_.size for slice_ in table.slices())
        self._step_rows = max(1, min(MERGED_ROWS, int(_MAX_STEP_BYTES * rows / max(1, size))))
        self._steps = max(1, -(-rows // self._step_rows))

    def write(self, segments: _NewSegments, first: int, end: int) -> TableManifest:
        """Add the rows between two sort keys to segments."""
        runs: list[_RunWriter] = []  # from the bottom up
        for low, high in itertools.pairwise(self._edges(first, end)):
            for step in self._steps_between(low, high):
                raise_if_cancelled()
                for depth, (form, rows) in enumerate(self._merge(step)):
                    if depth == len(runs):
                        runs.append(_RunWriter(segments, self._table.spec.name))
                    runs[depth].add(rows, self._specs[form], self._used.index(form))
        return TableManifest(
            tuple(self._table.specs[form] for form in self._used),
            tuple(run for depth in reversed(runs) for run in depth.runs(end)),
        )

    def _edges(self, first: int, end: int) -> list[int]:
        """Return sort keys, between which is a step of evenly distributed rows, and no change of form."""
        edges = {first + (end - first) * step // self._steps for step in range(self._steps + 1)}
        if len(self._used) > 1:
            edges |= {
                edge for slice_ in self._table.slices() for edge in (slice_.first, slice_.end)
            }
        return sorted(edges)

    def _steps_between(self, low: int, high: int) -> Iterator[list[LocatedRows]]:
        """Return the slices between two sort keys, newest first; in several steps if they have too many rows."""
        slices = (slice_.within(low, high) for slice_ in self._table.slices())
        step = [
            self._segments.locate(slice_, self._table.spec.name)
            for slice_ in slices
            if slice_ is not None
        ]
        keys = [rows.sort_keys for rows in step]
        if sum(map(len, keys)) > _MAX_STEPS * self._step_rows:
            ordered = np.sort(np.concatenate(keys))
            cuts = np.unique(ordered[self._step_rows :: self._step_rows]).tolist()
            edges = [low, *(cut for cut in cuts if cut > low), high]
            if len(edges) > 2:
                for start, stop in itertools.pairwise(edges):
                    yield from self._steps_between(start, stop)
                return
        yield step

    def _merge(self, step: list[LocatedRows]) -> Iterator[tuple[int, SortedRows]]:
        """Merge adjacent slices of one form; return each form's number and rows, from the bottom up."""
        groups = itertools.groupby(step, lambda rows: self._forms[rows.slice.spec])
        forms = [(form, list(group)) for form, group in groups]
        for number, (form, slices) in enumerate(reversed(forms)):
            ranges = [rows.open(self._specs[rows.slice.spec]).row_range() for rows in slices]
            now_ms = self._now_ms[form]
            yield form, merge(ranges, self._specs[form], is_bottom=not number, now_ms=now_ms)

    def _expiry_time(self, form: int, now_ms: int) -> int | None:
        """Return the present for rows of a form, shifted so that they live as long as those of the newest form."""
        newest_ms, form_ms = self._table.spec.ttl_ms, self._specs[form].ttl_ms
        return None if newest_ms is None or form_ms is None else now_ms - newest_ms + form_ms


def _has_newest_form(stored: TableSpec, newest: TableSpec) -> bool:
    """Return whether stored values are valid without a migration."""
    try:
        return resolve_migration(stored, newest, None) is None
    except StateMigrationError:
        return False
