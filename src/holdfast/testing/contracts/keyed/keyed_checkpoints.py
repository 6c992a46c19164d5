"""Checkpoints of keyed state for suites: a directory in memory whose files can be inspected."""

import uuid
from collections.abc import Iterable, Iterator, Sequence

import pytest

from holdfast.backends.keyed import StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle, StreamStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation, FileSystemCheckpointStorage


class KeyedCheckpoints:
    """A job's checkpoints, without a coordinator.

    Args:
        inline_threshold: Streams up to this many bytes are stored in their handles.
    """

    def __init__(self, inline_threshold: int = 0) -> None:
        self.directory = f"memory:///{uuid.uuid4().hex}"
        self._file_system = file_system_for(self.directory)
        self._file_system.prepare_directory(self.directory)
        storage = FileSystemCheckpointStorage(self.directory, inline_threshold=inline_threshold)
        self._access = storage.create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()
        self._streams: dict[str, StreamStateHandle] = {}

    def location(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """Return the location of a checkpoint's streams."""
        return self._access.initialize_location_for_checkpoint(checkpoint_id)

    def complete(self, state: StoredSubtask) -> tuple[SegmentsStateHandle, ...]:
        """Return the handles of a completed checkpoint; its report may refer to segments of earlier ones."""
        handles = []
        for handle in state.managed_keyed:
            assert isinstance(handle, SegmentsStateHandle)
            for name, stream in handle.segments.items():
                self._streams.setdefault(name, stream)
            segments = {name: self._streams[name] for name in handle.segments}
            handles.append(SegmentsStateHandle(handle.key_groups, segments, handle.manifest))
        return tuple(handles)

    def run(self, snapshot: AsyncSnapshot) -> tuple[SegmentsStateHandle, ...]:
        """Write and complete a snapshot; returns its handles."""
        return self.complete(snapshot.run().state)

    def discard_new(self, state: StoredSubtask) -> None:
        """Delete files of an aborted snapshot that no completed checkpoint refers to."""
        kept = {id(stream) for stream in self._streams.values()}
        for stream in state.streams():
            if id(stream) not in kept and isinstance(stream, FileStateHandle):
                stream.discard_state()

    def files(self) -> set[str]:
        """Return the URIs of all files."""
        return set(self._below(self.directory))

    def delete(self) -> None:
        """Delete everything."""
        self._file_system.delete_tree(self.directory)

    def _below(self, directory: str) -> Iterable[str]:
        for entry in self._file_system.list(directory):
            if entry.is_directory:
                yield from self._below(entry.uri)
            else:
                yield entry.uri


def parts_of(
    handles: Sequence[SegmentsStateHandle], key_groups: KeyGroupRange
) -> list[SegmentsStateHandle]:
    """Return the parts of handles that overlap with key groups."""
    first, last = key_groups.start_key_group, key_groups.end_key_group
    parts = (handle.intersection(first, last) for handle in handles)
    return [part for part in parts if part is not None]


GROUPS = 16
ALL = KeyGroupRange(0, GROUPS - 1)


class KeyedSuite:
    """A suite over any `StateTables`."""

    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        """Return new tables of the key groups, restored from handles."""
        raise NotImplementedError

    @pytest.fixture
    def checkpoints(self) -> Iterator[KeyedCheckpoints]:
        checkpoints = KeyedCheckpoints()
        yield checkpoints
        checkpoints.delete()
