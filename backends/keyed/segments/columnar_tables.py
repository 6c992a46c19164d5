"""All tables of a subtask in sorted columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import BoundedSemaphore

from holdfast.backends.keyed.compatibility import check_same_spec
from holdfast.backends.keyed.segments.checkpoint_files import (
    ConfirmedFiles,
    finish_stream,
    handle_of_files,
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
from holdfast.common import ProcessCache, map_in_parallel
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle, StreamStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStreamFactory,
    copy_bytes,
)

_Streams = Mapping[str, StreamStateHandle]
"""Stored segments by name."""

_UPLOADS_AT_A_TIME = 4
"""The limit is for all subtasks of a process. Each upload can have several parts of 8 MiB in memory."""

_UPLOADS: ProcessCache[None, BoundedSemaphore] = ProcessCache()

_COPIES_AT_A_TIME = 16
"""Half of the connections that an S3 client keeps."""


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
        files = self._store.files(new_names)
        segments = self._store.open_segments(new_names) | {
            name: self._store.segment(name) for name in new_names - files.keys()
        }
        kept = {name: confirmed[name] for name in captured.segments - new_names}
        self._confirmed.pending[checkpoint_id] = captured.segments
        return _CapturedTables(checkpoint_id, captured, segments, files, kept)

    def async_snapshot(
        self, resources: "_CapturedTables", streams: SnapshotStreams
    ) -> SnapshotResult:
        """Write new segments and the manifest, and refer to confirmed segments.

        Segments that the checkpoint must not refer to, because they belong to another job, are copied by the store.
        """
        if not resources.manifest.tables:
            return SnapshotResult()
        content = encode_manifest(resources.manifest)
        names = sorted(resources.segments.keys() | resources.files.keys())
        writes = [partial(resources.write, name, streams) for name in names]
        writes.append(partial(write_manifest, streams, content))
        sizes = [*map(resources.size, names), len(content)]
        *written, manifest = (
            map_in_parallel(lambda write: write(), writes, max_threads=_COPIES_AT_A_TIME)
            if sum(size > streams.inline_threshold for size in sizes) > 1
            else [write() for write in writes]  # a thread costs more than bytes in a handle
        )
        new = dict(zip(names, written, strict=True))
        handle = handle_of_files(manifest, self.key_groups, new, resources.confirmed)
        self._confirmed.note_written(resources.checkpoint_id, {**resources.confirmed, **new})
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._confirmed.confirm(checkpoint_id):
            self._store.fetch_from(self._confirmed.files)
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
    """Tables as they were when the snapshot was taken.

    Attributes:
        checkpoint_id: The checkpoint of the snapshot.
        manifest: The tables.
        segments: Segments that belong to no confirmed checkpoint: the new ones, and restored ones that are open.
        files: The stored files of restored segments that belong to no confirmed checkpoint.
        confirmed: The segments of the last confirmed checkpoint.
    """

    checkpoint_id: int
    manifest: Manifest
    segments: dict[str, OpenSegment]
    files: dict[str, FileStateHandle]
    confirmed: _Streams

    def size(self, name: str) -> int:
        """Return the size of a segment that belongs to no confirmed checkpoint, in bytes."""
        stored: FileStateHandle | OpenSegment = self.files.get(name) or self.segments[name]
        return stored.size

    def write(self, name: str, streams: SnapshotStreams) -> StreamStateHandle:
        """Write a segment that belongs to no confirmed checkpoint."""
        file, segment = self.files.get(name), self.segments.get(name)
        with streams.open(CheckpointedStateScope.SHARED) as stream:
            if file is not None and stream.adopt_stored(file):
                return finish_stream(streams, stream)
            with _UPLOADS.get(None, lambda: BoundedSemaphore(_UPLOADS_AT_A_TIME)):
                if segment is not None:
                    segment.write_to(stream)
                elif file is not None:
                    with file.open_input_stream() as source:
                        copy_bytes(source, stream)
                return finish_stream(streams, stream)

    def release(self) -> None:
        self.segments = {}
