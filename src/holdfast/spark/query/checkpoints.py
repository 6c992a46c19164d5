"""The checkpoints of queries in this process: in progress, failed, pinned, and to be deleted."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from holdfast.backends.assignment import AssignedOperator
from holdfast.common import ProcessLock
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import CheckpointsCleaner
from holdfast.locations.storages import CheckpointStorageLocation, CompletedCheckpoint
from holdfast.spark_progress import (
    MAX_ATTEMPTS,
    MAX_REASON_CHARACTERS,
    FailedAttempt,
    SparkProgress,
)

CLEANER = CheckpointsCleaner()
"""Deletes checkpoints in the background. All queries of the process share it: deleting is never urgent."""


@cache  # not at import: executors may have the package without its metadata
def writer_version() -> str:
    """Return the name and version of this program, which checkpoints record."""
    return f"holdfast {version('holdfast')}"


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint in progress.

    Attributes:
        batch_id: The micro-batch that it will complete.
        assigned: The state from which operators are restored, by uid.
        new: Uids of operators without state, which run their first batch.
        may_refer: Whether an operator's part of it may refer to shared streams of the restored state, by uid. If not,
            its subtasks write all of their state again.
        key_types: Spark's types of the columns of keys, by uid: those in the restored checkpoint, otherwise those
            of the batch.
        progress: Spark's progress in the restored checkpoint; None if it has none.
        commit_token: Random; identifies the commit of this attempt.
        start_s: `Clock.monotonic_s` at its start.
        claimed_s: The same when the run's claim of the job was made, or checked.
        assigned_s: The same when state was assigned to subtasks.
        restored: The checkpoint from which state is restored, or None.
    """

    checkpoint_id: int
    batch_id: int
    location: CheckpointStorageLocation
    assigned: dict[str, AssignedOperator]
    new: frozenset[str]
    may_refer: dict[str, bool]
    key_types: dict[str, tuple[str, ...]]
    progress: SparkProgress | None
    commit_token: str
    start_s: float
    claimed_s: float
    assigned_s: float
    restored: CompletedCheckpoint | None

    @property
    def restored_checkpoint_id(self) -> int | None:
        """The id of the checkpoint from which state is restored, or None."""
        return self.restored.checkpoint_id if self.restored is not None else None


_FAILURES_LOCK = ProcessLock()
_FAILURES: dict[str, tuple[FailedAttempt, ...]] = {}
"""Failed attempts at checkpoints, by the directory of their job, until a checkpoint of the job records them.

The run that failed has ended, and another run with another coordinator continues the job. If that is in the same
process, its next checkpoint records the attempts.
"""


def add_failed_attempt(job_directory: str, attempt: FailedAttempt) -> None:
    """Keep an attempt for the job's next checkpoint; of too many the oldest are dropped."""
    with _FAILURES_LOCK.current:
        known = _FAILURES.get(job_directory, ())
        _FAILURES[job_directory] = (*known, attempt)[-MAX_ATTEMPTS:]


def failed_attempts(job_directory: str) -> tuple[FailedAttempt, ...]:
    """Return the attempts that no checkpoint of the job has recorded yet."""
    with _FAILURES_LOCK.current:
        return _FAILURES.get(job_directory, ())


def forget_failed_attempts(job_directory: str, recorded: tuple[FailedAttempt, ...]) -> None:
    """Remove attempts that a completed checkpoint has recorded."""
    with _FAILURES_LOCK.current:
        attempts = _FAILURES.pop(job_directory, ())
        attempts = tuple(attempt for attempt in attempts if attempt not in recorded)
        if attempts:
            _FAILURES[job_directory] = attempts


def failure_reason(error: BaseException) -> str:
    """Return the reason of a failed attempt in a few words.

    Messages of other libraries' and users' errors may contain secrets, and are not stored.
    """
    name = type(error).__name__
    if isinstance(error, CheckpointError) and error.args:
        return f"{name}: {error.args[0]}"[:MAX_REASON_CHARACTERS]
    return name[:MAX_REASON_CHARACTERS]


_PINS_LOCK = ProcessLock()
_PINS: Counter[str] = Counter()


@contextmanager
def pin_checkpoints(job_id: str) -> Iterator[None]:
    """Keep all completed checkpoints of a job for the block, while some are copied.

    Only the coordinator of the job in this process respects pins, after each commit. So a checkpoint
    that is the newest at some time within the block exists until the block ends.
    """
    with _PINS_LOCK.current:
        _PINS[job_id] += 1
    try:
        yield
    finally:
        with _PINS_LOCK.current:
            _PINS[job_id] -= 1
            if not _PINS[job_id]:
                del _PINS[job_id]


def has_pinned_checkpoints(job_id: str) -> bool:
    with _PINS_LOCK.current:
        return job_id in _PINS
