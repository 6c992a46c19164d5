"""Read tables of a checkpoint without keeping segments: for heap backends, savepoints and readers outside of a job."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from holdfast.backends.keyed.segments.block_cache import BlockCache
from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    Slice,
    TableManifest,
    decode_manifest,
    resolve_migration,
)
from holdfast.backends.keyed.segments.merging import scan, sort_key_range
from holdfast.backends.keyed.segments.rows import OpenSlice, SectionRows, SortedRows
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import StoredSegment
from holdfast.backends.keyed.table import Migration, SortKeys, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import location_of
from holdfast.common import read_exactly
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import ByteStreamStateHandle, SegmentsStateHandle, StreamStateHandle

_MAX_SINGLE_READ_BYTES = 256 << 10
"""A section up to this size is read with a single request, even if only some rows are wanted."""

_MAX_STEP_BYTES = 32 << 20
"""Estimated bytes of the rows of a step."""

_MAX_UNCHECKED_STEPS = 1000
"""Before more steps the row counts of segments are checked: the number in a manifest may be wrong."""


@dataclass(frozen=True)
class RestoredTable:
    """A table of a checkpoint, as a backend that keeps no segments reads it; `spec` is the stored specification."""

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
        """Return all rows, ascending by sort key, including expired ones.

        Args:
            spec: The table's present specification; None if it has not changed.
            migration: Migrates rows that were stored with other values.
            step_rows: Wanted rows per step; large rows come in smaller steps, of about 32 MiB.

        Raises:
            StateMigrationError: The stored rows can't be migrated to the present specification.
            CheckpointCorruptedError: A segment is corrupt.
        """
        spec = spec or self.spec
        specs = [stored.spec() for stored in self._manifest.specs]
        migrations = [resolve_migration(stored, spec, migration) for stored in specs]

        def slices(low: int, high: int) -> Iterator[OpenSlice]:
            for whole in self._manifest.slices():
                slice_ = whole.within(low, high)
                if slice_ is not None:
                    located = self._segments.locate(slice_, spec.name)
                    yield located.open(specs[slice_.spec], migrations[slice_.spec])

        size = sum(slice_.size for slice_ in self._manifest.slices())
        if size > _MAX_STEP_BYTES:
            step_rows = min(step_rows, max(1, int(self.stored_rows * _MAX_STEP_BYTES / size)))
        if self.stored_rows > _MAX_UNCHECKED_STEPS * step_rows:
            for slice_ in self._manifest.slices():
                self._segments.check_rows(slice_)
        steps = scan(slices, spec, self._range, self.stored_rows, step_rows)
        return self._read_steps(steps, spec)

    def _read_steps(self, steps: Iterable[SortedRows], spec: TableSpec) -> Iterator[TableRows]:
        try:
            yield from (step.table_rows(spec) for step in steps)
        finally:
            self._segments.close_after_read()

    @property
    def stored_rows(self) -> int:
        """Estimated number of stored rows, including updated and deleted rows that are not merged yet."""
        return sum(run.rows for run in self._manifest.runs)

    def close(self) -> None:
        """Close the streams of segments that stay open with a cache."""
        self._segments.close()

    def between(self, first: int, end: int) -> "RestoredTable":
        """Restrict the table to rows with `first` <= sort key < `end`; others are not read, if possible."""
        low, high = max(first, self._range[0]), min(end, self._range[1])
        manifest = self._manifest.within(low, high)
        return replace(self, _manifest=manifest, _range=(low, max(low, high)))


def open_table(
    handle: SegmentsStateHandle, table: TableManifest, cache: BlockCache | None = None
) -> RestoredTable:
    """Open a table of a handle of segments, whose manifest was read.

    With a cache, blocks and streams stay open after a read, for the next reads.
    """
    segments = StoredSegments(handle.segments, cache)
    groups = KeyGroupRange(*handle.key_groups)
    return RestoredTable(table.spec, table, segments, sort_key_range(groups))


def read_tables(
    handles: Sequence[SegmentsStateHandle], key_groups: KeyGroupRange
) -> list[RestoredTable]:
    """Open the tables of several handles of segments, restricted to some key groups.

    Raises:
        InvalidRequestError: Two handles have rows of one key group of a table.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A manifest is corrupt, or names a segment that its handle doesn't have.
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
    """Read the manifests of several handles, restricted to some key groups. Raises as `read_tables`."""
    first, end = sort_key_range(key_groups)
    manifests = []
    stored: list[tuple[KeyGroupRange, Collection[str]]] = []
    for handle in handles:
        content = read_manifest_bytes(handle)
        location = location_of(handle.manifest)
        manifest = decode_manifest(content, location)
        missing = manifest.segments - handle.segments.keys()
        if missing:
            message = f"manifest names segments {sorted(missing)}, which its handle doesn't have"
            raise CheckpointCorruptedError(message, location)
        groups = KeyGroupRange(*handle.key_groups)
        stored.append((groups, [name for name, table in manifest.tables.items() if table.runs]))
        low, high = sort_key_range(groups)
        manifests.append(manifest.within(max(first, low), min(end, high)))
    check_disjoint(stored)
    return Manifest.union(manifests)


def check_disjoint(stored: Iterable[tuple[KeyGroupRange, Collection[str]]]) -> None:
    """Raise `InvalidRequestError` if two handles have rows of one key group of a table.

    A handle is given by its key groups, and the names of the tables that it has rows of. A savepoint that was written
    with the API has several handles of a key group, with different tables.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    for groups, names in stored:
        for name in names:
            ranges.setdefault(name, []).append((groups.start_key_group, groups.end_key_group))
    for name, of_table in ranges.items():
        for (_, last), (first, _) in itertools.pairwise(sorted(of_table)):
            if first <= last:
                message = (
                    f"two handles have rows of key group {first} of state {name!r}, which would be duplicated; "
                    "pass each handle once"
                )
                raise InvalidRequestError(message)


def read_manifest_bytes(handle: SegmentsStateHandle) -> bytes:
    """Read the manifest of a handle, of tables or of a RocksDB database. Raises `CheckpointNotFoundError`."""
    manifest = handle.manifest
    if isinstance(manifest, ByteStreamStateHandle):
        return manifest.data
    with manifest.open_input_stream() as stream:
        return bytes(read_exactly(stream, manifest.size))


class StoredSegments:
    """Segments of several handles, each opened when it is first used."""

    def __init__(
        self, streams: Mapping[str, StreamStateHandle], cache: BlockCache | None = None
    ) -> None:
        self._streams = streams
        self._cache = cache
        self._segments: dict[str, StoredSegment] = {}

    def close_after_read(self) -> None:
        """Close all streams, unless more reads are expected; the next read opens them again."""
        if self._cache is None:
            self.close()

    def close(self) -> None:
        """Close all streams."""
        for segment in self._segments.values():
            segment.close()

    def check_rows(self, slice_: Slice) -> None:
        """Raise `CheckpointCorruptedError` if a slice has more rows than its section: scanning would take forever."""
        segment = self._segment(slice_)
        stored = segment.section(slice_.section).rows
        if slice_.rows > stored:
            raise segment.corrupted_error(
                f"section {slice_.section} has {stored} rows, but {slice_.rows} in its manifest"
            )

    def locate(self, slice_: Slice, table: str) -> "LocatedRows":
        """Read the sort keys of a slice of a table."""
        segment = self._segment(slice_)
        section = segment.section(slice_.section)
        if section.table != table:
            raise segment.corrupted_error(
                f"section {slice_.section} belongs to table {section.table!r}"
            )
        is_small = section.length <= _MAX_SINGLE_READ_BYTES
        if is_small:  # a single request instead of several per column
            section = segment.load_section(slice_.section)
        first, sort_keys = section.keys_between(slice_.first, slice_.end)
        reads_whole = 2 * len(sort_keys) > section.rows and not is_small
        load_whole = partial(segment.load_section, slice_.section) if reads_whole else None
        return LocatedRows(slice_, section, first, sort_keys, load_whole)

    def _segment(self, slice_: Slice) -> StoredSegment:
        name = slice_.segment
        segment = self._segments.get(name)
        if segment is None:
            segment = StoredSegment(name, self._streams[name], slice_.tail_bytes, self._cache)
            self._segments[name] = segment
        return segment


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """Rows of a slice whose sort keys have been read, but no other columns."""

    slice: Slice
    section: Section
    first: int
    sort_keys: SortKeys
    load_whole: Callable[[], Section] | None

    def open(self, spec: TableSpec, migration: Migration | None = None) -> OpenSlice:
        """Read the rows into memory."""
        section = self.section if self.load_whole is None else self.load_whole()
        rows = SectionRows(section, spec, migration).load(self.first, self.sort_keys)
        return OpenSlice(rows, deleted_up_to_ms=self.slice.deleted_up_to_ms)
