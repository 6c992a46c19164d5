"""Tables of a checkpoint that are read whole: by a heap backend, for savepoints and from outside."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    Slice,
    TableManifest,
    decode_manifest,
)
from holdfast.backends.keyed.segments.ranges import Layer, scan, sort_key_range, table_rows
from holdfast.backends.keyed.segments.rows import SectionRows, SortedRows
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.stored_segment import StoredSegment
from holdfast.backends.keyed.segments.stored_specs import migration_of
from holdfast.backends.keyed.table import Migration, SortKeys, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import location_of
from holdfast.common import read_exactly, read_into
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)

AT_ONCE_BYTES = 256 << 10
"""A section of at most so many bytes is read in a single request, whichever of its rows are wanted."""

STEP_BYTES = 32 << 20
"""About so many bytes of rows are read at a time, of however many rows."""

_MANY_STEPS = 1000
"""Before more steps than that the rows of segments are counted: the number in a manifest may be damaged."""


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
        handles: Whoever wrote them; no two have rows of one key group of a table.
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
    stored: list[tuple[KeyGroupRange, Collection[str]]] = []
    for handle in handles:
        content = manifest_bytes(handle)
        location = location_of(handle.manifest)
        manifest = decode_manifest(content, location)
        named = manifest.segments
        if not handle.segments.keys() >= named:
            missing = named - handle.segments.keys()
            message = f"manifest names segments {sorted(missing)}, which its handle doesn't lead to"
            raise CheckpointCorruptedError(message, location)
        groups = KeyGroupRange(*handle.key_groups)
        stored.append((groups, [name for name, table in manifest.tables.items() if table.runs]))
        low, high = sort_key_range(groups)
        parts.append(manifest.within(max(first, low), min(end, high)))
    check_apart(stored)
    return Manifest.union(parts)


def check_apart(stored: Iterable[tuple[KeyGroupRange, Collection[str]]]) -> None:
    """Refuse handles of which two have rows of one key group of a table; a savepoint that was written has several of a group.

    Args:
        stored: The key groups of each handle, and the names of the tables that it has rows of.

    Raises:
        InvalidRequestError: Two have.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    for groups, names in stored:
        for name in names:
            ranges.setdefault(name, []).append((groups.start_key_group, groups.end_key_group))
    for name, of_table in ranges.items():
        for (_, last), (first, _) in itertools.pairwise(sorted(of_table)):
            if first <= last:
                message = (
                    f"two handles have rows of key group {first} of state {name!r}, which would be there twice; "
                    "give each handle once"
                )
                raise InvalidRequestError(message)


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
