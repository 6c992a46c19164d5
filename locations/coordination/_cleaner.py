"""Deletes what is not needed any more, off the commit path."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination._checkpoints import CompletedCheckpoint

_log = logging.getLogger(__name__)


class CheckpointsCleaner:
    """A bounded pool of threads that delete. Errors are logged, and fail nobody.

    Args:
        threads: Most deletions at a time; one deletes a whole directory, in bulk requests.

    Source:
        Flink, CheckpointsCleaner. There `_metadata` may go last when a crash comes in between;
        here it always goes first, so that no checkpoint is found some of whose files are gone.
    """

    def __init__(self, threads: int = 2) -> None:
        if threads < 1:
            raise InvalidRequestError(f"cleaner needs a thread, and has {threads}")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-cleaner")
        self._lock = threading.Lock()
        self._running: set[Future[None]] = set()
        self._subsumed: dict[int, CompletedCheckpoint] = {}

    @property
    def running(self) -> int:
        """Number of deletions that were begun or wait for a thread."""
        with self._lock:
            return len(self._running)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete a checkpoint, its metadata first."""
        self.run(checkpoint.discard, checkpoint.location.external_pointer)

    def add_subsumed(self, checkpoint: CompletedCheckpoint) -> None:
        """Remember a checkpoint that is superfluous, for `clean_subsumed`."""
        with self._lock:
            self._subsumed[checkpoint.checkpoint_id] = checkpoint

    def clean_subsumed(self, lowest_id: int, still_in_use: Iterable[int] = ()) -> None:
        """Delete what was remembered, below an id, unless newer ones use files of it."""
        keep = frozenset(still_in_use)
        with self._lock:
            ready = [one for one in self._subsumed if one < lowest_id and one not in keep]
            checkpoints = [self._subsumed.pop(one) for one in ready]
        for checkpoint in checkpoints:
            self.discard(checkpoint)

    def run(self, delete: Callable[[], object], what: str) -> None:
        """Do a deletion in the background.

        Args:
            delete: Deletes; may fail.
            what: What it deletes, for the log.
        """

        def delete_and_log() -> None:
            try:
                delete()
            except Exception:  # noqa: BLE001  # whatever it is, the job goes on without it
                _log.warning(
                    "could not delete %s, which is not needed any more", what, exc_info=True
                )

        try:
            future = self._pool.submit(delete_and_log)
        except RuntimeError:  # closed, or the interpreter is going down
            delete_and_log()
            return
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._forget)

    def wait(self) -> None:
        """Wait for all deletions that were asked for so far."""
        with self._lock:
            running = list(self._running)
        wait(running)

    def close(self) -> None:
        """Wait for what is running; what is asked for after that is done at once."""
        self._pool.shutdown(wait=True)

    def _forget(self, future: Future[None]) -> None:
        with self._lock:
            self._running.discard(future)
