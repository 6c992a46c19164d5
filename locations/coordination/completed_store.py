"""The completed checkpoints that a job keeps."""

import threading
from collections.abc import Iterable

from holdfast.common import collect_failures, raise_first, uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination.claims import Claims
from holdfast.locations.coordination.cleaner import CheckpointsCleaner
from holdfast.locations.coordination.shared_state import SharedStateRegistry
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.metadata import ClaimedCheckpoint
from holdfast.locations.storages import SHARED, CompletedCheckpoint, is_file_of


class CompletedCheckpointStore:
    """Keeps the newest checkpoints of a job, and has the others deleted.

    However a query ends, its checkpoints stay: Spark doesn't say whether a query that was stopped will
    be started again, and without them it could not. Savepoints, and checkpoints of other jobs that this
    one began with, belong to whoever made them, unless the job has claimed them: then they go when no
    checkpoint that is kept needs a file of them. No other file outside of the job's directory is deleted.

    Args:
        num_retained: Number of checkpoints that are kept, at least 1.
        cleaner: Deletes the others.
        restored: The job's own completed checkpoints, oldest first, as a driver finds them when
            it starts.
        claims: What the job has claimed.

    Raises:
        InvalidRequestError: No checkpoint would be kept.

    Source:
        Flink, DefaultCompletedCheckpointStore; its checkpoints are those that Flink retains on
        cancellation.
    """

    def __init__(
        self,
        num_retained: int,
        cleaner: CheckpointsCleaner,
        restored: Iterable[CompletedCheckpoint] = (),
        claims: Claims | None = None,
    ) -> None:
        if num_retained < 1:
            message = f"at least one checkpoint must be retained, not {num_retained}"
            raise InvalidRequestError(message)
        self._num_retained = num_retained
        self._cleaner = cleaner
        self._lock = threading.RLock()
        self._retained: list[CompletedCheckpoint] = []
        self._deleting = threading.Lock()
        self._doomed: list[CompletedCheckpoint] = []
        self._unused: list[FileStateHandle] = []
        self._shared_state = SharedStateRegistry(self._unused.append)
        self._claims = claims or Claims(directory="")
        for checkpoint in restored:
            self._register(checkpoint)
            self._retained.append(checkpoint)

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """The checkpoints that are kept, oldest first."""
        with self._lock:
            return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest checkpoint that is kept; None if there is none."""
        checkpoints = self.checkpoints
        return checkpoints[-1] if checkpoints else None

    def add(self, checkpoint: CompletedCheckpoint, *, lets_go: bool = True) -> None:
        """Keep a checkpoint that was just completed, and let go of those it makes superfluous.

        Args:
            checkpoint: The checkpoint.
            lets_go: Whether any may go now. What has to stay goes with a later checkpoint.

        Raises:
            InvalidRequestError: The checkpoint is not newer than all others.
        """
        with self._lock:
            if self._retained and checkpoint.checkpoint_id <= self._retained[-1].checkpoint_id:
                message = f"checkpoint {checkpoint.checkpoint_id} is not newer than what is kept"
                raise InvalidRequestError(message, checkpoint.location.external_pointer)
            self._register(checkpoint)
            self._retained.append(checkpoint)
            if lets_go:
                self._doomed += self._retained[: -self._num_retained]
                del self._retained[: -self._num_retained]
            lowest_id = self._retained[0].checkpoint_id
            self._shared_state.unregister_unused(lowest_id)
            is_released = lets_go and bool(self._unneeded_claims())
            if self._doomed or self._unused or is_released:
                self._cleaner.run(self._delete, f"checkpoints below {lowest_id}")

    def _delete(self) -> None:
        """Delete checkpoints, then the files that they shared; what fails is tried again later.

        In this order, so that nobody ever sees a checkpoint some of whose files are gone.
        """
        with self._deleting:
            with self._lock:
                doomed = list(self._doomed)
            failures = collect_failures(self._discard, doomed)
            with self._lock:
                unused = [] if self._doomed else list(self._unused)
                claims = [] if self._doomed else self._unneeded_claims()
            failures += collect_failures(self._delete_file, unused)
            failures += collect_failures(self._claims.release, claims)
            raise_first(failures)

    def _discard(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint.discard()
        with self._lock:
            self._doomed.remove(checkpoint)

    def _delete_file(self, file: FileStateHandle) -> None:
        file.discard_state()
        with self._lock:
            self._unused.remove(file)

    def _unneeded_claims(self) -> list[ClaimedCheckpoint]:
        return self._claims.unused(self._retained[0].checkpoint_id)

    def _register(self, checkpoint: CompletedCheckpoint) -> None:
        """Note which of the job's shared files a checkpoint refers to."""
        self._claims.register(checkpoint)
        shared = uripath.join(uripath.parent(checkpoint.location.external_pointer), SHARED)
        for stream in checkpoint.metadata.streams():
            if isinstance(stream, FileStateHandle) and is_file_of(stream.uri, shared):
                self._shared_state.register(stream, checkpoint.checkpoint_id)
