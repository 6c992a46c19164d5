"""Where a task finds its state: in its worker's memory, on the disk of its host, or in storage.

What is nearer is used only if it is, byte for byte, what the handles lead to that the task was
assigned. So it doesn't matter who left it there: an attempt that failed, one that lost against
another, or a batch that was never committed.
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
from holdfast.locations.handles import FileStateHandle, OperatorStateHandle
from holdfast.locations.metadata import SubtaskState
from holdfast.locations.storages import CheckpointStreamFactory
from holdfast.spark.warm_state.local_copies import LocalCopies, owner_of
from holdfast.spark.warm_state.local_directory import local_directory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    """How much warm state there may be; 0 is none.

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
        """What the handles lead to, if it is here. It is here no longer then."""
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
        """Leave what was written for that handle to a later task; the oldest have to go."""
        self._kept.pop(owner, None)
        taken = written.memory_bytes
        if taken > max_bytes:
            return
        for other in list(self._kept)[::-1]:
            taken += self._kept[other].written.memory_bytes
            if taken > max_bytes:
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
    """

    def __init__(
        self, settings: WarmSettings, *, job_id: str, uid: str, subtask: int, checkpoint_id: int
    ) -> None:
        self._max_bytes = settings.worker_bytes
        self._owner = owner_of(job_id, uid, subtask)
        self._sources: set[str] = set()
        directory = local_directory(os.environ) if settings.local_bytes else None
        self._copies: LocalCopies | None = None
        if directory is not None:
            self._copies = LocalCopies(
                directory=directory,
                owner=self._owner,
                checkpoint_id=checkpoint_id,
                max_bytes=settings.local_bytes,
                found=self._sources.add,
            )

    def restore(
        self,
        function: Any,
        state: SubtaskState,
        *,
        uid: str,
        key_groups: KeyGroupRange | None = None,
    ) -> OperatorStateHandler:
        """A handler with the state; raises what `OperatorStateHandler.restore` does."""
        to_read = state
        written = _MEMORY.take(self._owner, state.managed_operator)
        if written is not None:
            self._sources.add("worker")
            to_read = msgspec.structs.replace(state, managed_operator=())
        if self._copies is None and any(
            isinstance(one, FileStateHandle) for one in to_read.streams()
        ):
            self._sources.add("storage")
        return OperatorStateHandler.restore(
            function, self.behind_copies(state), uid=uid, key_groups=key_groups, written=written
        )

    def behind_copies(self, state: SubtaskState) -> SubtaskState:
        """The state, read from copies where there are some."""
        return state.with_streams(self._copies.behind) if self._copies else state

    def beside_copies(self, factory: CheckpointStreamFactory) -> CheckpointStreamFactory:
        """The factory, leaving copies of the files that are written through it."""
        return self._copies.beside(factory) if self._copies else factory

    def keep(self, state: SubtaskState, written: WrittenStates | None) -> None:
        """Leave to a later task of this process what was written as this state."""
        files = [one for one in state.managed_operator if isinstance(one.stream, FileStateHandle)]
        if written is not None and len(files) == 1:
            _MEMORY.keep(self._owner, files[0], written, max_bytes=self._max_bytes)

    @property
    def source(self) -> str:
        """Where files of state were found: the farthest of `worker`, `local` and `storage`."""
        return next((one for one in ("storage", "local", "worker") if one in self._sources), "")
