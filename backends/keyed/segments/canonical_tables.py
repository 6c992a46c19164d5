"""Tables of segments written anew in the canonical form: rows that count, merged, and no others.

Values stay as they were stored. Where the type of a state has changed, and not all of its rows are in the new
form yet, only the job can make these of those: rows of different forms are not merged, but lie in runs of their own.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.backends.keyed.segments.manifest import Slice, TableManifest
from holdfast.backends.keyed.segments.merging import Part, merged
from holdfast.backends.keyed.segments.ranges import Layer, sort_key_range
from holdfast.backends.keyed.segments.rows import SortedRows
from holdfast.backends.keyed.segments.segment_writer import SegmentWriter
from holdfast.backends.keyed.segments.stored_specs import migration_of
from holdfast.backends.keyed.segments.table_writing import STEP_ROWS, RunWriter, write_segment
from holdfast.backends.keyed.segments.whole_tables import LocatedRows, StoredSegments, read_manifest
from holdfast.backends.keyed.table import TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import raise_if_cancelled
from holdfast.errors import StateMigrationError
from holdfast.locations.handles import SegmentsStateHandle

MERGED_ROWS = STEP_ROWS * 3 // 4
"""About so many rows are merged at a time: most steps become a section each."""

_STEP_BYTES = 32 << 20
"""Fewer rows are merged at a time if they have more than so many bytes."""

_MOST_STEPS = 2
"""Where more rows lie together than so many steps should have, they are divided once more."""


def write_canonical_tables(
    handle: SegmentsStateHandle, streams: SnapshotStreams, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the rows of segments that count into a single segment, step by step.

    Args:
        handle: Leads to the segments; of its key groups alone rows count.
        streams: Where the segment and its manifest go.
        now_ms: The time by which rows expire, milliseconds.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: What was read is not what was written.
        UnsupportedFormatError: A newer Holdfast wrote it, or it is in RocksDB's files.
        StorageUnavailableError: The store did not take it.
    """
    key_groups = KeyGroupRange(*handle.key_groups)
    manifest = read_manifest([handle], key_groups)
    segments = StoredSegments(handle.segments)
    first, end = sort_key_range(key_groups)

    def written(writer: SegmentWriter, segment: str) -> dict[str, TableManifest]:
        return {
            name: _Canonical(table, segments, now_ms).written(writer, segment, first, end)
            for name, table in manifest.tables.items()
        }

    try:
        return write_segment(written, key_groups, streams)
    finally:
        segments.close()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a slice between two sort keys, of which only the sort keys have been read."""

    piece: Slice
    form: int
    located: LocatedRows


class _Canonical:
    """A table that is written anew.

    Args:
        table: Which rows count.
        segments: Leads to them.
        now_ms: The time by which rows expire.
    """

    def __init__(self, table: TableManifest, segments: StoredSegments, now_ms: int) -> None:
        self._table = table
        self._segments = segments
        self._specs = [stored.spec() for stored in table.specs]
        self._newest = len(self._specs) - 1
        self._forms = [
            self._newest if _is_alike(spec, table.spec) else number
            for number, spec in enumerate(self._specs)
        ]
        self._used = sorted({self._newest, *(self._forms[piece.spec] for piece in table.slices())})
        self._now_ms = [self._time_of(form, now_ms) for form in self._forms]
        rows = sum(piece.rows for piece in table.slices())
        size = sum(piece.size for piece in table.slices())
        self._step_rows = max(1, min(MERGED_ROWS, int(_STEP_BYTES * rows / max(1, size))))
        self._steps = max(1, -(-rows // self._step_rows))

    def written(self, writer: SegmentWriter, segment: str, first: int, end: int) -> TableManifest:
        """Add the rows between two sort keys to a segment of that name."""
        runs: list[RunWriter] = []  # from the bottom up
        for low, high in itertools.pairwise(self._edges(first, end)):
            for step in self._parts(low, high):
                raise_if_cancelled()
                for depth, (form, rows) in enumerate(self._merged(step)):
                    if depth == len(runs):
                        runs.append(RunWriter(writer, segment, self._table.spec.name))
                    runs[depth].add(rows, self._specs[form], self._used.index(form))
        return TableManifest(
            tuple(self._table.specs[form] for form in self._used),
            tuple(run for depth in reversed(runs) for run in depth.runs(end)),
        )

    def _edges(self, first: int, end: int) -> list[int]:
        """Sort keys between which there is a step of rows, if they lie evenly, and no change of form."""
        edges = {first + (end - first) * step // self._steps for step in range(self._steps + 1)}
        if len(self._used) > 1:
            edges |= {edge for piece in self._table.slices() for edge in (piece.first, piece.end)}
        return sorted(edges)

    def _parts(self, low: int, high: int) -> Iterator[list[_Part]]:
        """The rows between two sort keys, newest first; several times some of them if there are too many."""
        pieces = (piece.within(low, high) for piece in self._table.slices())
        parts = [
            _Part(
                piece, self._forms[piece.spec], self._segments.located(piece, self._table.spec.name)
            )
            for piece in pieces
            if piece is not None
        ]
        keys = [part.located.sort_keys for part in parts]
        if sum(map(len, keys)) > _MOST_STEPS * self._step_rows:
            ordered = np.sort(np.concatenate(keys))
            cuts = np.unique(ordered[self._step_rows :: self._step_rows]).tolist()
            edges = [low, *(cut for cut in cuts if cut > low), high]
            if len(edges) > 2:
                for start, stop in itertools.pairwise(edges):
                    yield from self._parts(start, stop)
                return
        yield parts

    def _merged(self, parts: list[_Part]) -> Iterator[tuple[int, SortedRows]]:
        """The rows that count, of one form after the other, from the bottom up; and which form it is."""
        forms = [(form, list(of_form)) for form, of_form in itertools.groupby(parts, _form)]
        for number, (form, of_form) in enumerate(reversed(forms)):
            rows = [self._rows(part) for part in of_form]
            yield (
                form,
                merged(rows, self._specs[form], is_bottom=not number, now_ms=self._now_ms[form]),
            )

    def _rows(self, part: _Part) -> Part:
        rows = part.located.rows(self._specs[part.piece.spec])
        return Layer(rows, dead_up_to_ms=part.piece.dead_up_to_ms).part()

    def _time_of(self, form: int, now_ms: int) -> int | None:
        """The time by which rows of a form expire, which live as long as those of the newest form."""
        lives_ms, of_form_ms = self._table.spec.ttl_ms, self._specs[form].ttl_ms
        return None if lives_ms is None or of_form_ms is None else now_ms - lives_ms + of_form_ms


def _form(part: _Part) -> int:
    return part.form


def _is_alike(stored: TableSpec, newest: TableSpec) -> bool:
    """Whether values that were stored so are what the table has now, as they are."""
    try:
        return migration_of(stored, newest, None) is None
    except StateMigrationError:
        return False
