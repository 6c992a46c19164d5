"""All tables of a subtask in sorted columns."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.backends.keyed.columnar.columnar_table import ColumnarTable
from holdfast.backends.keyed.columnar.compaction import Compaction, NewSegment
from holdfast.backends.keyed.columnar.policy import MergePolicy
from holdfast.backends.keyed.columnar.segment_store import SegmentStore, Workspace
from holdfast.backends.keyed.compatibility import check_same_spec
from holdfast.backends.keyed.segments import (
    Manifest,
    Section,
    Segment,
    Slice,
    StoredSpec,
    TableManifest,
    encode_manifest,
    finish_stream,
    read_manifest,
    sort_key_range,
)
from holdfast.backends.keyed.table import Migration, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import (
    AsyncSnapshot,
    SnapshotResult,
    SnapshotStreams,
)
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import (
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStreamFactory


class ColumnarStateTables:
    """Tables over segments that several checkpoints share. Used by one thread.

    A segment is opened when it may have a requested row. A snapshot makes at most two segments, and merges a bounded
    part of the rows.

    Args:
        key_groups: The key groups of the subtask.
        handles: The stored state, written by such tables or by `HeapStateTables`; no two handles have rows of one
            key group.
        directory: A directory on this host for copies of segments, which remain there when the tables are closed.
            Segments are in memory if the disk is full, or without a directory.
        policy: The merge policy.
        workspace: Open segments and memory that are kept between batches; None makes a new workspace.
        may_refer: Whether checkpoints may refer to the restored segments: not if these belong to a savepoint or to
            another job.

    Raises:
        InvalidRequestError: Two handles have rows of one key group, or the directory is a URI.
        CheckpointNotFoundError: A manifest is gone.
        CheckpointCorruptedError: A manifest is corrupt.
        UnsupportedFormatError: A newer Holdfast wrote it, or it is that of a RocksDB database.
    """

    def __init__(
        self,
        key_groups: KeyGroupRange,
        handles: Sequence[SegmentsStateHandle] = (),
        *,
        directory: str | None = None,
        policy: MergePolicy | None = None,
        workspace: Workspace | None = None,
        may_refer: bool = True,
    ) -> None:
        if directory is not None and "://" in str(directory):
            message = (
                f"the directory for copies of segments must be a local path, got {directory!r}"
            )
            raise InvalidRequestError(message)
        self._key_groups = key_groups
        self._policy = policy or MergePolicy()
        self._workspace = workspace or Workspace()
        self._restored = dict(read_manifest(handles, key_groups).tables)
        streams: dict[str, StreamStateHandle] = {}
        for handle in handles:
            streams.update(handle.segments)
        self._store = SegmentStore(directory, self._workspace, streams)
        self._tables: dict[str, ColumnarTable] = {}
        self._now_ms = 0
        self._lock = threading.Lock()  # snapshots can be written in another thread
        self._written: dict[int, Mapping[str, StreamStateHandle]] = {}  # by checkpoint
        self._confirmed: Mapping[str, StreamStateHandle] = streams if may_refer else {}
        self._confirmed_id = 0
        self._pending: dict[int, frozenset[str]] = {}  # names of segments, by checkpoint

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

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
            open_section=self._open_section,
            sort_keys=sort_key_range(self._key_groups),
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
        """Capture all rows; the returned snapshot writes them, in any thread.

        Raises:
            CheckpointCorruptedError: A segment that would be merged is corrupt.
        """

        def note_streams(streams: Mapping[str, StreamStateHandle]) -> None:
            with self._lock:
                if checkpoint_id in self._pending:
                    self._written[checkpoint_id] = streams

        strategy = _ColumnarSnapshotStrategy(self._key_groups, self._capture, note_streams)
        resources = strategy.sync_prepare_resources(checkpoint_id)
        self._pending[checkpoint_id] = resources.manifest.segments
        return AsyncSnapshot.of(strategy, resources, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._confirmed_id:
            return
        self._confirmed_id = checkpoint_id
        with self._lock:
            self._confirmed = self._written.get(checkpoint_id, self._confirmed)
            self._written = _entries_after(self._written, checkpoint_id)
        self._pending = _entries_after(self._pending, checkpoint_id)
        self._delete_unused()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        with self._lock:
            self._written.pop(checkpoint_id, None)
        self._pending.pop(checkpoint_id, None)

    def close(self) -> None:
        self._tables = {}
        self._restored = {}
        self._store.close()

    def _manifest(self) -> Manifest:
        tables = {name: table.manifest for name, table in self._tables.items()}
        return Manifest({**self._restored, **tables})

    def _capture(self) -> "_CapturedTables":
        """Write recent writes to segments, merge, and capture the resulting tables."""
        new, merged = NewSegment(), NewSegment()
        self._workspace.arena.reset()
        manifests = {
            name: Compaction(
                table, self._policy, new=new, merged=merged, arena=self._workspace.arena
            ).compact()
            for name, table in self._tables.items()
        }
        for segment in (new, merged):
            if segment.writer.sections:
                checksum = segment.writer.finish()
                self._store.add(segment.name, segment.buffers, checksum)
        for name, manifest in manifests.items():  # nothing fails from here on
            self._tables[name].commit(manifest)
        captured = self._manifest()
        names = captured.segments
        return _CapturedTables(
            captured,
            {name: self._store.segment(name) for name in names if name not in self._confirmed},
            {name: self._confirmed[name] for name in names if name in self._confirmed},
        )

    def _delete_unused(self) -> None:
        """Delete local copies that neither the tables nor a confirmed or pending checkpoint need."""
        used = self._manifest().segments | self._confirmed.keys()
        for names in self._pending.values():
            used |= names
        self._store.discard(self._store.names - used)

    def _open_section(self, slice_: Slice) -> Section:
        segment = self._store.segment(slice_.segment)
        section = segment.section(slice_.section)
        if section.table not in self._tables:
            message = f"section {slice_.section} belongs to table {section.table!r}"
            raise segment.corrupted_error(message)
        return section


@dataclass(slots=True)
class _CapturedTables:
    """Tables as they were when the snapshot was taken.

    Attributes:
        manifest: The manifest of the tables.
        segments: The segments that the last confirmed checkpoint doesn't have, by name.
        confirmed: The streams of the other segments, by name.
    """

    manifest: Manifest
    segments: dict[str, Segment]
    confirmed: dict[str, StreamStateHandle]

    def release(self) -> None:
        """Release the segments."""
        self.segments = {}


@dataclass(frozen=True, slots=True)
class _ColumnarSnapshotStrategy:
    """Writes new segments and the manifest, and refers to confirmed segments.

    Attributes:
        key_groups: The key groups of the subtask.
        capture: Captures the current state of all tables.
        note_streams: Called with the stream of every segment once the snapshot is written.
    """

    key_groups: KeyGroupRange
    capture: Callable[[], _CapturedTables]
    note_streams: Callable[[Mapping[str, StreamStateHandle]], None]

    def sync_prepare_resources(self, checkpoint_id: int) -> _CapturedTables:  # noqa: ARG002  # the port's
        return self.capture()

    def async_snapshot(
        self, resources: _CapturedTables, streams: SnapshotStreams
    ) -> SnapshotResult:
        if not resources.manifest.tables:
            return SnapshotResult()
        new: dict[str, StreamStateHandle] = {}
        for name, segment in resources.segments.items():
            with streams.open(CheckpointedStateScope.SHARED) as stream:
                segment.write_to(stream)
                new[name] = finish_stream(streams, stream)
        with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
            stream.write(encode_manifest(resources.manifest))
            manifest = finish_stream(streams, stream)
        self.note_streams({**resources.confirmed, **new})
        references = {
            name: PlaceholderStreamStateHandle(name, stream.size)
            for name, stream in resources.confirmed.items()
        }
        key_groups = self.key_groups.start_key_group, self.key_groups.end_key_group
        handle = SegmentsStateHandle(key_groups, {**references, **new}, manifest)
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))


_Value = TypeVar("_Value")


def _entries_after(by_checkpoint: Mapping[int, _Value], checkpoint_id: int) -> dict[int, _Value]:
    """Return the entries of checkpoints after this one."""
    return {number: value for number, value in by_checkpoint.items() if number > checkpoint_id}
