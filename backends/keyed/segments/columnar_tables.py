"""All tables of a subtask in sorted columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.backends.keyed.compatibility import check_same_spec
from holdfast.backends.keyed.segments.checkpoint_files import (
    ConfirmedFiles,
    finish_stream,
    write_manifest,
)
from holdfast.backends.keyed.segments.columnar_table import ColumnarTable
from holdfast.backends.keyed.segments.compaction import Compaction, MergePolicy, NewSegments
from holdfast.backends.keyed.segments.manifest import (
    Manifest,
    StoredSpec,
    TableManifest,
    encode_manifest,
)
from holdfast.backends.keyed.segments.merging import sort_key_range
from holdfast.backends.keyed.segments.partial_segment import FetchPolicy
from holdfast.backends.keyed.segments.segment_store import (
    OpenSegment,
    SegmentStore,
    Workspace,
)
from holdfast.backends.keyed.segments.table_reader import read_manifest
from holdfast.backends.keyed.table import Migration, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot, SnapshotResult, SnapshotStreams
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStreamFactory

_Streams = Mapping[str, StreamStateHandle]
"""Stored segments by name."""


class ColumnarStateTables:
    """Tables over segments that several checkpoints share. Used by one thread.

    A segment is opened when it may have a requested row. A snapshot makes at most two segments, unless they would be
    larger than 64 MiB, and merges a bounded part of the rows.

    Arguments and errors are those of `open_tables`; also `InvalidRequestError` if two handles have rows of one key group
    or the directory is a URI, and `UnsupportedFormatError` for RocksDB's files. Copies of segments remain in the directory
    when the tables are closed. Segments are in memory if the disk is full, or without a directory.
    """

    def __init__(
        self,
        key_groups: KeyGroupRange,
        handles: Sequence[SegmentsStateHandle] = (),
        *,
        directory: str | None = None,
        policy: MergePolicy | None = None,
        fetch_policy: FetchPolicy | None = None,
        workspace: Workspace | None = None,
        may_refer: bool = True,
    ) -> None:
        if directory is not None and "://" in str(directory):
            message = (
                f"the directory for copies of segments must be a local path, got {directory!r}"
            )
            raise InvalidRequestError(message)
        self.key_groups = key_groups
        self._policy = policy or MergePolicy()
        self._workspace = workspace or Workspace()
        restored = read_manifest(handles, key_groups)
        self._restored = dict(restored.tables)
        streams = {name: file for handle in handles for name, file in handle.segments.items()}
        self._store = SegmentStore(
            directory, self._workspace, streams, restored.tails, fetch_policy or FetchPolicy()
        )
        self._tables: dict[str, ColumnarTable] = {}
        self._now_ms = 0
        self._confirmed = ConfirmedFiles[_Streams](streams if may_refer else {})

    def table(
        self, spec: TableSpec, migration: Migration | None = None, *, rewrite: bool = False
    ) -> ColumnarTable:
        table = self._tables.get(spec.name)
        if table is not None:
            check_same_spec(table.spec, spec)
            return table
        manifest = self._restored.get(spec.name)
        if manifest is None:
            manifest = TableManifest((StoredSpec.of(spec),))
        elif not manifest.spec.equals(spec):
            manifest = manifest.with_spec(StoredSpec.of(spec))
        table = ColumnarTable(
            spec,
            manifest,
            segments=self._store,
            sort_keys=sort_key_range(self.key_groups),
            now_ms=lambda: self._now_ms,
            migration=migration,
            rewrite=rewrite,
        )
        self._tables[spec.name] = table
        self._restored.pop(spec.name, None)
        return table

    def specs(self) -> Mapping[str, TableSpec]:
        restored = {name: manifest.spec for name, manifest in self._restored.items()}
        return restored | {name: table.spec for name, table in self._tables.items()}

    def drop(self, name: str) -> None:
        self._tables.pop(name, None)
        self._restored.pop(name, None)

    def advance_time(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        """Capture all rows; raises `CheckpointCorruptedError` if a segment that would be merged is corrupt."""
        return AsyncSnapshot.of(self, self.sync_prepare_resources(checkpoint_id), factory)

    def sync_prepare_resources(self, checkpoint_id: int) -> "_CapturedTables":
        """Write recent writes to segments, merge, and capture the resulting tables."""
        new, merged = NewSegments(), NewSegments()
        arena = self._workspace.arena
        arena.reset()
        manifests = {
            name: Compaction(table, self._policy, new=new, merged=merged, arena=arena).compact()
            for name, table in self._tables.items()
        }
        tails: dict[str, int] = {}
        for segment in (*new.all, *merged.all):
            checksum = segment.finish()
            self._store.add(segment.name, segment.buffers, checksum)
            tails[segment.name] = segment.tail_bytes
        for name, manifest in manifests.items():  # nothing fails from here on
            self._tables[name].commit(manifest.with_tails(tails))
        captured = self._manifest()
        confirmed = self._confirmed.files
        new_names = captured.segments - confirmed.keys()
        segments = {name: self._store.segment(name) for name in new_names}
        kept = {name: confirmed[name] for name in captured.segments - new_names}
        self._confirmed.pending[checkpoint_id] = captured.segments
        return _CapturedTables(checkpoint_id, captured, segments, kept)

    def async_snapshot(
        self, resources: "_CapturedTables", streams: SnapshotStreams
    ) -> SnapshotResult:
        """Write new segments and the manifest, and refer to confirmed segments."""
        if not resources.manifest.tables:
            return SnapshotResult()
        new: dict[str, StreamStateHandle] = {}
        for name, segment in resources.segments.items():
            with streams.open(CheckpointedStateScope.SHARED) as stream:
                segment.write_to(stream)
                new[name] = finish_stream(streams, stream)
        manifest = encode_manifest(resources.manifest)
        handle = write_manifest(streams, manifest, self.key_groups, new, resources.confirmed)
        self._confirmed.note_written(resources.checkpoint_id, {**resources.confirmed, **new})
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._confirmed.confirm(checkpoint_id):
            self._delete_unused()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._confirmed.abort(checkpoint_id)

    def close(self) -> None:
        self._tables = {}
        self._restored = {}
        self._store.close()

    def _manifest(self) -> Manifest:
        tables = {name: table.manifest for name, table in self._tables.items()}
        return Manifest({**self._restored, **tables})

    def _delete_unused(self) -> None:
        """Delete local copies that neither the tables nor a confirmed or pending checkpoint need."""
        used = self._manifest().segments | self._confirmed.files.keys()
        self._store.discard(self._store.names - used.union(*self._confirmed.pending.values()))


@dataclass(slots=True)
class _CapturedTables:
    """Tables as they were when the snapshot was taken, with new segments and those of the last confirmed checkpoint."""

    checkpoint_id: int
    manifest: Manifest
    segments: dict[str, OpenSegment]
    confirmed: _Streams

    def release(self) -> None:
        self.segments = {}
