"""A driver with standbys: it waits until it is the active one, and sends heartbeats while its query runs."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import Clock
from holdfast.errors import (
    CheckpointConflictError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations.coordination import ActiveDriver, Standby
from holdfast.locations.storages import JobDirectory
from holdfast.spark import sessions
from holdfast.spark.settings import PREFIX, Settings

_log = logging.getLogger(__name__)

_MIN_SILENCE = timedelta(seconds=2)

_POLL_S = 1
"""Interval, in seconds, at which `run` checks whether a standby has taken over."""


def wait_to_be_active(silence: timedelta, clock: Clock) -> "RunningDriver | None":
    """Wait until no other driver runs the job of the session; None if the job has ended in the meantime.

    Raises:
        InvalidRequestError: The session or the time can't be used for drivers that wait.
    """
    if not isinstance(silence, timedelta) or silence < _MIN_SILENCE:
        message = f"standby_after must be a timedelta >= {_MIN_SILENCE}, got {silence!r}"
        raise InvalidRequestError(message)
    session = sessions.classic_session()
    if session is None:
        message = (
            "standby_after needs a classic Spark session of this process; create it before run(...)"
        )
        raise InvalidRequestError(message)
    standby = Standby(_directory_of_job(), silence.total_seconds(), clock)
    while True:
        try:
            active = standby.look()
        except (StorageUnavailableError, OutcomeUnknownError) as error:
            _log.warning("a standby can't look for its active driver: %s", error)
        else:
            if active is not None:
                return RunningDriver(active, session)
            if standby.has_ended:
                _log.info("the job has ended on its active driver")
                return None
        clock.sleep(standby.interval_s)


@contextmanager
def stop_on_error(query: StreamingQuery) -> Iterator[None]:
    """Stop a query if the block fails or its thread is interrupted."""
    try:
        yield
    except BaseException:
        query.stop()
        raise


class RunningDriver:
    """The active driver, with a thread that sends heartbeats. The block may end the query, or raise its error."""

    def __init__(self, active: ActiveDriver, session: SparkSession) -> None:
        self._active = active
        self._session = session
        self._is_done = threading.Event()
        self._thread = threading.Thread(
            target=self._send_heartbeats, daemon=True, name="holdfast-heartbeats"
        )
        self._error: CheckpointConflictError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._is_done.set()
        self._thread.join(timeout=2 * self._active.interval_s)  # it may wait for a JVM that hangs
        if kind is None:
            self._active.end()
        else:
            self._active.release()

    def run(self, start: Callable[[], StreamingQuery]) -> None:
        """Run the query until it ends. Raises `CheckpointConflictError` if a standby has taken over."""
        self._active.check()
        query = start()
        with stop_on_error(query):
            while not query.awaitTermination(_POLL_S):
                self._raise_if_lost()
        self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_heartbeats(self) -> None:
        while not self._is_done.wait(self._active.interval_s):
            try:
                sessions.check_alive(self._session)
                self._active.write_heartbeat()
            except CheckpointConflictError as error:
                self._error = error
                return
            except Exception as error:  # noqa: BLE001  # of the store, or of a JVM that has ended
                message = "this driver can't send heartbeats, so a standby may take over: %s"
                _log.warning(message, error)


def _directory_of_job() -> JobDirectory:
    """Return the directory of the job that the session's settings name. Raises `InvalidRequestError`."""
    settings = Settings.parse(sessions.configuration())
    if settings.job_id is None:
        raise InvalidRequestError(
            f"standby_after needs {PREFIX}job.id, the same for all drivers of the job, so that they find each other before "
            "the query is started. For a job that has run without it, set it to the name of the job's "
            f"directory in {PREFIX}checkpoint.dir",
            kind="setting",
        )
    directory = settings.job_directory(settings.job_id)
    if directory is None:
        message = f"standby_after needs {PREFIX}checkpoint.dir in a store that all drivers of the job reach"
        raise InvalidRequestError(message, kind="setting")
    if directory.single_writer:
        raise InvalidRequestError(
            f"standby_after can't be used with {PREFIX}checkpoint.single-writer: a store that doesn't keep two drivers "
            "apart would let both commit",
            kind="setting",
        )
    settings.stores.use()
    return directory
