"""A snapshot under way: taken at once, written when somebody runs it."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from holdfast.backends.sections import WrittenStates
from holdfast.backends.snapshot.duplicating_stream import DuplicatingCheckpointOutputStream
from holdfast.common import failures_of, raise_first
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.handles import OperatorStateHandle, StreamStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a snapshot came to.

    Attributes:
        job_manager_owned: The part that the coordinator stores; None if there was no state.
        task_local: A copy that stays with the task; only together with the first.
        written: What both hold, in memory; None if there would be no telling whether it does.
        further: The rest of states that are stored in several ways, because not all subtasks had
            asked for their new type: one result for each further way.

    Raises:
        InvalidRequestError: A local part without the other one.
    """

    job_manager_owned: OperatorStateHandle | None = None
    task_local: OperatorStateHandle | None = None
    written: WrittenStates | None = field(default=None, compare=False, repr=False, kw_only=True)
    further: "tuple[SnapshotResult, ...]" = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.task_local is not None and self.job_manager_owned is None:
            raise InvalidRequestError("a snapshot with a local part needs the coordinator's part")

    @property
    def handles(self) -> tuple[OperatorStateHandle, ...]:
        """The whole of what the coordinator stores."""
        return tuple(
            one.job_manager_owned for one in (self, *self.further) if one.job_manager_owned
        )

    @property
    def local_handles(self) -> tuple[OperatorStateHandle, ...]:
        """The whole copy that stays with the task; none if a part of it is missing."""
        found = tuple(one.task_local for one in (self, *self.further) if one.task_local)
        return found if len(found) == len(self.handles) else ()

    @property
    def state_bytes(self) -> int:
        """Bytes in the coordinator's part."""
        return sum(one.size for one in self.handles)

    def discard_state(self) -> None:
        """Delete the bytes of both parts, as far as possible.

        Raises:
            CheckpointError: The first failure, after both were tried.
        """
        found = [(one.job_manager_owned, one.task_local) for one in (self, *self.further)]
        parts = [part for pair in found for part in pair if part is not None]
        raise_first(failures_of(OperatorStateHandle.discard_state, parts))


class SnapshotResources(Protocol):
    """What the synchronous part of a snapshot took, for the asynchronous one to write."""

    def release(self) -> None:
        """Let go of it; called once, whatever happens."""
        ...


Resources = TypeVar("Resources", bound=SnapshotResources)


class SnapshotStrategy(Protocol[Resources]):
    """How a backend takes its snapshots.

    Source:
        Flink, SnapshotStrategy.
    """

    def sync_prepare_resources(self, checkpoint_id: int) -> Resources:
        """Take what is there now. Short: no data may be processed meanwhile."""
        ...

    def async_snapshot(self, resources: Resources, streams: "SnapshotStreams") -> SnapshotResult:
        """Write it, in any thread. Changes no state."""
        ...


class SnapshotStreams:
    """The streams of one snapshot. Those that don't get into its result are discarded.

    Args:
        factory: Where the coordinator's part goes.
        local_factory: Where a copy goes that stays with the task, if there is to be one.
    """

    def __init__(
        self, factory: CheckpointStreamFactory, local_factory: CheckpointStreamFactory | None = None
    ) -> None:
        self._factory = factory
        self._local_factory = local_factory
        self._lock = threading.Lock()
        self._is_closed = False
        self._open: list[CheckpointStateOutputStream] = []
        self._finished: list[StreamStateHandle] = []

    def open(self) -> CheckpointStateOutputStream:
        """A stream for state of this checkpoint alone.

        Raises:
            CancelledError: The snapshot was cancelled.
            StorageUnavailableError: The store did not take it.
        """
        scope = CheckpointedStateScope.EXCLUSIVE
        stream = self._factory.create_checkpoint_state_output_stream(scope)
        if self._local_factory is not None:
            try:
                local = self._local_factory.create_checkpoint_state_output_stream(scope)
            except Exception:  # noqa: BLE001  # the copy is a luxury
                _log.warning("there will be no local copy of state", exc_info=True)
            except BaseException:
                stream.close()
                raise
            else:
                stream = DuplicatingCheckpointOutputStream(stream, local)
        with self._lock:
            if not self._is_closed:
                self._open.append(stream)
                return stream
        stream.close()
        raise CancelledError

    def finish(
        self, stream: CheckpointStateOutputStream
    ) -> tuple[StreamStateHandle | None, StreamStateHandle | None]:
        """Close a stream successfully: the coordinator's handle and the local one."""
        handle = stream.close_and_get_handle()
        local = None
        if handle is not None:
            self._finished.append(handle)
            if isinstance(stream, DuplicatingCheckpointOutputStream):
                try:
                    local = stream.close_and_get_secondary_handle()
                except Exception:  # noqa: BLE001  # the copy is a luxury
                    _log.warning("there will be no local copy of state", exc_info=True)
        if local is not None:
            self._finished.append(local)
        stream.close()  # a copy of nothing
        return handle, local

    def close(self) -> None:
        """Give up what is open. Never raises."""
        with self._lock:
            self._is_closed = True
            streams, self._open = self._open, []
        for stream in streams:
            stream.close()

    def discard(self) -> None:
        """Give up what is open, and delete what was finished, as far as possible."""
        self.close()
        failures_of(lambda handle: handle.discard_state(), self._finished)


class AsyncSnapshot(Generic[Resources]):
    """The asynchronous part of a snapshot: `run` it once, in any thread, or `cancel` it.

    Whatever happens, what was captured is released once, and a file that was begun is either
    in the result or gone.

    Source:
        Flink, SnapshotStrategyRunner and AsyncSnapshotCallable.
    """

    def __init__(
        self,
        strategy: SnapshotStrategy[Resources],
        resources: Resources,
        streams: SnapshotStreams,
    ) -> None:
        self._write: Callable[[Resources, SnapshotStreams], SnapshotResult] = (
            strategy.async_snapshot
        )
        self._resources: Resources | None = resources
        self._streams = streams
        self._lock = threading.Lock()
        self._started = False
        self._cancelled = False

    def run(self) -> SnapshotResult:
        """Write what was captured.

        Raises:
            concurrent.futures.CancelledError: `cancel` came before or meanwhile.
            InvalidRequestError: It ran before.
            StorageUnavailableError: The store did not take it.
        """
        with self._lock:
            if self._started:
                raise InvalidRequestError("a snapshot runs once")
            if self._cancelled:
                raise CancelledError
            self._started = True
            resources, self._resources = self._resources, None
        assert resources is not None  # it is taken once, here or by `cancel`
        try:
            result = self._write(resources, self._streams)
        except BaseException as error:
            self._streams.discard()
            if self._cancelled and isinstance(error, (CheckpointError, pa.ArrowException)):
                raise CancelledError from error
            raise
        finally:
            resources.release()
        self._streams.close()
        return result

    def cancel(self) -> None:
        """Give up: release what was captured, discard what was written. Never raises."""
        with self._lock:
            self._cancelled = True
            resources, self._resources = self._resources, None
        if resources is not None:
            resources.release()
        self._streams.close()  # does nothing if the snapshot was finished just now
