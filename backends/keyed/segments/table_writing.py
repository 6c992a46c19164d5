"""Tables written whole, into a single segment that belongs to one checkpoint: for heap snapshots and savepoints."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from holdfast.backends.keyed.columns import cut, from_arrow
from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    Run,
    Slice,
    TableManifest,
    encode_manifest,
)
from holdfast.backends.keyed.segments.ranges import sort_key_range
from holdfast.backends.keyed.segments.rows import SortedRows
from holdfast.backends.keyed.segments.segment_writer import SegmentWriter
from holdfast.backends.keyed.segments.stored_specs import StoredSpec
from holdfast.backends.keyed.table import TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStateOutputStream

STEP_ROWS = 1 << 18
"""Rows of a section: what is read back is held in memory by sections."""


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
