"""The checkpoint coordinator: decides what to do with a batch, commits its checkpoint, cleans up."""

import logging
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from holdfast.common import Clock, uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    ClaimedCheckpoints,
    CompletedCheckpointStore,
    check_claimable,
    check_not_claimed,
    check_not_revoked,
    claim_checkpoint,
    complete_checkpoint,
    load_latest_checkpoint,
    outlives_checkpoint,
    owns_shared_files,
    withdraw_claim,
    without_placeholders,
)
from holdfast.locations.file_systems import retry_deadline
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, SubtaskStatistics
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobDirectory,
    JobOwnership,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark.operators import CheckpointedSink, Operator
from holdfast.spark.query.continuation import Continuation, check_same_rows, was_completed
from holdfast.spark.query.given_up_attempts import GIVEN_UP, GivenUpAttempts, reason_of
from holdfast.spark.query.held_checkpoints import is_retained
from holdfast.spark.query.pending_checkpoint import PendingCheckpoint
from holdfast.spark.query.restored_state import (
    assigned_operators,
    known_key_types,
    progress_behind,
)
from holdfast.spark.query.writing_program import writer
from holdfast.spark.subtask import Acknowledgement, operator_state
from holdfast.spark_progress import (
    SPARK,
    GivenUpAttempt,
    SparkProgress,
    all_streams,
    carried_history,
    figures_of,
)

_log = logging.getLogger(__name__)

COMMIT_DEADLINE_S = 60.0
ABORT_DEADLINE_S = 10.0


class CheckpointCoordinator:
    """Drives the checkpoints of one run of a query, on the driver.

    With the first batch it claims the job, and looks up in storage which checkpoints the job has; after
    that it goes by its own commits. A driver that had the job before learns at its next batch or commit,
    at the latest, that it has lost the job.

    Attributes:
        access: The job's storage.

    Args:
        access: The job's storage.
        job_id: The job.
        query_id: Spark's id of the query; the stored checkpoints must be of this query.
        operators: The query's operators by uid.
        sinks: The query's sinks with a state of their own, by the name of that state.
        num_retained: Number of completed checkpoints that are kept.
        allow_non_restored_state: Whether state of operators that the query no longer has may be
            left behind.
        start: Savepoint whose operators' state the query begins with if it has no checkpoint.
        directory: The job's directory; None if it has none.
        claims_start: Whether the savepoint becomes the job's own, which then refers to files of it, and deletes
            it once it needs none of them. That takes a directory.
        sweep: Deletes what crashes have left; called in the background once the job is claimed.
        cleaner: Deletes checkpoints that are not kept, and runs `sweep`.
        clock: Says when checkpoints were completed, and how long they took.
        given_up: Attempts that no checkpoint has told of yet.
    """

    def __init__(
        self,
        access: CheckpointStorageAccess,
        *,
        job_id: str,
        query_id: str,
        operators: Mapping[str, Operator],
        sinks: Mapping[str, CheckpointedSink] = MappingProxyType({}),
        num_retained: int,
        allow_non_restored_state: bool = False,
        start: str | None = None,
        directory: JobDirectory | None = None,
        claims_start: bool = False,
        sweep: Callable[[], object] | None = None,
        cleaner: CheckpointsCleaner,
        clock: Clock,
        given_up: GivenUpAttempts = GIVEN_UP,
    ) -> None:
        self.access = access
        self._job_id = job_id
        self._operators = operators
        self._continuation = Continuation(
            query_id=query_id,
            operators=operators,
            sinks=sinks,
            allow_non_restored_state=allow_non_restored_state,
        )
        self._is_ours = False  # the last checkpoint: this run has completed it
        self._num_retained = num_retained
        self._start = start
        self._directory = directory
        self._claims_start = claims_start
        self._claims = ClaimedCheckpoints(directory.uri if directory is not None else "")
        self._savepoint: CompletedCheckpoint | None = None  # what it begins with
        self._ownership: JobOwnership | None = None
        self._store = CompletedCheckpointStore(num_retained, cleaner)
        self._sweep = sweep
        self._cleaner = cleaner
        self._clock = clock
        self._given_up = given_up
        access.initialize_base_locations_for_checkpoint()

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that the job is at; None before the first checkpoint, and before `begin`."""
        return self._store.latest

    def begin(
        self, batch_id: int, offsets_of: Callable[[int], str | None] = lambda _: None
    ) -> PendingCheckpoint | None:
        """Begin the checkpoint of a batch.

        Args:
            batch_id: The batch that Spark hands over.
            offsets_of: Returns Spark's offset log entry of a batch, or None if there is none.

        Returns:
            None if the last checkpoint completed this batch already: Spark repeats it because it was
            stopped before it had noted that itself. The batch has to be skipped.

        Raises:
            BatchGapError: The batch neither follows the last checkpoint nor repeats it, or Spark has
                other rows in the batch of that checkpoint.
            CheckpointConflictError: Another driver has claimed the job.
        """
        started_s = self._clock.monotonic_s()
        if self._ownership is None:
            # Not before it is sure that this query can go on: it stops the one that runs the job.
            last = load_latest_checkpoint(self.access)
            if last is not None:
                self._continuation.check(last)
                check_not_claimed([last.location])
            was_completed(batch_id, last, job_id=self._job_id)
            if last is not None:
                check_same_rows(last, offsets_of)
            elif self._start is not None:
                self._savepoint = load_checkpoint(resolve_pointer(self._start))
                self._continuation.check_start(self._savepoint)
                if self._claims_start and self._directory is not None:
                    check_claimable(self._savepoint, all_streams(self._savepoint), self._directory)
            # For its errors; the state is assigned once the job is ours.
            assigned_operators(self._operators, last or self._savepoint, is_ours=self._is_ours)
            self._take_over()
        else:
            self._ownership.check()
        last = self.latest
        if was_completed(batch_id, last, job_id=self._job_id):
            _log.info("batch %d was completed before; it is skipped", batch_id)
            return None
        restored = last or self._savepoint
        # From the batch, not counted: two drivers on one job meet at the same file then.
        checkpoint_id = batch_id + 1
        location = self.access.initialize_location_for_checkpoint(checkpoint_id)
        assigned = assigned_operators(self._operators, restored, is_ours=self._is_ours)
        return PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            location=location,
            restored_checkpoint_id=restored.checkpoint_id if restored else None,
            assigned=assigned,
            new=frozenset(assigned.keys() - (restored.metadata.operators if restored else {})),
            may_refer={
                uid: owns_shared_files(
                    operator.subtasks,
                    uripath.parent(location.external_pointer),
                    claimed=self._claims.files,
                )
                for uid, operator in assigned.items()
            },
            key_types=known_key_types(self._operators, restored),
            progress=progress_behind(restored),
            commit_token=uuid.uuid4().hex,
            started_s=started_s,
        )

    def _take_over(self) -> None:
        """Claim the job, and go on from the checkpoints that it has at that moment."""
        ownership = self.access.claim_job()
        completed = list(ownership.completed.values())
        if completed:
            self._continuation.check(completed[-1])
            check_not_claimed(checkpoint.location for checkpoint in completed)
            check_not_revoked(completed[-1])
            if self._directory is not None:
                self._claims = ClaimedCheckpoints.restore(
                    self._directory.uri, completed[-1], all_streams
                )
            _log.info(
                "job %s goes on from checkpoint %d at %s",
                self._job_id,
                completed[-1].checkpoint_id,
                completed[-1].location.external_pointer,
            )
            if self._start is not None:
                _log.info("it has that checkpoint, and so doesn't begin with %s", self._start)
        elif self._savepoint is not None:
            _log.info(
                "job %s begins with the state of its operators in %s",
                self._job_id,
                self._savepoint.location.external_pointer,
            )
            if self._directory is not None:
                self._claims = self._claims_at_start(self._savepoint, self._directory, ownership)
        self._ownership = ownership
        self._store = CompletedCheckpointStore(
            self._num_retained, self._cleaner, completed, self._claims
        )
        if self._sweep is not None:
            self._cleaner.run(self._sweep, f"orphaned files of job {self._job_id}")

    def _claims_at_start(
        self, savepoint: CompletedCheckpoint, directory: JobDirectory, ownership: JobOwnership
    ) -> ClaimedCheckpoints:
        """Claim the savepoint that the job begins with; or let go of it, if it was claimed at a start before."""
        if not self._claims_start:
            withdraw_claim(savepoint.location.external_pointer, directory.uri)
            return self._claims
        streams = all_streams(savepoint)
        claim = claim_checkpoint(savepoint, streams, directory, ownership, clock=self._clock)
        return ClaimedCheckpoints(directory.uri, [claim], all_streams)

    def complete(
        self,
        pending: PendingCheckpoint,
        acknowledgements: Mapping[str, list[Acknowledgement]],
        progress: SparkProgress,
        sink_states: Mapping[str, bytes] = MappingProxyType({}),
    ) -> CompletedCheckpoint:
        """Commit: publish the metadata, then let the oldest checkpoints go.

        Args:
            pending: What `begin` gave.
            acknowledgements: The reports of all subtasks, by the operator's uid.
            progress: Spark's side.
            sink_states: The states of sinks for the checkpoint, by name.

        Raises:
            CheckpointDeclinedError: A subtask has reported twice, or not at all, or refers to what it
                was not restored from.
            CheckpointConflictError: Another driver has committed the checkpoint, or claimed the job.
            OutcomeUnknownError: The store did not say whether it was committed; nothing may be deleted.
            StorageUnavailableError: The checkpoint was not committed.
        """
        operators = {
            uid: without_placeholders(
                uid,
                operator_state(
                    operator,
                    acknowledgements[uid],
                    max_parallelism=pending.assigned[uid].max_parallelism,
                    key_types=pending.key_types.get(uid, ()),
                ),
                pending.assigned[uid].subtasks,
                may_refer=pending.may_refer[uid],
            )
            for uid, operator in self._operators.items()
        }
        return self._publish(pending, operators, progress, sink_states)

    def can_carry_over(self, pending: PendingCheckpoint) -> bool:
        """Whether a checkpoint may have the state of the one before as it is, without a subtask that reports it.

        State that this run has restored may have been spread anew; and files in the directory of a checkpoint
        are deleted with it.
        """
        last = self.latest
        if last is None or not self._is_ours:
            return False
        job_directory = uripath.parent(pending.location.external_pointer)
        states = (last.metadata.operators[uid] for uid in self._operators)
        claimed = self._claims.files
        return all(outlives_checkpoint(state, job_directory, claimed=claimed) for state in states)

    def carry_over(
        self, pending: PendingCheckpoint, progress: SparkProgress
    ) -> CompletedCheckpoint:
        """Commit a checkpoint with the state of the one before; `can_carry_over` says whether that is possible.

        Raises:
            InvalidRequestError: `can_carry_over` is false.
            CheckpointConflictError: As for `complete`, and so the next two.
            OutcomeUnknownError: As there.
            StorageUnavailableError: As there.
        """
        last = self.latest
        if last is None or not self.can_carry_over(pending):
            raise InvalidRequestError("the state of the last checkpoint goes when that goes")
        operators = {uid: _without_work(last.metadata.operators[uid]) for uid in self._operators}
        return self._publish(pending, operators, progress, {})

    def _publish(
        self,
        pending: PendingCheckpoint,
        operators: dict[str, StoredOperator],
        progress: SparkProgress,
        sink_states: Mapping[str, bytes],
    ) -> CompletedCheckpoint:
        ownership = self._ownership
        if ownership is None:
            raise InvalidRequestError("no checkpoint was begun")
        job_directory = uripath.parent(pending.location.external_pointer)
        attempts = self._given_up.of(job_directory)
        metadata = CheckpointMetadata(
            job_id=self._job_id,
            checkpoint_id=pending.checkpoint_id,
            commit_token=pending.commit_token,
            created_ms=self._clock.now_ms(),
            duration_ms=1000 * (self._clock.monotonic_s() - pending.started_s),
            writer=writer(),
            operators=operators,
            coordinator_states={
                SPARK: msgspec.msgpack.encode(progress),
                **carried_history(self.latest, attempts),
                **sink_states,
            },
            epoch=ownership.epoch,
            claimed=self._claims.claimed,
        )
        with retry_deadline(COMMIT_DEADLINE_S):
            completed = self._commit(pending, metadata, ownership)
        self._given_up.forget(job_directory, attempts)
        self._store.add(completed, subsume=not is_retained(self._job_id))
        self._is_ours = True
        _log_completed(completed, pending.batch_id)
        return completed

    def _commit(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        try:
            return complete_checkpoint(pending.location, metadata, ownership)
        except CheckpointConflictError as error:
            ownership.check()  # says so itself if another driver owns the job
            message = (
                f"a former driver of this job has completed checkpoint {pending.checkpoint_id} "
                "while this one was working at it; start the query again, and it goes on from there"
            )
            raise CheckpointConflictError(message, error.location, kind="exists") from error

    def abort(self, pending: PendingCheckpoint, error: BaseException | None = None) -> bool:
        """Give a checkpoint up and delete what was written for it. Never raises.

        Args:
            pending: What `begin` gave.
            error: The reason, which the next checkpoint of the job records; None if there is none to record.

        Returns:
            Whether it is sure that it does not exist.
        """
        is_sure = False
        try:
            with retry_deadline(ABORT_DEADLINE_S):
                if self._exists(pending):
                    return False
                is_sure = True
                if error is not None:
                    self._note(pending, error)
                _log.info(
                    "checkpoint %d of job %s is given up", pending.checkpoint_id, self._job_id
                )
                pending.location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why it is given up
            _log.warning("could not clean up after a checkpoint", exc_info=True)
        return is_sure

    def _note(self, pending: PendingCheckpoint, error: BaseException) -> None:
        attempt = GivenUpAttempt(
            checkpoint=pending.checkpoint_id,
            batch=pending.batch_id,
            epoch=self._ownership.epoch if self._ownership else 0,
            given_up_ms=self._clock.now_ms(),
            duration_ms=1000 * (self._clock.monotonic_s() - pending.started_s),
            reason=reason_of(error),
        )
        self._given_up.note(uripath.parent(pending.location.external_pointer), attempt)

    def _exists(self, pending: PendingCheckpoint) -> bool:
        """Whether it was completed before whatever failed."""
        location = self.access.completed_checkpoints().get(pending.checkpoint_id)
        if location is None:
            return False
        return load_checkpoint(location).metadata.commit_token == pending.commit_token


def _without_work(stored: StoredOperator) -> StoredOperator:
    """The same state, of subtasks that did nothing."""
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
        figures_of(completed).rows_in,
        sum(each.rows_out for each in statistics),
        metadata.state_bytes,
        completed.metadata_bytes,
        max((each.restore_ms for each in statistics), default=0),
        max((each.process_ms for each in statistics), default=0),
        max((each.sync_ms + each.async_ms for each in statistics), default=0),
        sum(each.rows_late for each in statistics),
    )
