"""The checkpoint coordinator: begins, completes and aborts the checkpoint of each batch."""

import logging
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from holdfast.common import Clock, is_within, moment, uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    complete_checkpoint,
    has_only_job_files,
    without_placeholders,
)
from holdfast.locations.file_systems import retry_deadline
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, SubtaskStatistics
from holdfast.locations.storages import CompletedCheckpoint, JobOwnership, load_checkpoint
from holdfast.spark.metrics import checkpoint_fields, json_line
from holdfast.spark.query.checkpoints import (
    PendingCheckpoint,
    add_failed_attempt,
    failed_attempts,
    failure_reason,
    forget_failed_attempts,
    has_pinned_checkpoints,
    writer_version,
)
from holdfast.spark.query.continuation import (
    Continuation,
    OwnedJob,
    StoredJob,
    restored_progress,
    was_completed,
)
from holdfast.spark.settings import LogFormat
from holdfast.spark.subtask import Acknowledgement, combine_acknowledgements
from holdfast.spark_progress import (
    SPARK,
    FailedAttempt,
    SparkProgress,
    checkpoint_statistics,
    next_history,
)

_log = logging.getLogger(__name__)

COMMIT_DEADLINE_S = 60.0
ABORT_DEADLINE_S = 10.0

LOOK_INTERVAL_S = 10.0
"""Seconds after a look for the owner of the job within which the next batch begins without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rules that delete files of a job.

    Attributes:
        num_retained: Number of completed checkpoints that are kept; `cleaner` deletes the others in the background.
        sweep: Deletes the files that crashes have left; runs in the background once the job is claimed, and again
            after a checkpoint when `sweep_interval_s` has passed.
        sweep_interval_s: Seconds between two sweeps of a run, at least.
    """

    num_retained: int
    cleaner: CheckpointsCleaner
    sweep: Callable[[], object] | None = None
    sweep_interval_s: float = math.inf


class CheckpointCoordinator:
    """Drives the checkpoints of one run of a query, on the driver.

    With the first batch it claims the job and reads its checkpoints from storage; later it knows them from its own
    commits. A driver that had the job before detects at its next batch or commit that it has lost the job.
    """

    def __init__(
        self,
        job: StoredJob,
        continuation: Continuation,
        retention: Retention,
        *,
        clock: Clock,
        log_format: LogFormat = "text",
    ) -> None:
        self.job = job
        self._continuation = continuation
        self._retention = retention
        self._clock = clock
        self._log_format = log_format
        self._owned: OwnedJob | None = None
        self._store = CompletedCheckpointStore(retention.num_retained, retention.cleaner)
        self._has_completed = False  # a checkpoint in this run
        self._next_sweep_s = -math.inf
        self._looked = (-math.inf, -math.inf)
        job.access.initialize_base_locations_for_checkpoint()

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The job's last checkpoint; None before the first checkpoint, and before `begin`."""
        return self._store.latest

    def begin(
        self, batch_id: int, offsets_of: Callable[[int], str | None] = lambda _: None
    ) -> PendingCheckpoint | None:
        """Begin the checkpoint of a batch. The first call claims the job.

        `offsets_of` returns Spark's offset log entry of a batch, or None if it does not exist.

        Returns:
            None if the last checkpoint already completed this batch: Spark repeats it because it was
            stopped before it had committed the batch itself. The batch has to be skipped.

        Raises:
            InvalidRequestError: The query can't continue from the job's last checkpoint, or its savepoint.
            BatchGapError: The batch neither follows the last checkpoint nor repeats it, or Spark has
                other rows in the batch of that checkpoint.
            CheckpointConflictError: Another driver has claimed the job.
        """
        start_s = self._clock.monotonic_s()
        if self._owned is None:
            owned = self._take_over(batch_id, offsets_of)
        else:
            owned = self._owned
            self._look_for_owner(owned.ownership)
        claimed_s = self._clock.monotonic_s()
        last = self.latest
        if was_completed(batch_id, last, job_id=self.job.job_id):
            _log.info("batch %d was completed before; it is skipped", batch_id)
            return None
        restored = last or owned.savepoint
        # Derived from the batch, so that two drivers of a job write the same file.
        checkpoint_id = batch_id + 1
        location = self.job.access.initialize_location_for_checkpoint(checkpoint_id)
        job_directory = uripath.parent(location.external_pointer)
        assigned = self._continuation.assign(restored, is_own=self._has_completed)
        return PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            location=location,
            assigned=assigned,
            new=frozenset(assigned.keys() - (restored.metadata.operators if restored else {})),
            may_refer={
                uid: has_only_job_files(
                    (
                        stream
                        for subtask in operator.subtasks
                        for stream in subtask.shared_streams().values()
                    ),
                    job_directory,
                    claimed=owned.claims.files,
                )
                for uid, operator in assigned.items()
            },
            key_types=self._continuation.key_types(restored),
            progress=restored_progress(restored),
            commit_token=uuid.uuid4().hex,
            start_s=start_s,
            claimed_s=claimed_s,
            assigned_s=self._clock.monotonic_s(),
            restored=restored,
        )

    def complete(
        self,
        pending: PendingCheckpoint,
        acknowledgements: Mapping[str, list[Acknowledgement]],
        progress: SparkProgress,
        sink_states: Mapping[str, bytes] = MappingProxyType({}),
    ) -> CompletedCheckpoint:
        """Commit a checkpoint: publish the metadata, then delete the oldest checkpoints.

        It has the reports of all subtasks, by the operator's uid, and the states of sinks, by name.

        Raises:
            CheckpointDeclinedError: A subtask has reported twice, or not at all, or refers to files from which
                it was not restored.
            CheckpointConflictError: Another driver has committed the checkpoint, or claimed the job.
            OutcomeUnknownError: It is unknown whether it was committed; nothing may be deleted.
            StorageUnavailableError: The checkpoint was not committed.
        """
        operators = {}
        for uid, operator in self._continuation.operators.items():
            assigned, key_types = pending.assigned[uid], pending.key_types.get(uid, ())
            stored = combine_acknowledgements(operator, acknowledgements[uid], assigned, key_types)
            operators[uid] = without_placeholders(
                uid, stored, assigned.subtasks, may_refer=pending.may_refer[uid]
            )
        return self._publish(pending, operators, progress, sink_states)

    def can_reuse_state(self, pending: PendingCheckpoint) -> bool:
        """Return whether a checkpoint can have the state of the last one, without reports of subtasks.

        It can't if the state may have to be redistributed, because another run has completed the last checkpoint, or
        if files of the state are deleted together with the last checkpoint.
        """
        last = self.latest
        if last is None or self._owned is None or not self._has_completed:
            return False
        job_directory = uripath.parent(pending.location.external_pointer)
        operators = (last.metadata.operators[uid] for uid in self._continuation.operators)
        streams = (stream for operator in operators for stream in operator.streams())
        return has_only_job_files(streams, job_directory, claimed=self._owned.claims.files)

    def reuse_state(
        self, pending: PendingCheckpoint, progress: SparkProgress
    ) -> CompletedCheckpoint:
        """Commit a checkpoint with the state of the last one, if `can_reuse_state`. Raises as `complete` does."""
        last = self.latest
        if last is None or not self.can_reuse_state(pending):
            message = (
                "can't reuse the last checkpoint's state: its files are deleted together with that "
                "checkpoint"
            )
            raise InvalidRequestError(message)
        operators = {
            uid: _without_work(last.metadata.operators[uid]) for uid in self._continuation.operators
        }
        return self._publish(pending, operators, progress, {})

    def abort(self, pending: PendingCheckpoint, error: BaseException | None = None) -> bool:
        """Abort a checkpoint and delete the files that were written for it. Never raises.

        The job's next checkpoint records the error, if there is one. Returns whether it is certain that the
        checkpoint does not exist.
        """
        is_certain = False
        try:
            with retry_deadline(ABORT_DEADLINE_S):
                if self._exists(pending):
                    return False
                is_certain = True
                if error is not None:
                    self._record_failure(pending, error)
                _log.info(
                    "checkpoint %d of job %s is aborted", pending.checkpoint_id, self.job.job_id
                )
                pending.location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see the error that caused the abort
            _log.warning("could not clean up after a checkpoint", exc_info=True)
        return is_certain

    def _look_for_owner(self, ownership: JobOwnership) -> None:
        """Look whether another driver has claimed the job, unless the look after the last commit was a moment ago."""
        if not is_within(LOOK_INTERVAL_S, self._looked, moment(self._clock)):
            ownership.check()

    def _take_over(self, batch_id: int, offsets_of: Callable[[int], str | None]) -> OwnedJob:
        owned = self.job.take_over(self._continuation, batch_id, offsets_of, self._clock)
        self._owned = owned
        self._looked = moment(self._clock)
        self._store = CompletedCheckpointStore(
            self._retention.num_retained, self._retention.cleaner, owned.completed, owned.claims
        )
        self._sweep_if_due()
        return owned

    def _sweep_if_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._retention.sweep is not None and now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + self._retention.sweep_interval_s
            name = f"orphaned files of job {self.job.job_id}"
            self._retention.cleaner.run(self._retention.sweep, name)

    def _publish(
        self,
        pending: PendingCheckpoint,
        operators: dict[str, StoredOperator],
        progress: SparkProgress,
        sink_states: Mapping[str, bytes],
    ) -> CompletedCheckpoint:
        owned = self._owned
        if owned is None:
            raise InvalidRequestError("no checkpoint was begun")
        job_directory = uripath.parent(pending.location.external_pointer)
        attempts = failed_attempts(job_directory)
        metadata = CheckpointMetadata(
            job_id=self.job.job_id,
            checkpoint_id=pending.checkpoint_id,
            commit_token=pending.commit_token,
            created_ms=self._clock.now_ms(),
            duration_ms=self._duration_ms(pending),
            writer=writer_version(),
            operators=operators,
            coordinator_states={
                SPARK: msgspec.msgpack.encode(progress),
                **next_history(self.latest, attempts),
                **sink_states,
            },
            epoch=owned.ownership.epoch,
            claimed=owned.claims.claimed,
        )
        with retry_deadline(COMMIT_DEADLINE_S):
            completed = self._commit(pending, metadata, owned.ownership)
        forget_failed_attempts(job_directory, attempts)
        self._looked = moment(self._clock)
        self._store.add(
            completed,
            subsume=not has_pinned_checkpoints(self.job.job_id),
            has_readers=owned.ownership.has_readers,
        )
        self._sweep_if_due()
        self._has_completed = True
        if self._log_format == "json":
            _log.info("%s", json_line(checkpoint_fields(completed, pending.batch_id)))
        else:
            _log_completed(completed, pending.batch_id)
        return completed

    def _commit(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        try:
            return complete_checkpoint(pending.location, metadata, ownership)
        except CheckpointConflictError as error:
            ownership.check()  # raises another error if another driver owns the job
            message = (
                f"an earlier driver of this job has completed checkpoint {pending.checkpoint_id} "
                "concurrently; start the query again, and it resumes from there"
            )
            raise CheckpointConflictError(message, error.location, kind="exists") from error

    def _record_failure(self, pending: PendingCheckpoint, error: BaseException) -> None:
        attempt = FailedAttempt(
            checkpoint=pending.checkpoint_id,
            batch=pending.batch_id,
            epoch=self._owned.ownership.epoch if self._owned else 0,
            failed_ms=self._clock.now_ms(),
            duration_ms=self._duration_ms(pending),
            reason=failure_reason(error),
        )
        add_failed_attempt(uripath.parent(pending.location.external_pointer), attempt)

    def _duration_ms(self, pending: PendingCheckpoint) -> float:
        return 1000 * (self._clock.monotonic_s() - pending.start_s)

    def _exists(self, pending: PendingCheckpoint) -> bool:
        """Return whether the checkpoint was completed before the error."""
        location = self.job.access.completed_checkpoints().get(pending.checkpoint_id)
        if location is None:
            return False
        return load_checkpoint(location).metadata.commit_token == pending.commit_token


def _without_work(stored: StoredOperator) -> StoredOperator:
    """Return the same state, with the statistics of subtasks that did nothing."""
    idle = SubtaskStatistics(0, 0, 0, 0, 0, 0, 0)
    subtasks = {
        index: msgspec.structs.replace(state, statistics=idle)
        for index, state in stored.subtasks.items()
    }
    return msgspec.structs.replace(stored, subtasks=subtasks)


def _log_completed(completed: CompletedCheckpoint, batch_id: int) -> None:
    metadata = completed.metadata
    statistics = [
        subtask.statistics
        for operator in metadata.operators.values()
        for subtask in operator.subtasks.values()
        if subtask.statistics is not None
    ]
    _log.info(
        "completed checkpoint %d of job %s (batch %d) in %.0f ms: %d rows in, %d rows out, "
        "%d bytes of state, %d bytes of metadata; slowest subtask %.0f ms to restore, "
        "%.0f ms to process, %.0f ms to store; %d rows came too late and were dropped",
        metadata.checkpoint_id,
        metadata.job_id,
        batch_id,
        metadata.duration_ms,
        checkpoint_statistics(completed).rows_in,
        sum(each.rows_out for each in statistics),
        metadata.state_bytes,
        completed.metadata_bytes,
        max((each.restore_ms for each in statistics), default=0),
        max((each.process_ms for each in statistics), default=0),
        max((each.sync_ms + each.async_ms for each in statistics), default=0),
        sum(each.rows_late for each in statistics),
    )
