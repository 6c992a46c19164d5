"""Asynchronous snapshots: state is captured while no data is processed, and written later, in any thread.

    strategy.sync_prepare_resources    captures the current state
    AsyncSnapshot.run                  calls strategy.async_snapshot, which writes it
    AsyncSnapshot.cancel               releases the captured state and deletes the files that were written

A subtask has one snapshot of all its state: `AsyncSnapshot.combine` joins those of raw state, of keyed state and of
operator state.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa

from holdfast.backends.snapshot.section import Compression, SectionStream, write_section
from holdfast.common import collect_failures
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.checksums import ChecksumBuilder
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import (
    FileStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StateHandle,
    StatePartitions,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)


@dataclass(frozen=True, slots=True)
class WrittenState:
    """One state with the content of its section: the elements or entries."""

    mode: OperatorStateMode
    rows: pa.Table

    @property
    def memory_bytes(self) -> int:
        return int(self.rows.get_total_buffer_size())


class WrittenStates(Mapping[str, WrittenState]):
    """All states of a snapshot by name, in the order in which they were written.

    They are immutable columns, without objects of the user.
    """

    def __init__(self, states: Mapping[str, WrittenState]) -> None:
        self._states = dict(states)

    def __getitem__(self, name: str) -> WrittenState:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        return sum(state.memory_bytes for state in self._states.values())

    def write(
        self, stream: SectionStream, compression: Compression | None = None
    ) -> dict[str, StatePartitions]:
        """Append a section for each state; returns the places of the sections."""
        partitions = {}
        for name, state in self._states.items():
            offset = stream.tell()
            length = write_section(stream, state.rows, compression)
            count = len(state.rows)
            partitions[name] = StatePartitions(state.mode, offset, length, first=0, count=count)
        return partitions

    def matches(self, handle: OperatorStateHandle) -> bool:
        """Return whether these states, written without compression, have exactly the bytes of the handle's file.

        The comparison takes as long as a checksum of the states. It also fails if user code has changed memory that it
        has passed, such as that of a NumPy array.
        """
        stream = _Sum()
        partitions = self.write(stream)
        file = handle.stream
        return (
            isinstance(file, FileStateHandle)
            and partitions == handle.states
            and stream.tell() == file.size
            and stream.checksum.finish() == file.checksum
        )


class _Sum:
    """A stream that keeps only the checksum of the written bytes."""

    def __init__(self) -> None:
        self.checksum = ChecksumBuilder()
        self._size = 0

    def write(self, data: BytesLike, /) -> int:
        self.checksum.update(data)
        length = memoryview(data).nbytes
        self._size += length
        return length

    def tell(self) -> int:
        return self._size


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The state that a snapshot has written.

    Attributes:
        state: The handles that the coordinator stores; without any if there was no state.
        task_local: The operator state that the handles refer to, in memory; None if it could not be compared with the
            files later.

    Source:
        Flink, SnapshotResult.
    """

    state: StoredSubtask = field(default_factory=StoredSubtask)
    task_local: WrittenStates | None = field(default=None, compare=False, repr=False)

    def together_with(self, other: "SnapshotResult") -> "SnapshotResult":
        return SnapshotResult(
            self.state.together_with(other.state), self.task_local or other.task_local
        )


class SnapshotResources(Protocol):
    """State that the synchronous part of a snapshot captured, for the asynchronous part to write."""

    def release(self) -> None:
        """Release the captured state; called once, whatever happens."""
        ...


_Resources = TypeVar("_Resources", bound=SnapshotResources)


class SnapshotStrategy(Protocol[_Resources]):
    """The way in which a backend takes its snapshots.

    Source:
        Flink, SnapshotStrategy.
    """

    def sync_prepare_resources(self, checkpoint_id: int) -> _Resources:
        """Capture the current state. No data is processed in the meantime, so it must be quick."""
        ...

    def async_snapshot(self, resources: _Resources, streams: "SnapshotStreams") -> SnapshotResult:
        """Write the captured state, in any thread, without a change of the backend's state."""
        ...


class SnapshotStreams:
    """The streams of one snapshot. It discards those that its result does not refer to.

    Args:
        factory: Opens streams in the checkpoint's location.
    """

    def __init__(self, factory: CheckpointStreamFactory) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._is_closed = False
        self._open: list[CheckpointStateOutputStream] = []
        self._finished: list[StateHandle | StreamStateHandle] = []

    @property
    def inline_threshold(self) -> int:
        """Maximum number of bytes of a stream that takes no call of the store."""
        return self._factory.inline_threshold

    def open(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a stream for state of this checkpoint only (exclusive), or of later ones too (shared).

        Raises:
            CancelledError: The snapshot was cancelled.
            StorageUnavailableError: The store did not take it.
        """
        stream = self._factory.create_checkpoint_state_output_stream(scope)
        with self._lock:
            if not self._is_closed:
                self._open.append(stream)
                return stream
        stream.close()
        raise CancelledError

    def finish(self, stream: CheckpointStateOutputStream) -> StreamStateHandle | None:
        """Close a stream successfully; None if nothing was written."""
        handle = stream.close_and_get_handle()
        self.adopt(handle)
        return handle

    def adopt(self, handle: StateHandle | StreamStateHandle | None) -> None:
        """Delete the handle's state, too, if the snapshot fails."""
        if handle is not None:
            self._finished.append(handle)

    def close(self) -> None:
        """Discard the streams that are open. Never raises."""
        with self._lock:
            self._is_closed = True
            streams, self._open = self._open, []
        for stream in streams:
            stream.close()

    def discard(self) -> None:
        """Discard the streams that are open, and delete the finished ones, as far as possible. Never raises."""
        self.close()
        collect_failures(lambda handle: handle.discard_state(), self._finished)


class _Step(NamedTuple):
    """Writes or releases the captured state of one backend."""

    write: Callable[[], SnapshotResult]
    release: Callable[[], None]
    streams: SnapshotStreams


class AsyncSnapshot:
    """The asynchronous part of a snapshot: `run` it once, in any thread, or `cancel` it.

    In every case the captured state is released once, and each file is either in the result or deleted.

    Source:
        Flink, SnapshotStrategyRunner, AsyncSnapshotCallable and OperatorSnapshotFutures.
    """

    def __init__(self, steps: Iterable[_Step], parts: Iterable["AsyncSnapshot"] = ()) -> None:
        self._steps = list(steps)
        # Kept alive: a backend that closes cancels its part, and so the whole.
        self._parts = tuple(parts)
        self._streams = [step.streams for step in self._steps]
        self._lock = threading.Lock()
        self._is_started = False
        self._is_cancelled = False

    @classmethod
    def of(
        cls,
        strategy: SnapshotStrategy[_Resources],
        resources: _Resources,
        factory: CheckpointStreamFactory,
    ) -> Self:
        """Return the snapshot that writes what a strategy has captured into a checkpoint's location."""
        streams = SnapshotStreams(factory)
        write = partial(strategy.async_snapshot, resources, streams)
        return cls([_Step(write, resources.release, streams)])

    @classmethod
    def from_written(cls, state: StoredSubtask, streams: SnapshotStreams) -> Self:
        """Return a snapshot whose state is already in files, which these streams have finished."""
        return cls([_Step(lambda: SnapshotResult(state), lambda: None, streams)])

    @classmethod
    def combine(cls, snapshots: Iterable["AsyncSnapshot"]) -> Self:
        """Return one snapshot in place of several: either all of their state is in its result, or nothing is left."""
        parts = tuple(snapshots)
        steps = [step for part in parts for step in part._start()]  # noqa: SLF001  # its own class
        return cls(steps, parts)

    @property
    def is_cancelled(self) -> bool:
        """Return whether the snapshot or a part of it was cancelled."""
        return self._is_cancelled or any(part.is_cancelled for part in self._parts)

    def run(self) -> SnapshotResult:
        """Write the captured state.

        Raises:
            concurrent.futures.CancelledError: `cancel` was called before or in the meantime.
            InvalidRequestError: The snapshot ran before.
            StorageUnavailableError: The store did not take it.
        """
        steps = self._start()
        result = SnapshotResult()
        try:
            for step in steps:
                result = result.together_with(self._write(step))
        except BaseException as error:
            for streams in self._streams:
                streams.discard()
            if self.is_cancelled and isinstance(error, (CheckpointError, pa.ArrowException)):
                raise CancelledError from error
            raise
        finally:
            for step in steps:
                step.release()
        for streams in self._streams:
            streams.close()
        return result

    def _write(self, step: _Step) -> SnapshotResult:
        if self.is_cancelled:
            raise CancelledError
        return step.write()

    def cancel(self) -> None:
        """Release the captured state and delete the files that were written.

        Does nothing once `run` has returned. Never raises.
        """
        with self._lock:
            self._is_cancelled = True
            steps, self._steps = self._steps, []
        for step in steps:
            step.release()
            step.streams.discard()
        for streams in self._streams:
            streams.close()

    def _start(self) -> list[_Step]:
        """Take the steps, which only the first caller gets."""
        with self._lock:
            if self._is_started:
                raise InvalidRequestError("a snapshot runs once")
            if self._is_cancelled:
                raise CancelledError
            self._is_started = True
            steps, self._steps = self._steps, []
        return steps
