"""The sources of a task's state: the memory of its worker, the disk of its host, or storage.

State in memory or on disk is used only if it is, byte for byte, the state of the handles that were assigned to the
task. So it doesn't matter which task left it: an attempt that failed or lost against another attempt, or a task of a
batch that was never committed.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from holdfast.backends.keyed import Completion, MissingCopy, Workspace
from holdfast.backends.snapshot import WrittenStates
from holdfast.common import Clock, ProcessCache
from holdfast.locations.handles import (
    FileStateHandle,
    OperatorStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointStreamFactory
from holdfast.spark.settings import StateSettings
from holdfast.spark.subtask.local_files import (
    FetchedStateHandle,
    FetchMeter,
    LocalFiles,
    digest_of,
    local_directory,
)

_log = logging.getLogger(__name__)


class WorkerMemory:
    """Operator states that tasks have left in a process, the newest of each subtask."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[OperatorStateHandle, WrittenStates]] = {}

    @property
    def used_bytes(self) -> int:
        return sum(written.memory_bytes for _, written in self._entries.values())

    def take(self, owner: str, handles: Sequence[OperatorStateHandle]) -> WrittenStates | None:
        """Remove and return the states of these handles; None if they are not here."""
        handle, written = self._entries.pop(owner, (None, None))
        if handle is None or written is None or (handle,) != tuple(handles):
            return None
        if not written.matches(handle):
            _log.warning(
                "state in memory was changed since it was written, and is read from storage; "
                "an operator may have added an array whose memory it uses again"
            )
            return None
        return written

    def keep(
        self, owner: str, handle: OperatorStateHandle, written: WrittenStates, *, max_bytes: int
    ) -> None:
        """Leave the states of a handle to a later task; if they exceed the limit, the oldest entries are removed."""
        self._entries.pop(owner, None)
        used_bytes = written.memory_bytes
        if used_bytes > max_bytes:
            return
        for other in list(self._entries)[::-1]:
            used_bytes += self._entries[other][1].memory_bytes
            if used_bytes > max_bytes:
                del self._entries[other]
        self._entries[owner] = (handle, written)


_MEMORY = WorkerMemory()

_WORKSPACE: ProcessCache[None, Workspace] = ProcessCache()
"""The segments that this process has open."""


_COMPLETION: ProcessCache[None, Completion] = ProcessCache()
"""The local copies of segments that this process completes between tasks."""


class LocalState:
    """The task-local state of one task, from the start until it leaves its state to the next task.

    Attributes:
        fetches: The task's reads of segments from storage.
    """

    def __init__(
        self,
        settings: StateSettings,
        *,
        job_id: str,
        uid: str,
        subtask: int,
        checkpoint_id: int,
        clock: Clock,
    ) -> None:
        _COMPLETION.get(None, Completion).pause()
        self._max_bytes = settings.worker_bytes
        self._checkpoint_id = checkpoint_id
        self._is_prefetching = settings.prefetch and settings.backend_of(uid) == "columnar"
        self._owner = digest_of((job_id, uid, subtask))
        self.fetches = FetchMeter(clock)
        self._sources: set[str] = set()
        self._restored = StoredSubtask()
        self._files: LocalFiles | None = None
        directory = local_directory(os.environ, clock) if settings.local_bytes else None
        if directory is not None:
            self._files = LocalFiles(
                root=directory,
                operator=digest_of((job_id, uid)),
                subtask=subtask,
                checkpoint_id=checkpoint_id,
                max_bytes=settings.local_bytes,
                clock=clock,
            )
        self._duplicates = self._files if settings.duplicate_files else None

    @property
    def segment_directory(self) -> str | None:
        """The directory for segments of keyed state on this host; None if they stay in memory."""
        return self._files.directory if self._files is not None else None

    @property
    def workspace(self) -> Workspace | None:
        """The segments that the process has open; None if they are closed at the end of the task."""
        return _WORKSPACE.get(None, Workspace) if self._max_bytes else None

    @property
    def source(self) -> str:
        """The farthest source from which files of state were read: `storage`, `local` or `worker`."""
        farthest_first = ("storage", "local", "worker")
        sources = self._sources | ({"storage"} if self.fetches.requests else set())
        return next((source for source in farthest_first if source in sources), "")

    def restore(self, state: StoredSubtask) -> tuple[StoredSubtask, WrittenStates | None]:
        """Return handles that read from this host if possible, and the operator state that is in memory."""
        written = _MEMORY.take(self._owner, state.managed_operator)
        to_read = state
        if written is not None:
            self._sources.add("worker")
            to_read = msgspec.structs.replace(state, managed_operator=())
        if self._duplicates is None and any(_exclusive_files(to_read)):
            self._sources.add("storage")
        self._restored = state
        segments = {
            name: stream.uri
            for name, stream in state.shared_streams().items()
            if isinstance(stream, FileStateHandle)
        }
        if self._files is not None and segments:
            self._files.link(segments.items())
            self._sources.add("local")  # unless one has to be fetched
        return self._with_local_handles(state), written

    def duplicate(self, factory: CheckpointStreamFactory) -> CheckpointStreamFactory:
        """Return a factory whose streams also leave copies of state files on this host."""
        return self._duplicates.duplicate(factory) if self._duplicates is not None else factory

    def keep(self, state: StoredSubtask, written: WrittenStates | None) -> None:
        """Leave the state that was written to a later task of this process or host."""
        in_files = [
            handle
            for handle in state.managed_operator
            if isinstance(handle.stream, FileStateHandle)
        ]
        if written is not None and len(in_files) == 1:
            _MEMORY.keep(self._owner, in_files[0], written, max_bytes=self._max_bytes)
        segments = frozenset(self._restored.shared_streams()) | state.shared_streams().keys()
        if self._files is not None:
            files = self._duplicate_names(self._restored) | self._duplicate_names(state)
            room_bytes = self._files.finish(segments | files)
            if self._is_prefetching:
                copies = self._missing_copies(self._files.directory, state)
                completion = _COMPLETION.get(None, Completion)
                completion.resume(self._checkpoint_id, copies, room_bytes)
        workspace = self.workspace
        if workspace is not None:
            workspace.keep_only(self._owner, segments)
            workspace.forget_deleted()
            workspace.limit(max(0, self._max_bytes - _MEMORY.used_bytes))

    def _missing_copies(self, directory: str, state: StoredSubtask) -> Iterator[MissingCopy]:
        """Return the segments of the restored state that the written state needs too; only these can be partial."""
        needed = state.shared_streams().keys()
        for name, stream in self._restored.shared_streams().items():
            if name in needed and isinstance(stream, FileStateHandle):
                yield MissingCopy(name, stream, os.path.join(directory, name))

    def _duplicate_names(self, state: StoredSubtask) -> set[str]:
        """Return the names of the copies of a state's files, without its segments."""
        if self._duplicates is None:
            return set()
        return {digest_of(file) for file in _exclusive_files(state, manifests=True)}

    def _with_local_handles(self, state: StoredSubtask) -> StoredSubtask:
        """Return the state with handles that read from this host if possible, and report their sources."""
        local = state
        if self._duplicates is not None:
            read_through = partial(self._duplicates.read_through, on_read=self._sources.add)
            local = state.with_streams(read_through)
        keyed = (
            self._with_local_segments(stored) if isinstance(stored, SegmentsStateHandle) else handle
            for handle, stored in zip(local.managed_keyed, state.managed_keyed, strict=True)
        )
        return msgspec.structs.replace(local, managed_keyed=tuple(keyed))

    def _with_local_segments(self, stored: SegmentsStateHandle) -> SegmentsStateHandle:
        """Return a handle that reports when a segment is fetched from storage; its manifest is not reported."""
        manifest = stored.manifest
        if self._duplicates is not None:
            manifest = self._duplicates.read_through(manifest, lambda _: None)

        segments = {
            name: FetchedStateHandle.of(stream, self.fetches)
            if isinstance(stream, FileStateHandle)
            else stream
            for name, stream in stored.segments.items()
        }
        return msgspec.structs.replace(stored, manifest=manifest, segments=segments)


def _exclusive_files(state: StoredSubtask, *, manifests: bool = False) -> list[FileStateHandle]:
    """Return the files that belong only to this checkpoint; with manifests of segments or without."""
    streams: list[StreamStateHandle] = []
    for handle in state.handles():
        if not isinstance(handle, SegmentsStateHandle):
            streams += handle.streams()
        elif manifests:
            streams.append(handle.manifest)
    return [stream for stream in streams if isinstance(stream, FileStateHandle)]
