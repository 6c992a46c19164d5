"""How a snapshot of columnar tables gets into a checkpoint: segments that it lacks are written, the rest is referred to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.backends.keyed.segments import Manifest, Segment, encode_manifest, finish
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotResult, SnapshotStreams
from holdfast.locations.handles import (
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope


@dataclass(slots=True)
class CapturedTables:
    """Tables as they were when the snapshot was taken.

    Attributes:
        manifest: The manifest of the captured tables.
        segments: The segments that the last confirmed checkpoint doesn't have, by name.
        confirmed: The streams of the others, by name.
    """

    manifest: Manifest
    segments: dict[str, Segment]
    confirmed: dict[str, StreamStateHandle]

    def release(self) -> None:
        """Let go of the segments."""
        self.segments = {}


@dataclass(frozen=True, slots=True)
class ColumnarSnapshotStrategy:
    """Writes new segments, and the manifest.

    Attributes:
        key_groups: The key groups of the subtask.
        capture: Captures the current state of all tables.
        written: Called with the stream of every segment once the snapshot is written.
    """

    key_groups: KeyGroupRange
    capture: Callable[[], CapturedTables]
    written: Callable[[Mapping[str, StreamStateHandle]], None]

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedTables:  # noqa: ARG002  # the port's
        return self.capture()

    def async_snapshot(self, resources: CapturedTables, streams: SnapshotStreams) -> SnapshotResult:
        if not resources.manifest.tables:
            return SnapshotResult()
        new: dict[str, StreamStateHandle] = {}
        for name, segment in resources.segments.items():
            with streams.open(CheckpointedStateScope.SHARED) as stream:
                segment.write_to(stream)
                new[name] = finish(streams, stream)
        with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
            stream.write(encode_manifest(resources.manifest))
            manifest = finish(streams, stream)
        self.written({**resources.confirmed, **new})
        references = {
            name: PlaceholderStreamStateHandle(name, stream.size)
            for name, stream in resources.confirmed.items()
        }
        key_groups = self.key_groups.start_key_group, self.key_groups.end_key_group
        handle = SegmentsStateHandle(key_groups, {**references, **new}, manifest)
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))
