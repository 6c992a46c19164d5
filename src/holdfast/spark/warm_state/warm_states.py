"""Where a task finds its state: in its worker's memory, on the disk of its host, or in storage.

State that is nearer is used only if it is, byte for byte, what the handles that the task was assigned
lead to. So it doesn't matter who left it there: an attempt that failed or lost against another attempt,
or a batch that was never committed.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import msgspec

from holdfast.backends.keyed import BackendName, RocksDBSettings, Workspace, open_tables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import WrittenStates
from holdfast.backends.subtask import ManagedKeyedState, OperatorKey, OperatorStateHandler
from holdfast.common import Clock, ProcessCache
from holdfast.locations.handles import (
    FileStateHandle,
    OperatorStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory
from holdfast.spark.warm_state.local_copies import LocalCopies, owner_of
from holdfast.spark.warm_state.local_directory import local_directory
from holdfast.spark.warm_state.local_segments import LocalSegments

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    """How much warm state there may be, where 0 turns it off; and what keeps keyed state while it is used.

    Attributes:
        local_bytes: Most bytes of copies in an executor's directory.
        segment_bytes: Most bytes of copies of keyed state's segments there.
        worker_bytes: Most bytes of memory that states keep in one Python worker.
        backend: The backend of keyed state.
        backends: The backends of operators that have another one: uid and backend of each.
        rocksdb: How RocksDB uses memory, files and threads.
    """

    local_bytes: int = 0
    segment_bytes: int = 0
    worker_bytes: int = 0
    backend: BackendName = "columnar"
    backends: tuple[tuple[str, BackendName], ...] = ()
    rocksdb: RocksDBSettings = RocksDBSettings()  # noqa: RUF009  # it is frozen


@dataclass(frozen=True, slots=True)
class _Kept:
    handle: OperatorStateHandle
    written: WrittenStates


class WorkerMemory:
    """States that tasks have written and left in a process, the newest of each subtask."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that all kept states take."""
        return sum(kept.written.memory_bytes for kept in self._kept.values())

    def take(self, owner: str, handles: Sequence[OperatorStateHandle]) -> WrittenStates | None:
        """Hand out the states that the handles lead to, if they are here; they are not kept any longer."""
        kept = self._kept.pop(owner, None)
        if kept is None or (kept.handle,) != tuple(handles):
            return None
        if not kept.written.matches(kept.handle):
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

_SEGMENTS: ProcessCache[None, Workspace] = ProcessCache()
"""The segments that this process has open."""


def _not_noted(_: str) -> None:
    """Where a file is that has no state."""


class _NotedStateHandle(FileStateHandle, frozen=True, kw_only=True):
    """A file's handle inside of a task, which tells when it is read; never stored."""

    note: Callable[[], object]

    def open_input_stream(self) -> BinaryIO:
        self.note()
        return super().open_input_stream()


class WarmState:
    """Warm state as one task uses it, from restoring its state to leaving it for the next task.

    Args:
        settings: How much there may be.
        job_id: The job.
        uid: The operator.
        subtask: Index of the subtask.
        checkpoint_id: The checkpoint that the task takes.
        clock: Says how old is what other tasks have left.

    Attributes:
        backend_metrics: What the backend of keyed state has said of itself, for the statistics.
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
        self._settings = settings
        self._max_bytes = settings.worker_bytes
        self._owner = owner_of(job_id, uid, subtask)
        self.backend_metrics: dict[str, int] = {}
        self._sources: set[str] = set()
        self._names: frozenset[str] = frozenset()  # of the segments that were restored
        self._copies: LocalCopies | None = None
        self._segments: LocalSegments | None = None
        wanted = max(settings.local_bytes, settings.segment_bytes)
        directory = local_directory(os.environ, clock) if wanted else None
        if directory is not None and settings.segment_bytes:
            self._segments = LocalSegments(
                root=os.path.join(directory, "segments"),
                operator=owner_of(job_id, uid),
                subtask=subtask,
                checkpoint_id=checkpoint_id,
                max_bytes=settings.segment_bytes,
                clock=clock,
            )
        if directory is not None and settings.local_bytes:
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
        key: OperatorKey | None = None,
        key_groups: KeyGroupRange | None = None,
        may_refer: bool = True,
        now_ms: int = 0,
    ) -> OperatorStateHandler:
        """A handler with the state. Errors are those of `OperatorStateHandler.restore`.

        Args:
            function: The user's code.
            state: The state that the subtask is restored from.
            uid: The operator, for errors.
            key: The operator's key; None if it has none.
            key_groups: The subtask's key groups; None if the operator has no key.
            may_refer: Whether the checkpoint may refer to shared files of the state.
            now_ms: The time of the batch, milliseconds since 1970.
        """
        to_read = state
        written = _MEMORY.take(self._owner, state.managed_operator)
        if written is not None:
            self._sources.add("worker")
            to_read = msgspec.structs.replace(state, managed_operator=())
        shared = to_read.shared_streams()
        if self._copies is None and any(
            isinstance(stream, FileStateHandle)
            for handle in to_read.handles()
            if not isinstance(handle, SegmentsStateHandle)
            for stream in handle.streams()
        ):
            self._sources.add("storage")
        self._names = frozenset(shared)
        files = {
            name: stream.uri
            for name, stream in shared.items()
            if isinstance(stream, FileStateHandle)
        }
        if self._segments is not None and files:
            self._segments.link(files.items())
            self._sources.add("local")  # unless some has to be fetched
        state = self.behind_copies(state)
        keyed_state = None
        if key is not None and key_groups is not None:
            keyed_state = ManagedKeyedState(
                key,
                key_groups,
                state.managed_keyed,
                now_ms=now_ms,
                open_tables=partial(
                    open_tables,
                    backend=dict(self._settings.backends).get(uid, self._settings.backend),
                    rocksdb=self._settings.rocksdb,
                    on_metrics=self.backend_metrics.update,
                    directory=self._segments.directory if self._segments else None,
                    workspace=_SEGMENTS.get(None, Workspace) if self._max_bytes else None,
                    may_refer=may_refer,
                ),
            )
        return OperatorStateHandler.restore(
            function,
            state,
            uid=uid,
            key_groups=key_groups,
            keyed_state=keyed_state,
            written=written,
        )

    def behind_copies(self, state: StoredSubtask) -> StoredSubtask:
        """The state, read from copies where there are some; segments have copies of their own."""
        behind = state.with_streams(self._copies.behind) if self._copies else state
        keyed = (
            self._segments_behind(stored) if isinstance(stored, SegmentsStateHandle) else handle
            for handle, stored in zip(behind.managed_keyed, state.managed_keyed, strict=True)
        )
        return msgspec.structs.replace(behind, managed_keyed=tuple(keyed))

    def _segments_behind(self, stored: SegmentsStateHandle) -> SegmentsStateHandle:
        """The handle with its segments read from the host where possible. Where the manifest is read from is not counted."""
        manifest = stored.manifest
        if self._copies is not None:
            manifest = replace(self._copies, on_read=_not_noted).behind(manifest)
        return msgspec.structs.replace(
            stored, manifest=manifest, segments=self._noted(stored.segments)
        )

    def _noted(self, segments: Mapping[str, StreamStateHandle]) -> dict[str, StreamStateHandle]:
        """The segments, which tell when they are fetched from storage."""
        return {
            name: _NotedStateHandle(
                stream.uri, stream.size, stream.checksum, note=partial(self._sources.add, "storage")
            )
            if isinstance(stream, FileStateHandle)
            else stream
            for name, stream in segments.items()
        }

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
        names = self._names | state.shared_streams().keys()
        if self._segments is not None:
            self._segments.keep(names)
        if self._max_bytes:
            workspace = _SEGMENTS.get(None, Workspace)
            workspace.keep_only(self._owner, names)
            workspace.forget_deleted()
            workspace.limit(max(0, self._max_bytes - _MEMORY.used_bytes))

    @property
    def source(self) -> str:
        """Where files of state were found: the farthest of `worker`, `local` and `storage`."""
        farthest_first = ("storage", "local", "worker")
        return next((source for source in farthest_first if source in self._sources), "")
