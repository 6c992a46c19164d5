"""Where a task finds its state: in its worker's memory, on the disk of its host, or in storage.

State that is nearer is used only if it is, byte for byte, what the handles that the task was assigned
lead to. So it doesn't matter who left it there: an attempt that failed or lost against another attempt,
or a batch that was never committed.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.sections import WrittenStates
from holdfast.backends.subtask import OperatorStateHandler
from holdfast.common import Clock
from holdfast.locations.handles import FileStateHandle, OperatorStateHandle
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory
from holdfast.spark.warm_state.local_copies import LocalCopies, owner_of
from holdfast.spark.warm_state.local_directory import local_directory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    """How much warm state there may be; 0 turns it off.

    Attributes:
        local_bytes: Most bytes of copies in an executor's directory.
        worker_bytes: Most bytes of memory that states keep in one Python worker.
    """

    local_bytes: int = 0
    worker_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    handle: OperatorStateHandle
    written: WrittenStates


class WorkerMemory:
    """States that tasks have written and left in a process, the newest of each subtask."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def take(self, owner: str, handles: Sequence[OperatorStateHandle]) -> WrittenStates | None:
        """Hand out the states that the handles lead to, if they are here; they are not kept any longer."""
        kept = self._kept.pop(owner, None)
        if kept is None or (kept.handle,) != tuple(handles):
            return None
        if not kept.written.are_those_of(kept.handle):
            _log.warning(
                "state in memory was changed since it was written, and is read from storage; "
                "an operator may have added an array whose memory it uses again"
            )
            return None
        return kept.written

    def keep(
        self, owner: str, handle: OperatorStateHandle, written: WrittenStates, *, max_bytes: int
    ) -> None:
        """Leave the states that were written for a handle to a later task; the oldest others have to go."""
        self._kept.pop(owner, None)
        used_bytes = written.memory_bytes
        if used_bytes > max_bytes:
            return
        for other in list(self._kept)[::-1]:
            used_bytes += self._kept[other].written.memory_bytes
            if used_bytes > max_bytes:
                del self._kept[other]
        self._kept[owner] = _Kept(handle, written)


_MEMORY = WorkerMemory()


class WarmState:
    """Warm state as one task uses it, from restoring its state to leaving it for the next task.

    Args:
        settings: How much there may be.
        job_id: The job.
        uid: The operator.
        subtask: Index of the subtask.
        checkpoint_id: The checkpoint that the task takes.
        clock: Says how old is what other tasks have left.
    """

    def __init__(
        self,
        settings: WarmSettings,
        *,
        job_id: str,
        uid: str,
        subtask: int,
        checkpoint_id: int,
        clock: Clock,
    ) -> None:
        self._max_bytes = settings.worker_bytes
        self._owner = owner_of(job_id, uid, subtask)
        self._sources: set[str] = set()
        directory = local_directory(os.environ, clock) if settings.local_bytes else None
        self._copies: LocalCopies | None = None
        if directory is not None:
            self._copies = LocalCopies(
                directory=directory,
                owner=self._owner,
                checkpoint_id=checkpoint_id,
                max_bytes=settings.local_bytes,
                on_read=self._sources.add,
                clock=clock,
            )

    def restore(
        self,
        function: Any,
        state: StoredSubtask,
        *,
        uid: str,
        key_groups: KeyGroupRange | None = None,
    ) -> OperatorStateHandler:
        """A handler with the state. Errors are those of `OperatorStateHandler.restore`."""
        to_read = state
        written = _MEMORY.take(self._owner, state.managed_operator)
        if written is not None:
            self._sources.add("worker")
            to_read = msgspec.structs.replace(state, managed_operator=())
        if self._copies is None and any(
            isinstance(stream, FileStateHandle) for stream in to_read.streams()
        ):
            self._sources.add("storage")
        return OperatorStateHandler.restore(
            function, self.behind_copies(state), uid=uid, key_groups=key_groups, written=written
        )

    def behind_copies(self, state: StoredSubtask) -> StoredSubtask:
        """The state, read from copies where there are some."""
        return state.with_streams(self._copies.behind) if self._copies else state

    def beside_copies(self, factory: CheckpointStreamFactory) -> CheckpointStreamFactory:
        """The factory, leaving copies of the files that are written through it."""
        return self._copies.beside(factory) if self._copies else factory

    def keep(self, state: StoredSubtask, written: WrittenStates | None) -> None:
        """Leave to a later task of this process what was written as this state."""
        files = [
            handle
            for handle in state.managed_operator
            if isinstance(handle.stream, FileStateHandle)
        ]
        if written is not None and len(files) == 1:
            _MEMORY.keep(self._owner, files[0], written, max_bytes=self._max_bytes)

    @property
    def source(self) -> str:
        """Where files of state were found: the farthest of `worker`, `local` and `storage`."""
        farthest_first = ("storage", "local", "worker")
        return next((source for source in farthest_first if source in self._sources), "")
