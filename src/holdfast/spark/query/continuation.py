"""The start of a run: checks the checkpoint or savepoint that the query continues from, and claims the job.

A driver that claims a job stops the driver that ran it before. So everything that can be checked is checked before.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.backends.assignment import AssignedOperator, OperatorSettings, assign
from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.common import Clock
from holdfast.errors import BatchGapError, InvalidRequestError
from holdfast.locations.coordination import (
    ClaimedCheckpoints,
    check_claimable,
    check_not_claimed,
    check_not_revoked,
    claim_checkpoint,
    load_latest_checkpoint,
    withdraw_claim,
)
from holdfast.locations.handles import OperatorStateMode
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobDirectory,
    JobOwnership,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark.operators import CheckpointedSink, Operator, unused_sink_states
from holdfast.spark_progress import SPARK, SparkProgress, all_streams, plan_of, progress_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The properties of a query that decide which checkpoints it can continue from, with which state. No I/O.

    Attributes:
        query_id: Spark's id of the query.
        operators: The query's operators by uid.
        sinks: The query's sinks with state, by name.
        allow_non_restored_state: Whether state that has no operator or sink may be dropped.
        default_parallelism: Returns the number of subtasks of a new operator that was given none.
    """

    query_id: str
    operators: Mapping[str, Operator]
    sinks: Mapping[str, CheckpointedSink] = field(default_factory=dict)
    allow_non_restored_state: bool = False
    default_parallelism: Callable[[], int] = lambda: 1

    def check(self, last: CompletedCheckpoint) -> None:
        """Refuse a checkpoint of another query, or with incompatible operators. Raises `InvalidRequestError`.

        It can't be a checkpoint of another job, which `load_checkpoint` refuses.
        """
        metadata, pointer = last.metadata, last.location.external_pointer
        owner = progress_of(metadata).query_id
        if owner != self.query_id:
            message = (
                f"checkpoint belongs to another streaming query, {owner}; this is {self.query_id}. Set "
                "another job id or checkpoint directory for this query, or restore its old "
                "checkpointLocation"
            )
            raise InvalidRequestError(message, pointer, kind="other-query")
        if not self.allow_non_restored_state:
            self._check_unused_operators(metadata, pointer)
            self._check_unused_sinks(metadata, pointer)
        self._check_partitioning(metadata, pointer)

    def check_start(self, savepoint: CompletedCheckpoint) -> None:
        """Refuse a savepoint to start from that has no state, or incompatible operators.

        The savepoint may be of another query, which has to commit the output of its sinks itself. Raises
        `InvalidRequestError`.
        """
        metadata, pointer = savepoint.metadata, savepoint.location.external_pointer
        if not self.allow_non_restored_state:
            self._check_unused_operators(metadata, pointer)
            if not any(operator.streams() for operator in metadata.operators.values()):
                message = (
                    "no operator has state in the savepoint to start from; set another one, or, to "
                    "start without state, remove spark.holdfast.savepoint.path or set "
                    "spark.holdfast.checkpoint.allow-non-restored-state to true"
                )
                raise InvalidRequestError(message, pointer, kind="setting")
        self._check_partitioning(metadata, pointer)

    def assign(
        self, restored: CompletedCheckpoint | None, *, is_own: bool
    ) -> dict[str, AssignedOperator]:
        """Return the state from which each subtask is restored, by the operator's uid; without a checkpoint none.

        `is_own` is whether this run of the query has completed the checkpoint.
        """
        if restored is not None and is_own:
            # Nothing was restarted. Redistribution would make each subtask store a whole union state.
            return {
                uid: _keep_assignment(restored.metadata.operators[uid]) for uid in self.operators
            }
        stored = restored.metadata.operators if restored else {}
        settings = {
            uid: self._settings(operator, stored.get(uid))
            for uid, operator in self.operators.items()
        }
        if restored is None:
            return {uid: AssignedOperator.without_state(each) for uid, each in settings.items()}
        return assign(
            restored.metadata,
            settings,
            allow_non_restored_state=True,  # checked above, with the setting in the message
        )

    def _settings(self, operator: Operator, stored: StoredOperator | None) -> OperatorSettings:
        """Return the operator's settings, with a number of subtasks if it was given none."""
        parallelism = operator.parallelism
        if parallelism is None:
            parallelism = min(
                stored.parallelism if stored else self.default_parallelism(),
                operator.max_parallelism or MAX_PARALLELISM,
            )
        return OperatorSettings(parallelism, operator.max_parallelism)

    def key_types(self, restored: CompletedCheckpoint | None) -> dict[str, tuple[str, ...]]:
        """Return Spark's types of the columns of keys in a checkpoint, by uid, of operators with the same key."""
        stored = restored.metadata.operators if restored else {}
        return {
            uid: stored[uid].key_types
            for uid, operator in self.operators.items()
            if uid in stored and stored[uid].key_types and stored[uid].key == operator.key
        }

    def _check_partitioning(self, metadata: CheckpointMetadata, pointer: str) -> None:
        for uid, operator in self.operators.items():
            if uid in metadata.operators:
                _check_same_partitioning(operator, metadata.operators[uid], pointer)

    def _check_unused_operators(self, metadata: CheckpointMetadata, pointer: str) -> None:
        operators = sorted(
            uid
            for uid in metadata.operators.keys() - self.operators.keys()
            if metadata.operators[uid].streams()
        )
        if operators:
            message = (
                f"checkpoint has operators {operators}, which this query doesn't have; it has "
                f"{sorted(self.operators)}. An operator's uid must not change. To drop the operators and "
                "their state, set spark.holdfast.checkpoint.allow-non-restored-state to true; if another "
                "call of stateful(...) runs them in the same foreachBatch, combine them with "
                "stateful_query(...)"
            )
            raise InvalidRequestError(message, pointer, kind="removed-operator")

    def _check_unused_sinks(self, metadata: CheckpointMetadata, pointer: str) -> None:
        sinks = unused_sink_states(metadata.coordinator_states, self.sinks)
        if sinks:
            message = (
                f"checkpoint has states of sinks under {sinks}, which this query doesn't have; they "
                "may refer to output that is not committed yet. Restore the sinks, or, to drop that output, "
                "set spark.holdfast.checkpoint.allow-non-restored-state to true"
            )
            raise InvalidRequestError(message, pointer, kind="removed-operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job in storage, and the savepoint that it starts from.

    Attributes:
        directory: The job's directory; None if it has no directory.
        savepoint: Pointer of a savepoint. If the job has no checkpoint, its operators start with that state.
        claims_savepoint: Whether the savepoint becomes the property of the job, which then refers to its files, and
            deletes it when it needs no file of it. The job needs a directory for that.
    """

    job_id: str
    access: CheckpointStorageAccess
    directory: JobDirectory | None = None
    savepoint: str | None = None
    claims_savepoint: bool = False

    def take_over(
        self,
        continuation: Continuation,
        batch_id: int,
        offsets_of: Callable[[int], str | None],
        clock: Clock,
    ) -> "OwnedJob":
        """Claim the job for a run that starts with a batch. Errors are those of `CheckpointCoordinator.begin`."""
        savepoint = self._check(continuation, batch_id, offsets_of)
        ownership = self.access.claim_job()
        completed = list(ownership.completed.values())
        claims = ClaimedCheckpoints(self.directory.uri if self.directory is not None else "")
        if completed:
            last = completed[-1]
            continuation.check(last)
            check_not_claimed(checkpoint.location for checkpoint in completed)
            check_not_revoked(last)
            if self.directory is not None:
                claims = ClaimedCheckpoints.restore(self.directory.uri, last, all_streams)
            _log.info(
                "job %s resumes from checkpoint %d at %s",
                self.job_id,
                last.checkpoint_id,
                last.location.external_pointer,
            )
            if self.savepoint is not None:
                _log.info("the job has that checkpoint, and ignores savepoint %s", self.savepoint)
        elif savepoint is not None:
            _log.info(
                "job %s starts with the state of its operators in %s",
                self.job_id,
                savepoint.location.external_pointer,
            )
            claims = self._claim_savepoint(savepoint, claims, ownership, clock)
        return OwnedJob(ownership, completed, savepoint, claims)

    def _check(
        self, continuation: Continuation, batch_id: int, offsets_of: Callable[[int], str | None]
    ) -> CompletedCheckpoint | None:
        """Check the last checkpoint; without one load and check the savepoint, and return it."""
        savepoint = None
        last = load_latest_checkpoint(self.access)
        if last is not None:
            continuation.check(last)
            check_not_claimed([last.location])
        was_completed(batch_id, last, job_id=self.job_id)
        if last is not None:
            check_same_rows(last, offsets_of)
        elif self.savepoint is not None:
            savepoint = load_checkpoint(resolve_pointer(self.savepoint))
            continuation.check_start(savepoint)
            if self.claims_savepoint and self.directory is not None:
                check_claimable(savepoint, all_streams(savepoint), self.directory)
        continuation.assign(last or savepoint, is_own=False)  # for its errors
        return savepoint

    def _claim_savepoint(
        self,
        savepoint: CompletedCheckpoint,
        claims: ClaimedCheckpoints,
        ownership: JobOwnership,
        clock: Clock,
    ) -> ClaimedCheckpoints:
        """Claim the savepoint; or release it, if an earlier start claimed it."""
        if self.directory is None:
            return claims
        if not self.claims_savepoint:
            withdraw_claim(savepoint.location.external_pointer, self.directory.uri)
            return claims
        streams = all_streams(savepoint)
        claim = claim_checkpoint(savepoint, streams, self.directory, ownership, clock=clock)
        return ClaimedCheckpoints(self.directory.uri, [claim], all_streams)


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """A job that this run has claimed.

    Attributes:
        completed: The job's completed checkpoints at that time, the newest last.
        savepoint: The savepoint that the job starts from, if it has no checkpoint.
        claims: The checkpoints of other jobs that the job has claimed.
    """

    ownership: JobOwnership
    completed: list[CompletedCheckpoint]
    savepoint: CompletedCheckpoint | None
    claims: ClaimedCheckpoints


def restored_progress(restored: CompletedCheckpoint | None) -> SparkProgress | None:
    """Return Spark's progress in a checkpoint; None for a savepoint that was written only from tables."""
    if restored is None or SPARK not in restored.metadata.coordinator_states:
        return None
    return progress_of(restored.metadata)


def was_completed(batch_id: int, last: CompletedCheckpoint | None, *, job_id: str) -> bool:
    """Return whether the last checkpoint completed the batch; if not, the batch is the next, or `BatchGapError`."""
    if last is None:
        if batch_id != 0:
            raise _gap_error(
                f"there is no completed checkpoint, but Spark is at {batch_id}", job_id
            )
        return False
    last_id = progress_of(last.metadata).batch_id
    if batch_id not in (last_id, last_id + 1):
        problem = f"the last checkpoint completed {last_id}, but Spark is at {batch_id}"
        raise _gap_error(problem, last.location.external_pointer)
    return batch_id == last_id


def check_same_rows(last: CompletedCheckpoint, offsets_of: Callable[[int], str | None]) -> None:
    """Refuse to continue if Spark has planned the checkpoint's batch again since. Raises `BatchGapError`."""
    progress = progress_of(last.metadata)
    offsets = offsets_of(progress.batch_id)
    if offsets is not None and plan_of(offsets) != plan_of(progress.offsets):
        problem = (
            f"Spark has planned its batch {progress.batch_id} again since the last checkpoint "
            f"completed it: it was {plan_of(progress.offsets)}, and is {plan_of(offsets)}"
        )
        raise _gap_error(problem, last.location.external_pointer)


def _check_same_partitioning(operator: Operator, stored: StoredOperator, pointer: str) -> None:
    """Refuse state that would be in other subtasks than its rows."""
    if not stored.streams():
        return
    if (operator.key, operator.key_hash) != (stored.key, stored.key_hash):
        now = _describe_partitioning(operator.key, operator.key_hash)
        before = _describe_partitioning(stored.key, stored.key_hash)
        message = (
            f"operator {operator.uid!r} partitions rows {now}, but its state was stored with rows "
            f"partitioned {before}; use that partitioning, or set a new uid to start without state. If a "
            "column of the key was renamed, give it the old name before the operator"
        )
        raise InvalidRequestError(message, pointer, kind="key-changed")
    if not operator.key or operator.parallelism in {None, stored.parallelism}:
        return
    unkeyed = sorted(
        {
            f"list state {name!r}"
            for subtask in stored.subtasks.values()
            for handle in subtask.managed_operator
            for name, partitions in handle.states.items()
            if partitions.mode is OperatorStateMode.SPLIT_DISTRIBUTE and partitions.count
        }
    )
    raw = [handle for subtask in stored.subtasks.values() for handle in subtask.raw_operator]
    if any(handle.partitions for handle in raw):
        unkeyed.append("raw operator state")
    if unkeyed:
        message = (
            f"operator {operator.uid!r} partitions rows by key, but its {', '.join(unkeyed)} is not keyed, so it "
            f"can't follow the keys from parallelism {stored.parallelism} to {operator.parallelism}; restart with "
            f"parallelism={stored.parallelism}. To rescale, first move it to keyed state (context.keyed_state_store)"
        )
        raise InvalidRequestError(message, pointer, kind="parallelism")


def _describe_partitioning(key: tuple[str, ...], key_hash: str) -> str:
    return f"by {', '.join(key)} ({key_hash})" if key else "evenly"


def _gap_error(problem: str, location: str) -> BatchGapError:
    message = (
        f"state and stream are out of sync: {problem} (batch ids). Nothing was written. Either Spark's "
        "checkpointLocation or the checkpoint directory was changed, moved or deleted without the other, or "
        "another driver also runs this query. Restore the missing directory or stop the other driver; "
        "otherwise `holdfast rollback CHECKPOINT_LOCATION` lists the batches that the query can go back to"
    )
    return BatchGapError(message, location)


def _keep_assignment(stored: StoredOperator) -> AssignedOperator:
    """Assign each subtask the state that it has stored itself."""
    subtasks = (stored.subtasks.get(index, StoredSubtask()) for index in range(stored.parallelism))
    return AssignedOperator(stored.max_parallelism, tuple(subtasks))
