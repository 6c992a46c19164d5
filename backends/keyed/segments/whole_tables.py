"""Tables written whole, into a single segment, and tables read whole: for heap snapshots and savepoints."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.columns import cut, from_arrow
from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    Run,
    Slice,
    TableManifest,
    decode_manifest,
    encode_manifest,
)
from holdfast.backends.keyed.segments.ranges import Layer, scan, table_rows
from holdfast.backends.keyed.segments.rows import SectionRows, SortedRows
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.segment_writer import SegmentWriter
from holdfast.backends.keyed.segments.stored_segment import StoredSegment
from holdfast.backends.keyed.segments.stored_specs import StoredSpec, migration_of
from holdfast.backends.keyed.table import Migration, SortKeys, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.sections import location_of
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import read_exactly, read_into
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStateOutputStream

STEP_ROWS = 1 << 18
"""Rows of a section: what is read back is held in memory by sections."""


AT_ONCE_BYTES = 256 << 10
"""A section of at most so many bytes is read in a single request, whichever of its rows are wanted."""

STEP_BYTES = 32 << 20
"""About so many bytes of rows are read at a time, of however many rows."""

_MANY_STEPS = 1000
"""Before more steps than that the rows of segments are counted: the number in a manifest may be damaged."""


def sort_key_range(key_groups: KeyGroupRange) -> tuple[int, int]:
    """The least sort key of the key groups, and the least above them."""
    return key_groups.start_key_group << 48, (key_groups.end_key_group + 1) << 48


def write_tables(
    tables: Iterable[tuple[TableSpec, Iterable[TableRows]]],
    key_groups: KeyGroupRange,
    streams: SnapshotStreams,
) -> SegmentsStateHandle:
    """Write tables into one segment that belongs to this checkpoint alone.

    Args:
        tables: The specification of each table, and its rows: ascending by sort key, as `StateTable.scan` gives them. Of a
            table with TTL they have times.
        key_groups: The key groups that the rows are of.
        streams: Where the segment and the manifest go.

    Raises:
        CancelledError: The snapshot was cancelled.
        StorageUnavailableError: The store did not take it.
    """

    def written(writer: SegmentWriter, segment: str) -> dict[str, TableManifest]:
        manifests: dict[str, TableManifest] = {}
        for spec, chunks in tables:
            run = RunWriter(writer, segment, spec.name)
            for chunk in chunks:
                run.add(_sorted_rows(chunk), spec)
            manifests[spec.name] = TableManifest((StoredSpec.of(spec),), run.runs(end))
        return manifests

    _, end = sort_key_range(key_groups)
    return write_segment(written, key_groups, streams)


def write_segment(
    written: Callable[[SegmentWriter, str], dict[str, TableManifest]],
    key_groups: KeyGroupRange,
    streams: SnapshotStreams,
) -> SegmentsStateHandle:
    """Write a segment, and the manifest of its tables.

    Args:
        written: Adds sections to a segment of that name, and gives the tables that they make.
        key_groups: The key groups that the rows are of.
        streams: Where the segment and the manifest go.

    Raises:
        CancelledError: The snapshot was cancelled.
        StorageUnavailableError: The store did not take it.
    """
    name = new_segment_name()
    segments: dict[str, StreamStateHandle] = {}
    with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
        writer = SegmentWriter(stream.write)
        manifests = written(writer, name)
        if writer.sections:
            writer.finish()
            segments[name] = finish(streams, stream)
    with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
        stream.write(encode_manifest(Manifest(manifests)))
        manifest = finish(streams, stream)
    return SegmentsStateHandle(
        (key_groups.start_key_group, key_groups.end_key_group), segments, manifest
    )


def new_segment_name() -> str:
    """A name that no segment ever had."""
    return os.urandom(16).hex()


def finish(streams: SnapshotStreams, stream: CheckpointStateOutputStream) -> StreamStateHandle:
    """Close a stream that something was written to. Raises `StorageUnavailableError`."""
    handle = streams.finish(stream)
    assert handle is not None  # only of an empty stream
    return handle


class RunWriter:
    """Writes rows of a table as slices of one run.

    Args:
        writer: The segment that they go to.
        segment: The segment's name.
        table: The table's name.
    """

    def __init__(self, writer: SegmentWriter, segment: str, table: str) -> None:
        self._writer = writer
        self._segment = segment
        self._table = table
        self._slices: list[Slice] = []

    def add(self, rows: SortedRows, spec: TableSpec, number: int = 0) -> None:
        """Add rows, in sections of some.

        Args:
            rows: The rows, ascending by sort key, behind all that were added.
            spec: What they hold.
            number: The number of the spec among those of the table.

        Raises:
            InvalidRequestError: They come in another order.
        """
        for step in _steps(rows):
            first, last = int(step.sort_keys[0]), int(step.sort_keys[-1])
            if self._slices and first < self._slices[-1].end:
                message = f"rows of state {self._table!r} come in no order of sort keys"
                raise InvalidRequestError(message)
            section = self._writer.add_section(self._table, step.sort_keys, step.columns(spec))
            row_bytes = step.size / step.rows
            self._slices.append(
                Slice(self._segment, section, first, last + 1, step.rows, row_bytes, number)
            )

    def runs(self, end: int) -> tuple[Run, ...]:
        """The run, up to a sort key; none if there are no rows."""
        ends = [piece.first for piece in self._slices[1:]] + [end]
        slices = [
            msgspec.structs.replace(piece, end=behind)
            for piece, behind in zip(self._slices, ends, strict=False)
        ]
        return (Run(0, tuple(slices)),) if slices else ()


def _sorted_rows(chunk: TableRows) -> SortedRows:
    return SortedRows(
        chunk.identities.sort_keys,
        None,
        chunk.times_ms,
        [from_arrow(column) for column in chunk.identities.columns],
        [from_arrow(column) for column in chunk.values],
    )


def _steps(rows: SortedRows) -> Iterator[SortedRows]:
    """The rows in steps; those of one sort key stay together."""
    keys = rows.sort_keys
    at = np.arange(STEP_ROWS, len(keys), STEP_ROWS)
    edges = [0, *np.unique(keys.searchsorted(keys.take(at))).tolist(), len(keys)]
    for first, end in itertools.pairwise(edges):
        if first == end:
            continue
        yield SortedRows(
            keys[first:end],
            None if rows.operations is None else rows.operations[first:end],
            None if rows.times_ms is None else rows.times_ms[first:end],
            [cut(column, first, end) for column in rows.ids],
            [cut(column, first, end) for column in rows.values],
        )


@dataclass(frozen=True)
class RestoredTable:
    """A table of a checkpoint, as a backend that keeps no segments reads it.

    Attributes:
        spec: The table's specification when it was stored.
    """

    spec: TableSpec
    _manifest: TableManifest
    _segments: "StoredSegments"
    _range: tuple[int, int]

    def rows(
        self,
        spec: TableSpec | None = None,
        migration: Migration | None = None,
        *,
        step_rows: int = 1 << 20,
    ) -> Iterator[TableRows]:
        """All rows, ascending by sort key; expired ones are among them.

        Args:
            spec: The table's present specification; None if it has not changed.
            migration: For rows that were stored with other values.
            step_rows: About how many rows come at a time; fewer if they have more than `STEP_BYTES`.

        Raises:
            StateMigrationError: The table can't be what it is to hold now.
            CheckpointCorruptedError: A segment is damaged.
        """
        spec = spec or self.spec
        stored = [stored.spec() for stored in self._manifest.specs]
        migrations = [migration_of(before, spec, migration) for before in stored]

        def layers(low: int, high: int) -> Iterator[Layer]:
            for piece in self._manifest.slices():
                within = piece.within(low, high)
                if within is not None:
                    how = stored[piece.spec], migrations[piece.spec]
                    rows = self._segments.rows(within, *how)
                    yield Layer(rows, dead_up_to_ms=piece.dead_up_to_ms)

        first, end = self._range
        size = sum(piece.rows * piece.row_bytes for piece in self._manifest.slices())
        if size > STEP_BYTES:
            step_rows = min(step_rows, max(1, int(self.stored_rows * STEP_BYTES / size)))
        if self.stored_rows > _MANY_STEPS * step_rows:
            for piece in self._manifest.slices():
                self._segments.check_rows(piece)
        steps = scan(layers, spec, rows=self.stored_rows, step_rows=step_rows, first=first, end=end)
        return self._tables_of(steps, spec)

    def _tables_of(self, steps: Iterable[SortedRows], spec: TableSpec) -> Iterator[TableRows]:
        try:
            for step in steps:
                yield table_rows(step, spec)
        finally:
            self._segments.close()

    @property
    def stored_rows(self) -> int:
        """About how many rows are stored: a row that was changed or deleted counts until it is merged."""
        return sum(run.rows for run in self._manifest.runs)

    def between(self, first: int, end: int) -> "RestoredTable":
        """The rows with `first` <= sort key < `end` alone; no others are read, as far as possible."""
        low, high = max(first, self._range[0]), min(end, self._range[1])
        manifest = self._manifest.within(low, high)
        return replace(self, _manifest=manifest, _range=(low, max(low, high)))


def read_tables(
    handles: Sequence[SegmentsStateHandle], key_groups: KeyGroupRange
) -> list[RestoredTable]:
    """The tables that several handles lead to, of some key groups.

    Args:
        handles: Whoever wrote them; no two have rows of one key group.
        key_groups: The key groups whose rows are wanted.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A manifest is damaged, or names a segment that its handle doesn't lead to.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """
    manifest = read_manifest(handles, key_groups)
    segments = StoredSegments(
        {name: stream for handle in handles for name, stream in handle.segments.items()}
    )
    return [
        RestoredTable(table.spec, table, segments, sort_key_range(key_groups))
        for table in manifest.tables.values()
    ]


def read_manifest(handles: Sequence[SegmentsStateHandle], key_groups: KeyGroupRange) -> Manifest:
    """The tables of some key groups as several handles have them. Reads no segment; raises what `read_tables` does."""
    first, end = sort_key_range(key_groups)
    parts = []
    for handle in handles:
        content = manifest_bytes(handle)
        location = location_of(handle.manifest)
        manifest = decode_manifest(content, location)
        named = manifest.segments()
        if not handle.segments.keys() >= named:
            missing = named - handle.segments.keys()
            message = f"manifest names segments {sorted(missing)}, which its handle doesn't lead to"
            raise CheckpointCorruptedError(message, location)
        low, high = sort_key_range(KeyGroupRange(*handle.key_groups))
        parts.append(manifest.within(max(first, low), min(end, high)))
    return Manifest.union(parts)


def manifest_bytes(handle: SegmentsStateHandle) -> bytes:
    """The manifest of a handle, of segments or of RocksDB's files, as it is stored. Raises `CheckpointNotFoundError`."""
    manifest = handle.manifest
    if isinstance(manifest, ByteStreamStateHandle):
        return manifest.data
    with manifest.open_input_stream() as stream:
        return bytes(read_exactly(stream, manifest.size))


def load_segment(name: str, handle: StreamStateHandle) -> Segment:
    """A segment in memory.

    Raises:
        CheckpointNotFoundError: The file is gone.
        CheckpointCorruptedError: The segment is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return Segment.of_bytes(handle.data, name)
    data = pa.allocate_buffer(handle.size)
    with handle.open_input_stream() as stream:
        read_into(stream, memoryview(data).cast("B"))
    return Segment.of_bytes(data, name, location_of(handle))


class StoredSegments:
    """Segments of several handles, each opened when it is first needed."""

    def __init__(self, streams: Mapping[str, StreamStateHandle]) -> None:
        self._streams = streams
        self._segments: dict[str, StoredSegment] = {}

    def close(self) -> None:
        """Close all streams; whoever reads on opens them again."""
        for segment in self._segments.values():
            segment.close()

    def rows(self, piece: Slice, spec: TableSpec, migration: Migration | None) -> SortedRows:
        """The rows of a slice, in memory."""
        return self.located(piece, spec.name).rows(spec, migration)

    def check_rows(self, piece: Slice) -> None:
        """Refuse a slice of more rows than its section has, which would be read in steps without an end."""
        segment = self._opened(piece.segment)
        stored = segment.section(piece.section).rows
        if piece.rows > stored:
            raise segment.corrupted(
                f"section {piece.section} has {stored} rows, and its manifest says {piece.rows}"
            )

    def located(self, piece: Slice, table: str) -> "LocatedRows":
        """Where the rows of a slice are, which is of that table; reads their sort keys."""
        segment = self._opened(piece.segment)
        section = segment.section(piece.section)
        if section.table != table:
            raise segment.corrupted(f"section {piece.section} is of table {section.table!r}")
        is_small = section.length <= AT_ONCE_BYTES
        if is_small:  # a single request instead of several a column
            section = segment.whole_section(piece.section)
        first, sort_keys = section.keys_between(piece.first, piece.end)
        reads_whole = 2 * len(sort_keys) > section.rows and not is_small
        whole = partial(segment.whole_section, piece.section) if reads_whole else None
        return LocatedRows(section, first, sort_keys, whole)

    def _opened(self, name: str) -> StoredSegment:
        segment = self._segments.get(name)
        if segment is None:
            segment = self._segments[name] = StoredSegment(name, self._streams[name])
        return segment


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """Rows of a section, of which only the sort keys have been read."""

    section: Section
    first: int
    sort_keys: SortKeys
    whole: Callable[[], Section] | None

    def rows(self, spec: TableSpec, migration: Migration | None = None) -> SortedRows:
        """The rows, in memory."""
        section = self.section if self.whole is None else self.whole()
        return SectionRows(section, spec, migration).loaded(self.first, self.sort_keys)
