"""The upload of a database to a checkpoint: new sorted files are written, the others are referenced."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.backends.keyed.rocksdb.native_manifest import NativeManifest, encode_native
from holdfast.backends.keyed.rocksdb.rocksdb_errors import map_errors
from holdfast.backends.keyed.segments import StoredSpec, finish_stream, new_segment_name
from holdfast.backends.keyed.table import TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotResult, SnapshotStreams
from holdfast.common import map_in_parallel, raise_if_cancelled
from holdfast.locations.handles import (
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope

Files = Mapping[str, tuple[str, StreamStateHandle]]
"""Sorted files by their names in the database: the name of each among shared files, and the stored file."""

_SORTED = ".sst"
_OPTIONS = "OPTIONS-"
"""RocksDB never reads these files, which are ten times as large as all other files without rows."""

_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class CapturedDatabase:
    """A database at the time of the snapshot.

    Attributes:
        path: A directory of hard links; empty if there was no state.
        specs: The columns and types of its tables.
        confirmed: The files of the last confirmed checkpoint.
        cursors: The keys up to which expired rows were deleted.
    """

    path: str
    specs: tuple[TableSpec, ...]
    confirmed: Files
    cursors: Mapping[str, bytes]

    def release(self) -> None:
        """Delete the directory. Never raises."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RocksDBSnapshotStrategy:
    """Writes new sorted files, and the other files with the manifest.

    Attributes:
        key_groups: The key groups of the subtask.
        capture: Captures the current state of the database.
        on_written: Called with the sorted files of the checkpoint after the snapshot is written.
        copies: A directory of hard links to sorted files, for other tasks; None if they aren't shared.
        max_threads: Number of files that are written at the same time.

    Source:
        Flink, RocksIncrementalSnapshotStrategy.
    """

    key_groups: KeyGroupRange
    capture: Callable[[], CapturedDatabase]
    on_written: Callable[[Files], None]
    copies: str | None
    max_threads: int

    def sync_prepare_resources(self, checkpoint_id: int) -> CapturedDatabase:  # noqa: ARG002  # the port's
        return self.capture()

    def async_snapshot(
        self, resources: CapturedDatabase, streams: SnapshotStreams
    ) -> SnapshotResult:
        if not resources.path:
            return SnapshotResult()
        with map_errors(resources.path):
            names = sorted(os.listdir(resources.path))
            private = {
                file: _read_file(os.path.join(resources.path, file))
                for file in names
                if not file.endswith(_SORTED) and not file.startswith(_OPTIONS)
            }
        confirmed = resources.confirmed
        sorted_files = [file for file in names if file.endswith(_SORTED)]
        new = [file for file in sorted_files if file not in confirmed]
        added = self._upload(resources.path, new, streams) if new else {}
        files = {file: confirmed.get(file) or added[file] for file in sorted_files}
        shared = {
            name: stream if file in added else PlaceholderStreamStateHandle(name, stream.size)
            for file, (name, stream) in files.items()
        }
        key_groups = self.key_groups.start_key_group, self.key_groups.end_key_group
        manifest = NativeManifest(
            key_groups,
            tuple(StoredSpec.of(spec) for spec in resources.specs),
            {file: name for file, (name, _) in files.items()},
            private,
            dict(resources.cursors),
        )
        with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
            stream.write(encode_native(manifest))
            stored = finish_stream(streams, stream)
        self.on_written(files)
        handle = SegmentsStateHandle(key_groups, shared, stored)
        return SnapshotResult(StoredSubtask(managed_keyed=(handle,)))

    def _upload(self, directory: str, files: Sequence[str], streams: SnapshotStreams) -> Files:
        """Write sorted files in parallel, and share them with other tasks if possible, which download them otherwise."""

        def upload(file: str) -> tuple[str, StreamStateHandle]:
            path = os.path.join(directory, file)
            name = new_segment_name()
            with map_errors(directory):
                stored = name, _upload_file(path, streams)
            if self.copies is not None:
                with suppress(OSError):
                    os.link(path, os.path.join(self.copies, name))
            return stored

        return dict(
            zip(files, map_in_parallel(upload, files, max_threads=self.max_threads), strict=True)
        )


def _read_file(path: str) -> bytes:
    with open(path, "rb") as content:
        return content.read()


def _upload_file(path: str, streams: SnapshotStreams) -> StreamStateHandle:
    with streams.open(CheckpointedStateScope.SHARED) as stream:
        with open(path, "rb") as content:
            while data := content.read(_COPY_BYTES):
                stream.write(data)
                raise_if_cancelled()
        return finish_stream(streams, stream)
