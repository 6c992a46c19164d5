"""A snapshot of one kind of state: captured at once, written when somebody runs it.

strategy.sync_prepare_resources    captures the current state, while no data is processed
AsyncSnapshot.run                  lets strategy.async_snapshot write it, in any thread
AsyncSnapshot.cancel               gives the snapshot up, before or while it is written
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
    """The result of a snapshot of one kind of state.

    Attributes:
        handles: The handles that the coordinator stores; empty if there was no state.
        written: The operator state that the handles lead to, in memory; None if it could not be
            compared with the files later.
    """

    handles: tuple[_Handle_co, ...] = ()
    written: WrittenStates | None = field(default=None, compare=False, repr=False, kw_only=True)


class SnapshotResources(Protocol):
    """State that the synchronous part of a snapshot captured, for the asynchronous part to write."""

    def release(self) -> None:
        """Release the captured state; called once, whatever happens."""
        ...


_Resources = TypeVar("_Resources", bound=SnapshotResources)


class SnapshotStrategy(Protocol[_Resources, _Handle_co]):
    """How a backend takes its snapshots.

    Source:
        Flink, SnapshotStrategy.
    """

    def sync_prepare_resources(self, checkpoint_id: int) -> _Resources:
        """Capture the current state. It has to be quick: no data may be processed meanwhile."""
        ...

    def async_snapshot(
        self, resources: _Resources, streams: SnapshotStreams
    ) -> SnapshotResult[_Handle_co]:
        """Write the captured state, in any thread. Changes no state."""
        ...


class AsyncSnapshot(Generic[_Handle]):
    """The asynchronous part of a snapshot: `run` it once, in any thread, or `cancel` it.

    Whatever happens, the captured state is released once, and each file that was begun is either
    in the result or deleted.

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
        """Write the captured state.

        Raises:
            concurrent.futures.CancelledError: `cancel` came before or meanwhile.
            InvalidRequestError: The snapshot ran before.
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
        """Give the snapshot up: release the captured state, delete what was written. Never raises."""
        with self._lock:
            self._cancelled = True
            resources, self._resources = self._resources, None
        if resources is not None:
            resources.release()
        self._streams.close()  # does nothing if the snapshot was finished just now
