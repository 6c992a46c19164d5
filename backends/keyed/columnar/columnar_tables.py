"""All tables of a subtask in sorted columns."""

import threading
from collections.abc import Mapping, Sequence
from typing import TypeVar

from holdfast.backends.keyed.columnar.columnar_snapshot import (
    CapturedTables,
    ColumnarSnapshotStrategy,
)
from holdfast.backends.keyed.columnar.columnar_table import ColumnarTable
from holdfast.backends.keyed.columnar.compaction import Compaction, NewSegment
from holdfast.backends.keyed.columnar.policy import MergePolicy
from holdfast.backends.keyed.columnar.segment_store import SegmentStore
from holdfast.backends.keyed.columnar.workspace import Workspace
from holdfast.backends.keyed.segments import (
    Manifest,
    Section,
    Slice,
    StoredSpec,
    TableManifest,
    read_manifest,
    sort_key_range,
)
from holdfast.backends.keyed.table import Migration, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointStreamFactory


class ColumnarStateTables:
    """Tables over segments that several checkpoints refer to. Used by one thread.

    Segments are opened when a row may be in them. A snapshot makes two segments at most, and merges a
    bounded part of the rows.

    Args:
        key_groups: The key groups of the subtask.
        handles: The stored state, which such tables or `HeapStateTables` wrote; no two handles have rows of one
            key group.
        directory: The path of a directory on this host for copies of segments, which stay there when the tables
            are closed. Segments that the disk doesn't take are kept in memory; without a directory all are.
        policy: When rows are merged.
        workspace: Files and memory that stay open from one batch to the next; None makes a new workspace.
        may_refer: Whether checkpoints may refer to the segments that were restored. Not if these belong
            to a savepoint, or to another job.

    Raises:
        InvalidRequestError: Two handles have rows of one key group, or the directory is a URI.
        CheckpointNotFoundError: A manifest is gone.
        CheckpointCorruptedError: A manifest is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it, or RocksDB has the rows.
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
            message = f"{directory!r} is no path of a directory on this host, where copies of segments could be"
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
        self._lock = threading.Lock()  # a part that runs in another thread tells what it wrote
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
            if not table.spec.equals(spec):
                message = f"state {spec.name!r} is {table.spec} already, and can't be {spec} too"
                raise InvalidRequestError(message)
            return table
        manifest = self._restored.get(spec.name)
        if manifest is None:
            manifest = TableManifest((StoredSpec.of(spec),))
        elif not manifest.spec.equals(spec):
            manifest = manifest.with_spec(StoredSpec.of(spec))
        table = ColumnarTable(
            spec,
            manifest,
            sections=self._section,
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
        """Capture all rows; the snapshot writes them, in any thread.

        Raises:
            CheckpointCorruptedError: A segment that was to be merged is damaged.
        """

        def written(streams: Mapping[str, StreamStateHandle]) -> None:
            with self._lock:
                if checkpoint_id in self._pending:
                    self._written[checkpoint_id] = streams

        strategy = ColumnarSnapshotStrategy(self._key_groups, self._capture, written)
        resources = strategy.sync_prepare_resources(checkpoint_id)
        self._pending[checkpoint_id] = resources.manifest.segments
        return AsyncSnapshot.of(strategy, resources, factory)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._confirmed_id:
            return
        self._confirmed_id = checkpoint_id
        with self._lock:
            self._confirmed = self._written.get(checkpoint_id, self._confirmed)
            self._written = _later(self._written, checkpoint_id)
        self._pending = _later(self._pending, checkpoint_id)
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

    def _capture(self) -> CapturedTables:
        """Make what was written lately segments, merge, and capture what the tables are then."""
        new, merged = NewSegment(), NewSegment()
        self._workspace.arena.reset()
        manifests = {
            name: Compaction(
                table, self._policy, new=new, merged=merged, arena=self._workspace.arena
            ).manifest()
            for name, table in self._tables.items()
        }
        for segment in (new, merged):
            if segment.writer.sections:
                checksum = segment.writer.finish()
                self._store.add(segment.name, segment.parts, checksum)
        for name, manifest in manifests.items():  # nothing fails from here on
            self._tables[name].commit(manifest)
        whole = self._manifest()
        names = whole.segments
        return CapturedTables(
            whole,
            {name: self._store.segment(name) for name in names if name not in self._confirmed},
            {name: self._confirmed[name] for name in names if name in self._confirmed},
        )

    def _delete_unused(self) -> None:
        """Delete local copies that neither the tables need, nor a checkpoint that exists or may come to."""
        used = self._manifest().segments | self._confirmed.keys()
        for names in self._pending.values():
            used |= names
        self._store.discard(self._store.names - used)

    def _section(self, piece: Slice) -> Section:
        segment = self._store.segment(piece.segment)
        section = segment.section(piece.section)
        if section.table not in self._tables:
            message = (
                f"segment {piece.segment}: section {piece.section} is of table {section.table!r}"
            )
            raise CheckpointCorruptedError(message, segment.location)
        return section


_Value = TypeVar("_Value")


def _later(by_checkpoint: Mapping[int, _Value], checkpoint_id: int) -> dict[int, _Value]:
    """The entries of checkpoints after this one."""
    return {number: value for number, value in by_checkpoint.items() if number > checkpoint_id}
