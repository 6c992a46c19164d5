"""The checkpoint coordinator: decides what to do with a batch, commits it, cleans up behind it."""

import logging
import time
import uuid
from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from holdfast.backends import default_max_parallelism
from holdfast.errors import BatchGapError, InvalidRequestError
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointsCleaner,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    OperatorStateHandle,
    complete_checkpoint,
    load_checkpoint,
    sweep,
)
from holdfast.spark._acknowledgements import Acknowledgement, operator_state

_log = logging.getLogger(__name__)

# One for all queries of the process: deleting is never urgent.
_CLEANER = CheckpointsCleaner()

_WRITER = f"holdfast {version('holdfast')}"
_SPARK = "spark"

Assigned = tuple[tuple[OperatorStateHandle, ...], ...]
"""Handles to restore from, by subtask."""


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
        assigned: Handles to restore from, by subtask.
        started: `time.monotonic` of its beginning, seconds.
    """

    checkpoint_id: int
    batch_id: int
    location: CheckpointStorageLocation
    restored_checkpoint_id: int | None
    assigned: Assigned
    started: float


class CheckpointCoordinator:
    """Drives the checkpoints of one run of a query, on the driver.

    What it knows comes from storage when it begins, and from its own commits after that. When it
    begins it claims the job; a driver that had it before finds that out at its next batch or
    commit, at the latest.

    Args:
        access: The job's storage.
        job_id: The job.
        query_id: Spark's id of the query; the stored checkpoints must be of the same one.
        uid: The operator's name.
        parallelism: Number of the operator's subtasks.
        num_retained: Number of completed checkpoints that are kept.
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
    ) -> None:
        self._access = access
        self._job_id = job_id
        self._query_id = query_id
        self._uid = uid
        self._parallelism = parallelism
        access.initialize_base_locations_for_checkpoint()
        completed = [load_checkpoint(one) for one in access.completed_checkpoints().values()]
        if completed:
            self._check_belongs(completed[-1])
        # Not before that: a query that has no business here must not stop the one that has.
        self._ownership = access.claim_job()
        self._store = CompletedCheckpointStore(
            num_retained,
            _CLEANER,
            [load_checkpoint(one) for one in access.completed_checkpoints().values()],
        )
        if self._last is not None:
            _log.info(
                "job %s goes on from checkpoint %d at %s",
                job_id,
                self._last.checkpoint_id,
                self._last.location.external_pointer,
            )

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
        self._ownership.check()
        last = self._last
        if last is None:
            if batch_id != 0:
                raise self._gap(f"there is no completed checkpoint, but Spark is at {batch_id}")
        else:
            done = progress_of(last.metadata).batch_id
            if batch_id == done:
                _log.info("batch %d was completed before; it is skipped", batch_id)
                return None
            if batch_id != done + 1:
                raise self._gap(f"the last checkpoint completed {done}, but Spark is at {batch_id}")
        # Of the batch, not counted: two drivers on one job meet at the same file then.
        checkpoint_id = batch_id + 1
        return PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            location=self._access.initialize_location_for_checkpoint(checkpoint_id),
            restored_checkpoint_id=last.checkpoint_id if last else None,
            assigned=self._assign(last),
            started=started,
        )

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
        operator = operator_state(
            self._uid,
            acknowledgements,
            parallelism=self._parallelism,
            max_parallelism=default_max_parallelism(self._parallelism),
        )
        metadata = CheckpointMetadata(
            job_id=self._job_id,
            checkpoint_id=pending.checkpoint_id,
            commit_token=uuid.uuid4().hex,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=1000 * (time.monotonic() - pending.started),
            writer=_WRITER,
            operators={self._uid: operator},
            coordinator_states={_SPARK: msgspec.msgpack.encode(progress)},
            epoch=self._ownership.epoch,
        )
        completed = complete_checkpoint(pending.location, metadata, self._ownership)
        self._store.add(completed)
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

    def abort(self, pending: PendingCheckpoint) -> None:
        """Give a checkpoint up and delete what was written for it. Never raises."""
        if self._last and self._last.checkpoint_id == pending.checkpoint_id:
            return  # it was completed before whatever failed
        _log.warning("checkpoint %d of job %s is given up", pending.checkpoint_id, self._job_id)
        try:
            pending.location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why it is given up
            _log.warning("could not clean up after it", exc_info=True)

    def _assign(self, last: CompletedCheckpoint | None) -> Assigned:
        if last is None:
            return ((),) * self._parallelism
        subtasks = last.metadata.operators[self._uid].subtasks
        return tuple(
            subtasks[index].managed_operator if index in subtasks else ()
            for index in range(self._parallelism)
        )

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

    def _gap(self, what: str) -> BatchGapError:
        message = (
            f"state and stream don't fit: {what} (batch ids). Either Spark's checkpointLocation or "
            "the checkpoint directory was changed, moved or deleted without the other (bring back "
            "the one that is missing, or start over with a new checkpointLocation), or another "
            "driver runs this query too"
        )
        last = self._last
        return BatchGapError(message, last.location.external_pointer if last else self._job_id)


def progress_of(metadata: CheckpointMetadata) -> SparkProgress:
    """Spark's side of a checkpoint.

    Raises:
        InvalidRequestError: Spark has not written it.
    """
    encoded = metadata.coordinator_states.get(_SPARK)
    if encoded is None:
        message = f"checkpoint {metadata.checkpoint_id} was not taken by a Spark query"
        raise InvalidRequestError(message)
    return msgspec.msgpack.decode(encoded, type=SparkProgress)


def sweep_in_background(directory: str, job_id: str, *, grace_s: float) -> None:
    """Delete what crashes have left in a job's directory, off the path of its batches."""
    _CLEANER.run(
        lambda: sweep(directory, job_id, grace_s=grace_s), f"orphaned files of job {job_id}"
    )
