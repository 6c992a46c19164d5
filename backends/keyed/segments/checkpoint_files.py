"""Files of a checkpoint's keyed state: streams, handles, and the files that later checkpoints may refer to."""

import os
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.locations.handles import (
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStateOutputStream

_Files = TypeVar("_Files")


def new_segment_name() -> str:
    """Return a unique name for a segment."""
    return os.urandom(16).hex()


def finish_stream(
    streams: SnapshotStreams, stream: CheckpointStateOutputStream
) -> StreamStateHandle:
    """Close a stream that is not empty. Raises `StorageUnavailableError`."""
    handle = streams.finish(stream)
    assert handle is not None  # only of an empty stream
    return handle


def write_manifest(streams: SnapshotStreams, content: bytes) -> StreamStateHandle:
    """Write a manifest. Raises `StorageUnavailableError`."""
    with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
        stream.write(content)
        return finish_stream(streams, stream)


def handle_of_files(
    manifest: StreamStateHandle,
    key_groups: KeyGroupRange,
    new: Mapping[str, StreamStateHandle],
    confirmed: Mapping[str, StreamStateHandle] = MappingProxyType({}),
) -> SegmentsStateHandle:
    """Return the handle of a manifest, of new files, and of those of a confirmed checkpoint, by their names."""
    references = {
        name: PlaceholderStreamStateHandle(name, stream.size) for name, stream in confirmed.items()
    }
    groups = key_groups.start_key_group, key_groups.end_key_group
    return SegmentsStateHandle(groups, {**references, **new}, manifest)


class ConfirmedFiles(Generic[_Files]):
    """The files of the last confirmed checkpoint, to which the next one may refer; and of those that may be next.

    Snapshots are written in other threads.

    Attributes:
        files: The files of the last confirmed checkpoint.
        pending: The names of the files of later checkpoints, by checkpoint.
    """

    def __init__(self, files: _Files) -> None:
        self.files = files
        self.pending: dict[int, frozenset[str]] = {}
        self._written: dict[int, _Files] = {}  # by checkpoint
        self._confirmed_id = 0
        self._lock = threading.Lock()

    def note_written(self, checkpoint_id: int, files: _Files) -> None:
        """Note the files of a written snapshot, unless its checkpoint was aborted."""
        with self._lock:
            if checkpoint_id in self.pending:
                self._written[checkpoint_id] = files

    def confirm(self, checkpoint_id: int) -> bool:
        """Handle a completed checkpoint; return False if a later one is already confirmed."""
        if checkpoint_id <= self._confirmed_id:
            return False
        self._confirmed_id = checkpoint_id
        with self._lock:
            self.files = self._written.get(checkpoint_id, self.files)
            for number in [number for number in self.pending if number <= checkpoint_id]:
                self._forget(number)
        return True

    def abort(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint."""
        with self._lock:
            self._forget(checkpoint_id)

    def _forget(self, checkpoint_id: int) -> None:
        self.pending.pop(checkpoint_id, None)
        self._written.pop(checkpoint_id, None)
