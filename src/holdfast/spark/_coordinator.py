"""The checkpoint coordinator: decides what to do with a batch, commits it, cleans up behind it."""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from holdfast.backends import OperatorSettings, assign, default_max_parallelism
from holdfast.errors import (
    BatchGapError,
    CheckpointConflictError,
    InvalidRequestError,
)
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointsCleaner,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    JobOwnership,
    SubtaskState,
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    retry_deadline,
)
from holdfast.spark._acknowledgements import Acknowledgement, operator_state
from holdfast.spark._retention import is_retained

_log = logging.getLogger(__name__)

# One for all queries of the process: deleting is never urgent.
_CLEANER = CheckpointsCleaner()

_COMMIT_DEADLINE_S = 60.0
_ABORT_DEADLINE_S = 10.0

WRITER = f"holdfast {version('holdfast')}"
SPARK = "spark"

Assigned = tuple[SubtaskState, ...]
"""What to restore from, by subtask."""


class SparkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's side of a checkpoint, kept in `_metadata` under `spark`.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of this run of it.
        batch_id: The micro-batch that the checkpoint completes.
        offsets: Spark's offset log entry of that batch, as it stands in its file.
        checkpoint_location: Spark's own checkpoint directory.
        spark_version: Version of Spark that ran the batch.
    """

    query_id: str
    run_id: str
    batch_id: int
    offsets: str
    checkpoint_location: str
    spark_version: str


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that was begun.

    Attributes:
        checkpoint_id: Its number.
        batch_id: The micro-batch that it will complete.
        location: Where it goes.
        restored_checkpoint_id: The checkpoint that the state comes from, or None.
        assigned: What to restore from, by subtask.
        commit_token: Random; tells its own commit from others.
        started: `time.monotonic` of its beginning, seconds.
    """

    checkpoint_id: int
    batch_id: int
    location: CheckpointStorageLocation
    restored_checkpoint_id: int | None
    assigned: Assigned
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
        uid: The operator's name.
        parallelism: Number of the operator's subtasks.
        num_retained: Number of completed checkpoints that are kept.
        sweep: Deletes what crashes have left; called in the background once the job is claimed.
    """

    def __init__(
        self,
        access: CheckpointStorageAccess,
        *,
        job_id: str,
        query_id: str,
        uid: str,
        parallelism: int,
        num_retained: int,
        sweep: Callable[[], object] | None = None,
    ) -> None:
        self._access = access
        self._job_id = job_id
        self._query_id = query_id
        self._uid = uid
        self._parallelism = parallelism
        self._is_ours = False  # the last checkpoint: this run has completed it
        self._num_retained = num_retained
        self._ownership: JobOwnership | None = None
        self._store = CompletedCheckpointStore(num_retained, _CLEANER)
        self._sweep = sweep
        access.initialize_base_locations_for_checkpoint()

    @property
    def _last(self) -> CompletedCheckpoint | None:
        return self._store.latest

    def begin(self, batch_id: int) -> PendingCheckpoint | None:
        """Begin the checkpoint of a batch.

        Returns:
            None if the batch is the one that the last checkpoint completed: Spark repeats it
            because it was stopped before it had noted that itself. It has to be skipped.

        Raises:
            BatchGapError: The batch neither follows the last checkpoint nor repeats it.
            CheckpointConflictError: Another driver has claimed the job.
        """
        started = time.monotonic()
        if self._ownership is None:
            # Not before it is sure that this query can go on: it stops the one that runs the job.
            last = latest_checkpoint(self._access)
            if last is not None:
                self._check_belongs(last)
            self._skips(batch_id, last)
            self._take_over()
        else:
            self._ownership.check()
        last = self._last
        if self._skips(batch_id, last):
            _log.info("batch %d was completed before; it is skipped", batch_id)
            return None
        # Of the batch, not counted: two drivers on one job meet at the same file then.
        checkpoint_id = batch_id + 1
        return PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            location=self._access.initialize_location_for_checkpoint(checkpoint_id),
            restored_checkpoint_id=last.checkpoint_id if last else None,
            assigned=self._assign(last),
            commit_token=uuid.uuid4().hex,
            started=started,
        )

    def _take_over(self) -> None:
        """Claim the job, and go on from the checkpoints that it has at that moment."""
        ownership = self._access.claim_job()
        completed = list(ownership.completed.values())
        if completed:
            self._check_belongs(completed[-1])
            _log.info(
                "job %s goes on from checkpoint %d at %s",
                self._job_id,
                completed[-1].checkpoint_id,
                completed[-1].location.external_pointer,
            )
        self._ownership = ownership
        self._store = CompletedCheckpointStore(self._num_retained, _CLEANER, completed)
        if self._sweep is not None:
            _CLEANER.run(self._sweep, f"orphaned files of job {self._job_id}")

    def _skips(self, batch_id: int, last: CompletedCheckpoint | None) -> bool:
        """Whether the last checkpoint completed the batch; a `BatchGapError` if it is not next."""
        if last is None:
            if batch_id != 0:
                message = f"there is no completed checkpoint, but Spark is at {batch_id}"
                raise self._gap(message, self._job_id)
            return False
        done = progress_of(last.metadata).batch_id
        if batch_id not in (done, done + 1):
            message = f"the last checkpoint completed {done}, but Spark is at {batch_id}"
            raise self._gap(message, last.location.external_pointer)
        return batch_id == done

    def complete(
        self,
        pending: PendingCheckpoint,
        acknowledgements: list[Acknowledgement],
        progress: SparkProgress,
    ) -> CompletedCheckpoint:
        """Commit: publish the metadata, then let the oldest checkpoints go.

        Raises:
            CheckpointDeclinedError: The acknowledgements are not one of each subtask.
            CheckpointConflictError: Another driver has committed it, or claimed the job.
            OutcomeUnknownError: The store did not say; nothing may be deleted.
            StorageUnavailableError: It was not committed.
        """
        ownership = self._ownership
        if ownership is None:
            raise InvalidRequestError("no checkpoint was begun")
        operator = operator_state(
            self._uid,
            acknowledgements,
            parallelism=self._parallelism,
            max_parallelism=default_max_parallelism(self._parallelism),
        )
        metadata = CheckpointMetadata(
            job_id=self._job_id,
            checkpoint_id=pending.checkpoint_id,
            commit_token=pending.commit_token,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=1000 * (time.monotonic() - pending.started),
            writer=WRITER,
            operators={self._uid: operator},
            coordinator_states={SPARK: msgspec.msgpack.encode(progress)},
            epoch=ownership.epoch,
        )
        with retry_deadline(_COMMIT_DEADLINE_S):
            completed = self._commit(pending, metadata, ownership)
        self._store.add(completed, lets_go=not is_retained(self._job_id))
        self._is_ours = True
        _log.info(
            "completed checkpoint %d of job %s (batch %d) in %.0f ms: %d bytes of state, "
            "%d bytes of metadata",
            metadata.checkpoint_id,
            self._job_id,
            pending.batch_id,
            metadata.duration_ms,
            metadata.state_bytes,
            completed.metadata_bytes,
        )
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
            raise CheckpointConflictError(message, error.location) from error

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
                _log.warning(
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

    def _assign(self, last: CompletedCheckpoint | None) -> Assigned:
        if last is None:
            return (SubtaskState(),) * self._parallelism
        if self._is_ours:
            # Nothing was restarted. Spread anew, a union state would be stored by each subtask whole.
            subtasks = last.metadata.operators[self._uid].subtasks
            return tuple(subtasks.get(index, SubtaskState()) for index in range(self._parallelism))
        settings = OperatorSettings(self._parallelism)
        return assign(last.metadata, {self._uid: settings})[self._uid].subtasks

    def _check_belongs(self, last: CompletedCheckpoint) -> None:
        """Refuse a checkpoint of another job, query, operator or parallelism."""
        metadata, pointer = last.metadata, last.location.external_pointer
        if metadata.job_id != self._job_id:
            message = f"checkpoint belongs to job {metadata.job_id!r}, this is {self._job_id!r}"
            raise InvalidRequestError(message, pointer)
        owner = progress_of(metadata).query_id
        if owner != self._query_id:
            message = (
                f"checkpoint belongs to another streaming query, {owner}; this is "
                f"{self._query_id}. Give this query a job id or a checkpoint directory of its own, "
                "or its old checkpointLocation back"
            )
            raise InvalidRequestError(message, pointer)
        operator = metadata.operators.get(self._uid)
        if operator is None:
            message = (
                f"checkpoint has no state of operator {self._uid!r}, but of "
                f"{', '.join(map(repr, sorted(metadata.operators)))}. An operator's uid must not "
                "change, and a query can have one operator in this version"
            )
            raise InvalidRequestError(message, pointer)
        if operator.parallelism != self._parallelism:
            message = (
                f"checkpoint has operator {self._uid!r} with parallelism {operator.parallelism}; "
                f"this version can't change it to {self._parallelism}"
            )
            raise InvalidRequestError(message, pointer)

    @staticmethod
    def _gap(what: str, where: str) -> BatchGapError:
        message = (
            f"state and stream don't fit: {what} (batch ids). Either Spark's checkpointLocation or "
            "the checkpoint directory was changed, moved or deleted without the other (bring back "
            "the one that is missing, or start over with a new checkpointLocation), or another "
            "driver runs this query too"
        )
        return BatchGapError(message, where)


def progress_of(metadata: CheckpointMetadata) -> SparkProgress:
    """Spark's side of a checkpoint.

    Raises:
        InvalidRequestError: Spark has not written it.
    """
    encoded = metadata.coordinator_states.get(SPARK)
    if encoded is None:
        message = f"checkpoint {metadata.checkpoint_id} was not taken by a Spark query"
        raise InvalidRequestError(message)
    return msgspec.msgpack.decode(encoded, type=SparkProgress)
