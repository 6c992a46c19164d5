"""The checkpoint coordinator: decides what to do with a batch, commits it, cleans up behind it."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from types import MappingProxyType

import msgspec

from holdfast.backends.assignment import AssignedOperator, assign
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    complete_checkpoint,
    load_latest_checkpoint,
)
from holdfast.locations.file_systems import retry_deadline
from holdfast.locations.metadata import CheckpointMetadata, OperatorState, SubtaskState
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    JobOwnership,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark.operators import CheckpointedSink, Operator
from holdfast.spark.query.continuation import Continuation, check_same_rows, was_completed
from holdfast.spark.query.held_checkpoints import is_retained
from holdfast.spark.subtask import Acknowledgement, operator_state
from holdfast.spark_progress import SPARK, SparkProgress

_log = logging.getLogger(__name__)

# One for all queries of the process: deleting is never urgent.
_CLEANER = CheckpointsCleaner()

_COMMIT_DEADLINE_S = 60.0
_ABORT_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that was begun.

    Attributes:
        checkpoint_id: Its number.
        batch_id: The micro-batch that it will complete.
        location: Where it goes.
        restored_checkpoint_id: The checkpoint that the state comes from, or None.
        assigned: What operators go on with, by uid.
        key_types: Spark's types of the columns of their keys, by uid: as stored, and where nothing
            is, as they are found in the batch.
        commit_token: Random; tells its own commit from others.
        started: `time.monotonic` of its beginning, seconds.
    """

    checkpoint_id: int
    batch_id: int
    location: CheckpointStorageLocation
    restored_checkpoint_id: int | None
    assigned: dict[str, AssignedOperator]
    key_types: dict[str, tuple[str, ...]]
    commit_token: str
    started: float


class CheckpointCoordinator:
    """Drives the checkpoints of one run of a query, on the driver.

    With its first batch it claims the job, and takes from storage what the job has; after that it
    goes by its own commits. A driver that had the job before finds that out at its next batch or
    commit, at the latest.

    Args:
        access: The job's storage.
        job_id: The job.
        query_id: Spark's id of the query; the stored checkpoints must be of the same one.
        operators: The query's operators by uid.
        sinks: The query's sinks with a state of their own, by its name.
        num_retained: Number of completed checkpoints that are kept.
        allow_non_restored_state: Whether state of operators that the query no longer has may be
            left behind.
        start: Savepoint whose operators' state the query begins with if it has no checkpoint.
        sweep: Deletes what crashes have left; called in the background once the job is claimed.
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
        sweep: Callable[[], object] | None = None,
    ) -> None:
        self._access = access
        self._job_id = job_id
        self._operators = operators
        self._continuation = Continuation(
            job_id=job_id,
            query_id=query_id,
            operators=operators,
            sinks=sinks,
            allow_non_restored_state=allow_non_restored_state,
        )
        self._is_ours = False  # the last checkpoint: this run has completed it
        self._num_retained = num_retained
        self._start = start
        self._savepoint: CompletedCheckpoint | None = None  # what it begins with
        self._ownership: JobOwnership | None = None
        self._store = CompletedCheckpointStore(num_retained, _CLEANER)
        self._sweep = sweep
        access.initialize_base_locations_for_checkpoint()

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that the job is at; None before the first one, and before `begin`."""
        return self._store.latest

    def begin(
        self, batch_id: int, offsets_of: Callable[[int], str | None] = lambda _: None
    ) -> PendingCheckpoint | None:
        """Begin the checkpoint of a batch.

        Args:
            batch_id: The batch that Spark hands over.
            offsets_of: Gives Spark's offset log entry of a batch, or None if there is none.

        Returns:
            None if the batch is the one that the last checkpoint completed: Spark repeats it
            because it was stopped before it had noted that itself. It has to be skipped.

        Raises:
            BatchGapError: The batch neither follows the last checkpoint nor repeats it, or Spark has
                other rows in the batch of that checkpoint.
            CheckpointConflictError: Another driver has claimed the job.
        """
        started = time.monotonic()
        if self._ownership is None:
            # Not before it is sure that this query can go on: it stops the one that runs the job.
            last = load_latest_checkpoint(self._access)
            if last is not None:
                self._continuation.check(last)
            was_completed(batch_id, last, job_id=self._job_id)
            if last is not None:
                check_same_rows(last, offsets_of)
            elif self._start is not None:
                self._savepoint = load_checkpoint(resolve_pointer(self._start))
                self._continuation.check_start(self._savepoint)
            # For its errors; the state is assigned once the job is ours.
            self._assign(last or self._savepoint)
            self._take_over()
        else:
            self._ownership.check()
        last = self.latest
        if was_completed(batch_id, last, job_id=self._job_id):
            _log.info("batch %d was completed before; it is skipped", batch_id)
            return None
        restored = last or self._savepoint
        # Of the batch, not counted: two drivers on one job meet at the same file then.
        checkpoint_id = batch_id + 1
        return PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            location=self._access.initialize_location_for_checkpoint(checkpoint_id),
            restored_checkpoint_id=restored.checkpoint_id if restored else None,
            assigned=self._assign(restored),
            key_types=self._key_types(restored),
            commit_token=uuid.uuid4().hex,
            started=started,
        )

    def _take_over(self) -> None:
        """Claim the job, and go on from the checkpoints that it has at that moment."""
        ownership = self._access.claim_job()
        completed = list(ownership.completed.values())
        if completed:
            self._continuation.check(completed[-1])
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
        self._ownership = ownership
        self._store = CompletedCheckpointStore(self._num_retained, _CLEANER, completed)
        if self._sweep is not None:
            _CLEANER.run(self._sweep, f"orphaned files of job {self._job_id}")

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
            sink_states: What sinks keep in it, by name.

        Raises:
            CheckpointDeclinedError: The acknowledgements are not one of each subtask.
            CheckpointConflictError: Another driver has committed it, or claimed the job.
            OutcomeUnknownError: The store did not say; nothing may be deleted.
            StorageUnavailableError: It was not committed.
        """
        ownership = self._ownership
        if ownership is None:
            raise InvalidRequestError("no checkpoint was begun")
        operators = {
            uid: operator_state(
                operator,
                acknowledgements[uid],
                max_parallelism=pending.assigned[uid].max_parallelism,
                key_types=pending.key_types.get(uid, ()),
            )
            for uid, operator in self._operators.items()
        }
        metadata = CheckpointMetadata(
            job_id=self._job_id,
            checkpoint_id=pending.checkpoint_id,
            commit_token=pending.commit_token,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=1000 * (time.monotonic() - pending.started),
            writer=writer(),
            operators=operators,
            coordinator_states={SPARK: msgspec.msgpack.encode(progress), **sink_states},
            epoch=ownership.epoch,
        )
        with retry_deadline(_COMMIT_DEADLINE_S):
            completed = self._commit(pending, metadata, ownership)
        self._store.add(completed, lets_go=not is_retained(self._job_id))
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

    def abort(self, pending: PendingCheckpoint) -> bool:
        """Give a checkpoint up and delete what was written for it. Never raises.

        Returns:
            Whether it is sure that it does not exist.
        """
        is_sure = False
        try:
            with retry_deadline(_ABORT_DEADLINE_S):
                if self._exists(pending):
                    return False
                is_sure = True
                _log.info(
                    "checkpoint %d of job %s is given up", pending.checkpoint_id, self._job_id
                )
                pending.location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why it is given up
            _log.warning("could not clean up after a checkpoint", exc_info=True)
        return is_sure

    def _exists(self, pending: PendingCheckpoint) -> bool:
        """Whether it was completed before whatever failed."""
        location = self._access.completed_checkpoints().get(pending.checkpoint_id)
        if location is None:
            return False
        return load_checkpoint(location).metadata.commit_token == pending.commit_token

    def _assign(self, last: CompletedCheckpoint | None) -> dict[str, AssignedOperator]:
        if last is None:
            return {uid: _without_state(operator) for uid, operator in self._operators.items()}
        if self._is_ours:
            # Nothing was restarted. Spread anew, a union state would be stored by each subtask whole.
            stored = last.metadata.operators
            return {uid: _unchanged(stored[uid]) for uid in self._operators}
        return assign(
            last.metadata,
            {uid: operator.settings for uid, operator in self._operators.items()},
            allow_non_restored_state=True,  # it was checked, with Spark's way out
        )

    def _key_types(self, last: CompletedCheckpoint | None) -> dict[str, tuple[str, ...]]:
        stored = last.metadata.operators if last else {}
        return {
            uid: stored[uid].key_types
            for uid, operator in self._operators.items()
            if uid in stored and stored[uid].key_types and stored[uid].key == operator.key
        }


@cache  # not when it is imported: executors may have the package without its metadata
def writer() -> str:
    """The name and version of this program, as checkpoints have it."""
    return f"holdfast {version('holdfast')}"


def _log_completed(completed: CompletedCheckpoint, batch_id: int) -> None:
    metadata = completed.metadata
    subtasks = [one for state in metadata.operators.values() for one in state.subtasks.values()]
    statistics = [one.statistics for one in subtasks if one.statistics is not None]
    _log.info(
        "completed checkpoint %d of job %s (batch %d) in %.0f ms: %d rows in, %d rows out, "
        "%d bytes of state, %d bytes of metadata; slowest subtask %.0f ms to restore, "
        "%.0f ms to process, %.0f ms to store",
        metadata.checkpoint_id,
        metadata.job_id,
        batch_id,
        metadata.duration_ms,
        sum(one.rows_in for one in statistics),
        sum(one.rows_out for one in statistics),
        metadata.state_bytes,
        completed.metadata_bytes,
        max((one.restore_ms for one in statistics), default=0),
        max((one.process_ms for one in statistics), default=0),
        max((one.sync_ms + one.async_ms for one in statistics), default=0),
    )


def _without_state(operator: Operator) -> AssignedOperator:
    subtasks = (SubtaskState(),) * operator.parallelism
    return AssignedOperator(operator.settings.max_parallelism_or_default, subtasks)


def _unchanged(stored: OperatorState) -> AssignedOperator:
    """Each subtask goes on with what it has stored itself."""
    subtasks = (stored.subtasks.get(index, SubtaskState()) for index in range(stored.parallelism))
    return AssignedOperator(stored.max_parallelism, tuple(subtasks))
