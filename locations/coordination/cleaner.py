"""Deletes what is not needed any more, off the commit path."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import retry_deadline

_log = logging.getLogger(__name__)


class CheckpointsCleaner:
    """A bounded pool of threads that delete. Errors are logged, and fail nobody.

    Args:
        threads: Most deletions at a time; one deletes a whole directory, in bulk requests.
        deadline_s: Seconds after which a deletion that fails is given up. The process waits for
            deletions when it ends.

    Source:
        Flink, CheckpointsCleaner.
    """

    def __init__(self, threads: int = 2, deadline_s: float = 10.0) -> None:
        if threads < 1:
            raise InvalidRequestError(f"cleaner needs a thread, and has {threads}")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-cleaner")
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._running: set[Future[None]] = set()

    @property
    def running(self) -> int:
        """Number of deletions that were begun or wait for a thread."""
        with self._lock:
            return len(self._running)

    def run(self, delete: Callable[[], object], what: str) -> None:
        """Do a deletion in the background.

        Args:
            delete: Deletes; may fail.
            what: A name for the files to delete, for the log.
        """

        def delete_and_log() -> None:
            try:
                with retry_deadline(self._deadline_s):
                    delete()
            except Exception:  # noqa: BLE001  # whatever it is, the job goes on without it
                _log.warning("could not clean up: %s", what, exc_info=True)

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
