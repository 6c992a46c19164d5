"""The content of `_metadata`, as values. Pure, no I/O.

    CheckpointMetadata
    ├─ operators: StoredOperator, by uid
    │  └─ subtasks: StoredSubtask, by index
    │     ├─ managed_operator, raw_operator, managed_keyed, raw_keyed: handles to state
    │     └─ statistics: SubtaskStatistics
    └─ coordinator_states: bytes, by the name of their writer

Every level returns the streams of all levels below it and copies itself with other streams, whatever the type of state.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.common import Count, DurationMs, KeyGroup, Parallelism, TimeMs
from holdfast.locations.handles import (
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    ManagedKeyedStateHandle,
    OperatorStateHandle,
    PlaceholderStreamStateHandle,
    RawOperatorStateHandle,
    StateHandle,
    StreamChange,
    StreamStateHandle,
)


def new_commit_token() -> str:
    """Return a random token."""
    return uuid.uuid4().hex


class SubtaskStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts and times of a subtask's work between the last checkpoint and this one.

    Attributes:
        rows_in: Rows given to the operator.
        rows_out: Rows that it emitted.
        state_bytes: Bytes of state written, in files and inline.
        restore_ms: Time to read the restored state, milliseconds.
        process_ms: Time in the operator's own code and in reading its input, milliseconds.
        sync_ms: Time of the snapshot's synchronous part, milliseconds.
        async_ms: Time of the snapshot's asynchronous part, milliseconds.
        restored_from: Source of the files of its restored state: the memory of its `worker`, `local` copies on the
            disk of its host, or `storage` if at least one was only there. Segments of keyed state count, their
            manifest does not. Empty if there were no files, or if it was not recorded.
        rows_late: Rows that were dropped before the operator because they were late; not in `rows_in`.
        backend_metrics: Metrics of the backend of keyed state, by the backend's names; empty unless a setting
            enables them.
    """

    rows_in: Count
    rows_out: Count
    state_bytes: Count
    restore_ms: DurationMs
    process_ms: DurationMs
    sync_ms: DurationMs
    async_ms: DurationMs
    restored_from: str = ""
    rows_late: Count = 0
    backend_metrics: dict[str, Count] = msgspec.field(default_factory=dict)


class StoredSubtask(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state that one subtask of an operator has in a checkpoint.

    Attributes:
        managed_operator: List, union and broadcast states.
        statistics: Counts and times of the subtask's work; None if they were not recorded.
        raw_operator: Bytes that the user wrote into the operator's stream.
        managed_keyed: States by key.
        raw_keyed: Bytes that the user wrote into the keyed stream, by key group.
    """

    # msgspec writes a default that a factory makes: files always had these two keys.
    managed_operator: tuple[OperatorStateHandle, ...] = msgspec.field(default_factory=lambda: ())
    statistics: SubtaskStatistics | None = msgspec.field(default_factory=lambda: None)
    raw_operator: tuple[RawOperatorStateHandle, ...] = ()
    managed_keyed: tuple[ManagedKeyedStateHandle, ...] = ()
    raw_keyed: tuple[KeyGroupsStateHandle, ...] = ()

    def keyed_handles(self) -> tuple[KeyedStateHandle, ...]:
        """Return every handle to keyed state, managed and raw."""
        return (*self.managed_keyed, *self.raw_keyed)

    def handles(self) -> tuple[StateHandle, ...]:
        """Return every handle to state."""
        return (*self.managed_operator, *self.raw_operator, *self.keyed_handles())

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for handle in self.handles() for stream in handle.streams()]

    @property
    def written_bytes(self) -> int:
        """Bytes that a task wrote for the state it reports; streams of placeholders were written before."""
        return sum(
            stream.size
            for stream in self.streams()
            if not isinstance(stream, PlaceholderStreamStateHandle)
        )

    @property
    def stored_bytes(self) -> int:
        """Length of the state, in files and inline; a file with several handles counts once."""
        return _total_size(self.streams())

    def with_streams(self, change: StreamChange, /) -> "StoredSubtask":
        """Return a copy in which `change` replaced every handle to bytes of state."""
        return StoredSubtask(
            managed_operator=_with_streams(self.managed_operator, change),
            statistics=self.statistics,
            raw_operator=_with_streams(self.raw_operator, change),
            managed_keyed=_with_streams(self.managed_keyed, change),
            raw_keyed=_with_streams(self.raw_keyed, change),
        )

    def shared_streams(self) -> dict[str, StreamStateHandle]:
        """Return every stream that later checkpoints may refer to, by its name."""
        return {
            name: stream
            for handle in self.handles()
            for name, stream in handle.shared_streams().items()
        }

    def together_with(self, other: "StoredSubtask") -> "StoredSubtask":
        """Return the union of both states, with the statistics of this one."""
        return StoredSubtask(
            managed_operator=self.managed_operator + other.managed_operator,
            statistics=self.statistics,
            raw_operator=self.raw_operator + other.raw_operator,
            managed_keyed=self.managed_keyed + other.managed_keyed,
            raw_keyed=self.raw_keyed + other.raw_keyed,
        )


class StoredOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """All state of one operator.

    Attributes:
        parallelism: Number of its subtasks.
        max_parallelism: Number of key groups, the highest parallelism it can be restored with.
        subtasks: State by subtask index, 0 <= index < parallelism. Subtasks without state are absent.
        key: Columns that rows were partitioned by; empty if they were distributed evenly.
        key_hash: Name of the function from the values of these columns to key groups.
        key_types: Types of the columns, as that function distinguishes them.
    """

    parallelism: Parallelism
    max_parallelism: Parallelism
    subtasks: dict[KeyGroup, StoredSubtask]
    key: tuple[str, ...] = ()
    key_hash: str = ""
    key_types: tuple[str, ...] = ()

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for subtask in self.subtasks.values() for stream in subtask.streams()]

    def with_streams(self, change: StreamChange, /) -> "StoredOperator":
        """Return a copy in which `change` replaced every handle to bytes of state."""
        subtasks = {index: state.with_streams(change) for index, state in self.subtasks.items()}
        return msgspec.structs.replace(self, subtasks=subtasks)

    def find_inconsistency(self) -> str | None:
        """Describe numbers that contradict each other or the streams of state; None if they are consistent."""
        if self.parallelism > self.max_parallelism:
            return f"parallelism {self.parallelism} and max parallelism {self.max_parallelism}"
        for index, subtask in self.subtasks.items():
            if index >= self.parallelism:
                return f"state of subtask {index} and parallelism {self.parallelism}"
            for handle in subtask.handles():
                inconsistency = handle.find_inconsistency()
                if inconsistency is not None:
                    return f"in subtask {index}: {inconsistency}"
            for keyed in subtask.keyed_handles():
                first, last = keyed.key_groups
                if last >= self.max_parallelism:
                    return (
                        f"key groups {first} to {last} and max parallelism {self.max_parallelism}"
                    )
        return None


class ClaimedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint or savepoint that a job was started from and owns until it has deleted it.

    Attributes:
        pointer: URI of its directory.
        commit_token: The token of its `_metadata`, which distinguishes it from another one in that directory.
        files: URIs of all its files.
    """

    pointer: str
    commit_token: str
    files: tuple[str, ...]


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a job needs to resume from a checkpoint.

    Attributes:
        job_id: The job that the checkpoint belongs to.
        checkpoint_id: The checkpoint's number; a job completes each number only once.
        commit_token: Random, so that a committer recognises its own write.
        created_ms: Time of completion by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: From the beginning of the checkpoint to its completion, milliseconds.
        writer: Name and version of the program that wrote it.
        epoch: Epoch of the driver that committed it; 0 if that driver owned no job.
        operators: State by operator uid.
        coordinator_states: State of the driver, by the name of its writer.
        claimed: Checkpoints and savepoints that the job has claimed and not deleted yet.
    """

    job_id: str
    checkpoint_id: Count
    commit_token: str = msgspec.field(default_factory=new_commit_token)
    created_ms: TimeMs
    duration_ms: DurationMs
    writer: str
    operators: dict[str, StoredOperator]
    coordinator_states: dict[str, bytes] = {}
    epoch: Count = 0
    claimed: tuple[ClaimedCheckpoint, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Length of all state, in files and inline; a file with several handles counts once."""
        return _total_size(self.streams())

    def streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state, in files and inline."""
        return [stream for operator in self.operators.values() for stream in operator.streams()]

    def shared_streams(self) -> list[StreamStateHandle]:
        """Return every handle to bytes of state that later checkpoints may refer to."""
        return [
            stream
            for operator in self.operators.values()
            for subtask in operator.subtasks.values()
            for stream in subtask.shared_streams().values()
        ]

    def with_streams(self, change: StreamChange, /) -> "CheckpointMetadata":
        """Return a copy in which `change` replaced every handle to bytes of state."""
        operators = {uid: state.with_streams(change) for uid, state in self.operators.items()}
        return msgspec.structs.replace(self, operators=operators)


def _total_size(streams: Sequence[StreamStateHandle]) -> int:
    files = {file.uri: file.size for file in streams if isinstance(file, FileStateHandle)}
    inline = (stream.size for stream in streams if not isinstance(stream, FileStateHandle))
    return sum(files.values()) + sum(inline)


_Handle = TypeVar("_Handle", bound=StateHandle)


def _with_streams(handles: Iterable[_Handle], change: StreamChange) -> tuple[_Handle, ...]:
    return tuple(handle.with_streams(change) for handle in handles)
