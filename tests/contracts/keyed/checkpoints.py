"""Checkpoints of keyed state for suites, in a directory in memory whose files can be inspected."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed import KeyedStateBackend, Keys, StateTables
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

    def take(
        self, states: StateTables | KeyedStateBackend, checkpoint_id: int = 1
    ) -> tuple[SegmentsStateHandle, ...]:
        """Take and complete a snapshot of tables or states; returns its handles."""
        return self.run(states.snapshot(checkpoint_id, self.location(checkpoint_id)))

    def discard_new(self, state: StoredSubtask) -> None:
        """Delete files of an aborted snapshot that no completed checkpoint refers to."""
        kept = {id(stream) for stream in self._streams.values()}
        for stream in state.streams():
            if id(stream) not in kept and isinstance(stream, FileStateHandle):
                stream.discard_state()

    def files(self) -> set[str]:
        """Return the URIs of all files."""
        uris: set[str] = set()
        directories = [self.directory]
        while directories:
            for entry in self._file_system.list(directories.pop()):
                if entry.is_directory:
                    directories.append(entry.uri)
                else:
                    uris.add(entry.uri)
        return uris

    def delete(self) -> None:
        """Delete everything."""
        self._file_system.delete_tree(self.directory)


def parts_of(
    handles: Sequence[SegmentsStateHandle], key_groups: KeyGroupRange
) -> list[SegmentsStateHandle]:
    """Return the parts of handles that overlap with key groups."""
    first, last = key_groups.start_key_group, key_groups.end_key_group
    parts = (handle.intersection(first, last) for handle in handles)
    return [part for part in parts if part is not None]


GROUPS = 16
ALL = KeyGroupRange(0, GROUPS - 1)
USER = pa.schema([("user", pa.string())])
WINDOW = pa.schema([("window", pa.int64())])
ROW = pa.schema([("n", pa.int64()), ("total", pa.float64())])
TTL = StateTtlConfig(timedelta(milliseconds=100))

TablesOf = Callable[[KeyGroupRange, Sequence[SegmentsStateHandle]], StateTables]
"""Returns new tables of key groups, restored from handles."""


@dataclass(frozen=True)
class Place:
    """A class of values."""

    name: str
    size: int


def values_by_user(keys: Keys, column: Any) -> dict[Any, Any]:
    """Return a column of values by key, as Python objects."""
    rows = column.to_pylist() if isinstance(column, pa.Array) else column
    return dict(zip(keys.columns[0].to_pylist(), rows, strict=True))


class UserStates(KeyedStateBackend):
    """States by user, which can be restarted from their checkpoints.

    Args:
        tables_of: Makes the tables.
        checkpoints: The checkpoints of all runs.
        handles: The checkpoint to restore.
        now_ms: Processing time.
        key: Columns of the key.
    """

    def __init__(
        self,
        tables_of: TablesOf,
        checkpoints: KeyedCheckpoints,
        handles: Sequence[SegmentsStateHandle] = (),
        now_ms: int = 1000,
        key: pa.Schema = USER,
    ) -> None:
        super().__init__(tables_of(ALL, handles), key, GROUPS)
        self._tables_of = tables_of
        self._checkpoints = checkpoints
        self.advance_time(now_ms)

    def users(self, *users: str | None) -> Keys:
        return self.keys([pa.array(users, pa.string())])

    def select(self, user: str | None = "a") -> None:
        """Start a batch of several keys, and make that of a user current."""
        keys = self.users(*dict.fromkeys([user, "b", None]))
        self.begin_batch(keys)
        self.set_current_key(int(keys.codes[0]))

    def checkpoint(self) -> tuple[SegmentsStateHandle, ...]:
        return self._checkpoints.take(self)

    def restart(self, now_ms: int = 1000, key: pa.Schema = USER) -> "UserStates":
        """Return the states of a new run, restored from a checkpoint of these."""
        handles = self.checkpoint()
        return UserStates(self._tables_of, self._checkpoints, handles, now_ms, key)


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


class StateSuite(KeyedSuite):
    """A suite of states over any `StateTables`."""

    @pytest.fixture
    def backend(self, checkpoints: KeyedCheckpoints) -> Iterator[UserStates]:
        backend = UserStates(self.tables_of, checkpoints)
        yield backend
        backend.close()
        backend.close()
