"""The completed checkpoints that a job keeps."""

import sys
import threading
from collections.abc import Iterable
from enum import Enum

from holdfast.common import failures_of, raise_first, uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination.cleaner import CheckpointsCleaner
from holdfast.locations.coordination.properties import (
    RETAIN_ON_CANCELLATION,
    CheckpointProperties,
    JobStatus,
    RetainedCheckpoint,
    subsumed,
)
from holdfast.locations.coordination.shared_state import SharedStateRegistry
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import CompletedCheckpoint, is_below, lies_in


class RestoreMode(Enum):
    """To whom the files belong that a job was restored from.

    Source:
        Flink, RecoveryClaimMode, whose third value, LEGACY, is deprecated.
    """

    CLAIM = "claim"
    """To the job: they are deleted when they are superfluous.

    Of another job's checkpoint, so do the shared files that it leads to: neither run nor `sweep` that
    job again while this one uses them, since it would not find anything of its own that names them.
    """
    NO_CLAIM = "no-claim"
    """To whoever made them: the job never deletes them, and soon doesn't need them."""


class CompletedCheckpointStore:
    """Keeps the newest checkpoints of a job, and has the others deleted.

    Args:
        num_retained: Number of checkpoints that are kept, at least 1.
        cleaner: Deletes the others.
        restored: The job's own completed checkpoints, oldest first, as a driver finds them when
            it starts.

    Raises:
        InvalidRequestError: No checkpoint would be kept.

    Source:
        Flink, DefaultCompletedCheckpointStore.
    """

    def __init__(
        self,
        num_retained: int,
        cleaner: CheckpointsCleaner,
        restored: Iterable[CompletedCheckpoint] = (),
    ) -> None:
        if num_retained < 1:
            message = f"at least one checkpoint must be retained, not {num_retained}"
            raise InvalidRequestError(message)
        self._num_retained = num_retained
        self._cleaner = cleaner
        self._lock = threading.RLock()
        self._retained: list[RetainedCheckpoint] = []
        self._closed = False
        self._subsumed: dict[int, CompletedCheckpoint] = {}
        self._deleting = threading.Lock()
        self._doomed: list[CompletedCheckpoint] = []
        self._unused: list[FileStateHandle] = []
        self.shared_state = SharedStateRegistry(self._unused.append)
        for checkpoint in restored:
            self._register(checkpoint)
            self._retained.append(RetainedCheckpoint(checkpoint, RETAIN_ON_CANCELLATION))

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """What is kept, oldest first."""
        with self._lock:
            return tuple(one.checkpoint for one in self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest of them."""
        checkpoints = self.checkpoints
        return checkpoints[-1] if checkpoints else None

    def restore(self, checkpoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        """Begin with a checkpoint or savepoint that the user has named; ids go on behind its own.

        Whether it was claimed is known until this driver ends; what it has not deleted by then is
        left to the user.

        Raises:
            InvalidRequestError: There are completed checkpoints already; the job goes on from them.
        """
        with self._lock:
            if self._retained:
                message = "job has checkpoints of its own, and goes on from the latest of them"
                raise InvalidRequestError(message, checkpoint.location.external_pointer)
            directory = checkpoint.location.external_pointer
            for stream in checkpoint.metadata.streams():
                if isinstance(stream, FileStateHandle):
                    self.shared_state.register(
                        stream,
                        checkpoint.checkpoint_id,
                        lies_in_checkpoint=lies_in(stream.uri, directory),
                    )
            if mode is RestoreMode.CLAIM:
                self._retained.append(RetainedCheckpoint(checkpoint, RETAIN_ON_CANCELLATION))
            else:
                self.shared_state.protect_up_to(checkpoint.checkpoint_id)

    def add(
        self,
        checkpoint: CompletedCheckpoint,
        properties: CheckpointProperties = RETAIN_ON_CANCELLATION,
        *,
        lets_go: bool = True,
    ) -> None:
        """Keep a checkpoint that was just completed, and let go of those it makes superfluous.

        Args:
            checkpoint: The checkpoint.
            properties: What becomes of it.
            lets_go: Whether any may go now. What has to stay goes with a later checkpoint.

        Raises:
            InvalidRequestError: The store is shut down, or the checkpoint is not newer than all
                others.
        """
        with self._lock:
            if self._closed:
                raise InvalidRequestError("completed checkpoint store is shut down")
            if (
                self._retained
                and checkpoint.checkpoint_id <= self._retained[-1].checkpoint.checkpoint_id
            ):
                message = f"checkpoint {checkpoint.checkpoint_id} is not newer than what is kept"
                raise InvalidRequestError(message, checkpoint.location.external_pointer)
            self._register(checkpoint)
            self._retained.append(RetainedCheckpoint(checkpoint, properties))
            for old in subsumed(self._retained, self._num_retained) if lets_go else ():
                self._retained.remove(old)
                if old.properties.discarded_when_subsumed:
                    self._subsumed[old.checkpoint.checkpoint_id] = old.checkpoint
            self._clean_below(self._retained[0].checkpoint.checkpoint_id)

    def shutdown(self, status: JobStatus) -> None:
        """End with the job: delete what is not meant to outlive such an end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            kept = [one for one in self._retained if status not in one.properties.discarded_at]
            for one in self._retained:
                if one not in kept:
                    self._subsumed[one.checkpoint.checkpoint_id] = one.checkpoint
            self._retained.clear()
            lowest_id = kept[0].checkpoint.checkpoint_id if kept else sys.maxsize
            # Those above a savepoint that is kept go too: nothing will ever make them superfluous.
            self._clean_below(lowest_id, doomed_below=sys.maxsize)
            self.shared_state.close()

    def _clean_below(self, lowest_id: int, *, doomed_below: int = -1) -> None:
        """Delete what is superfluous, unless newer checkpoints use files of it."""
        still_in_use = self.shared_state.unregister_unused(lowest_id)
        below = max(lowest_id, doomed_below)
        ready = [one for one in self._subsumed if one < below and one not in still_in_use]
        self._doomed += [self._subsumed.pop(one) for one in ready]
        if self._doomed or self._unused:
            self._cleaner.run(self._delete, f"checkpoints below {lowest_id}")

    def _delete(self) -> None:
        """Delete checkpoints, then the files that they shared; what fails is tried again later.

        In this order, so that no checkpoint is ever found some of whose files are gone.
        """
        with self._deleting:
            with self._lock:
                doomed = list(self._doomed)
            failures = failures_of(self._discard, doomed)
            with self._lock:
                unused = [] if self._doomed else list(self._unused)
            failures += failures_of(self._delete_file, unused)
            raise_first(failures)

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint.discard()
        with self._lock:
            self._doomed.remove(checkpoint)

    def _delete_file(self, file: FileStateHandle) -> None:
        file.discard_state()
        with self._lock:
            self._unused.remove(file)

    def _register(self, checkpoint: CompletedCheckpoint) -> None:
        """Note which files outside of its own directory a checkpoint refers to."""
        directory = checkpoint.location.external_pointer
        job = uripath.parent(directory)
        for stream in checkpoint.metadata.streams():
            if not isinstance(stream, FileStateHandle) or lies_in(stream.uri, directory):
                continue
            # What is elsewhere belongs to somebody else, unless it was claimed.
            if is_below(stream.uri, job) or self.shared_state.knows(stream.uri):
                self.shared_state.register(stream, checkpoint.checkpoint_id)
