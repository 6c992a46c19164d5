"""A snapshot of one kind of state: taken at once, written when somebody runs it.

strategy.sync_prepare_resources    what is there now, taken while no data is processed
AsyncSnapshot.run                  strategy.async_snapshot writes it, in any thread
AsyncSnapshot.cancel               gives up, before or meanwhile
"""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from holdfast.backends.sections import WrittenStates
from holdfast.backends.snapshot.snapshot_streams import SnapshotStreams
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.handles import StateHandle

_Handle = TypeVar("_Handle", bound=StateHandle)
_Handle_co = TypeVar("_Handle_co", bound=StateHandle, covariant=True)


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[_Handle_co]):
    """What a snapshot of one kind of state came to.

    Attributes:
        handles: What the coordinator stores; empty if there was no state.
        written: The operator state that the handles lead to, in memory; None if nobody could tell
            later whether it does.
    """

    handles: tuple[_Handle_co, ...] = ()
    written: WrittenStates | None = field(default=None, compare=False, repr=False, kw_only=True)


class SnapshotResources(Protocol):
    """What the synchronous part of a snapshot took, for the asynchronous part to write."""

    def release(self) -> None:
        """Let go of it; called once, whatever happens."""
        ...


_Resources = TypeVar("_Resources", bound=SnapshotResources)


class SnapshotStrategy(Protocol[_Resources, _Handle_co]):
    """How a backend takes its snapshots.

    Source:
        Flink, SnapshotStrategy.
    """

    def sync_prepare_resources(self, checkpoint_id: int) -> _Resources:
        """Take what is there now. Short: no data may be processed meanwhile."""
        ...

    def async_snapshot(
        self, resources: _Resources, streams: SnapshotStreams
    ) -> SnapshotResult[_Handle_co]:
        """Write it, in any thread. Changes no state."""
        ...


class AsyncSnapshot(Generic[_Handle]):
    """The asynchronous part of a snapshot: `run` it once, in any thread, or `cancel` it.

    Whatever happens, what was captured is released once, and each file that was begun is either
    in the result or gone.

    Source:
        Flink, SnapshotStrategyRunner and AsyncSnapshotCallable.
    """

    def __init__(
        self,
        strategy: SnapshotStrategy[_Resources, _Handle],
        resources: _Resources,
        streams: SnapshotStreams,
    ) -> None:
        self._write: Callable[[Any, SnapshotStreams], SnapshotResult[_Handle]] = (
            strategy.async_snapshot
        )
        self._resources: SnapshotResources | None = resources
        self._streams = streams
        self._lock = threading.Lock()
        self._started = False
        self._cancelled = False

    def run(self) -> SnapshotResult[_Handle]:
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
        assert resources is not None  # only `cancel` and an earlier run take them away
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
