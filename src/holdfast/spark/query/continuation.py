"""Decides whether and how a query continues from a checkpoint, and whether a batch is the next. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.backends.assignment import AssignedOperator, assign
from holdfast.errors import BatchGapError, InvalidRequestError
from holdfast.locations.handles import OperatorStateMode
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.operators import CheckpointedSink, Operator, unused_sink_states
from holdfast.spark_progress import SPARK, SparkProgress, plan_of, progress_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The properties of a query that decide which checkpoints it can continue from, with which state.

    Attributes:
        query_id: Spark's id of the query.
        operators: The query's operators by uid.
        sinks: The query's sinks with state, by name.
        allow_non_restored_state: Whether state that has no operator or sink may be dropped.
    """

    query_id: str
    operators: Mapping[str, Operator]
    sinks: Mapping[str, CheckpointedSink] = field(default_factory=dict)
    allow_non_restored_state: bool = False

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
            raise InvalidRequestError(message, pointer)
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
                raise InvalidRequestError(message, pointer)
        self._check_partitioning(metadata, pointer)

    def assign(
        self, restored: CompletedCheckpoint | None, *, is_own: bool
    ) -> dict[str, AssignedOperator]:
        """Return the state from which each subtask is restored, by the operator's uid.

        Args:
            restored: The checkpoint; None to start without state.
            is_own: Whether this run of the query has completed the checkpoint.
        """
        if restored is None:
            return {uid: _without_state(operator) for uid, operator in self.operators.items()}
        if is_own:
            # Nothing was restarted. Redistribution would make each subtask store a whole union state.
            return {
                uid: _keep_assignment(restored.metadata.operators[uid]) for uid in self.operators
            }
        return assign(
            restored.metadata,
            {uid: operator.settings for uid, operator in self.operators.items()},
            allow_non_restored_state=True,  # checked above, with the setting in the message
        )

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
            raise InvalidRequestError(message, pointer)

    def _check_unused_sinks(self, metadata: CheckpointMetadata, pointer: str) -> None:
        sinks = unused_sink_states(metadata.coordinator_states, self.sinks)
        if sinks:
            message = (
                f"checkpoint has states of sinks under {sinks}, which this query doesn't have; they "
                "may refer to output that is not committed yet. Restore the sinks, or, to drop that output, "
                "set spark.holdfast.checkpoint.allow-non-restored-state to true"
            )
            raise InvalidRequestError(message, pointer)


def restored_progress(restored: CompletedCheckpoint | None) -> SparkProgress | None:
    """Return Spark's progress in a checkpoint; None for a savepoint that was written only from tables."""
    if restored is None or SPARK not in restored.metadata.coordinator_states:
        return None
    return progress_of(restored.metadata)


def was_completed(batch_id: int, last: CompletedCheckpoint | None, *, job_id: str) -> bool:
    """Return whether the last checkpoint completed the batch; if not, the batch is the next.

    Raises:
        BatchGapError: The batch is neither the last nor the next.
    """
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
    """Refuse to continue if Spark has planned the checkpoint's batch again since.

    Raises:
        BatchGapError: The offsets in Spark's log differ from those in the checkpoint.
    """
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
        raise InvalidRequestError(message, pointer)
    if not operator.key or operator.parallelism == stored.parallelism:
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
            f"operator {operator.uid!r} partitions rows by key, but its {', '.join(unkeyed)} would not be "
            f"partitioned by key: with parallelism {operator.parallelism} instead of {stored.parallelism} "
            f"it would be in other subtasks than its keys. Use parallelism {stored.parallelism}, and store "
            "it as union list state or raw keyed state, from which a subtask takes the part in "
            "context.key_groups"
        )
        raise InvalidRequestError(message, pointer)


def _describe_partitioning(key: tuple[str, ...], key_hash: str) -> str:
    return f"by {', '.join(key)} ({key_hash})" if key else "evenly"


def _gap_error(problem: str, location: str) -> BatchGapError:
    message = (
        f"state and stream are out of sync: {problem} (batch ids). Either Spark's checkpointLocation or "
        "the checkpoint directory was changed, moved or deleted without the other (restore the missing "
        "one, or start again with a new checkpointLocation), or another driver also runs this query"
    )
    return BatchGapError(message, location)


def _without_state(operator: Operator) -> AssignedOperator:
    subtasks = (StoredSubtask(),) * operator.parallelism
    return AssignedOperator(operator.settings.max_parallelism_or_default, subtasks)


def _keep_assignment(stored: StoredOperator) -> AssignedOperator:
    """Assign each subtask the state that it has stored itself."""
    subtasks = (stored.subtasks.get(index, StoredSubtask()) for index in range(stored.parallelism))
    return AssignedOperator(stored.max_parallelism, tuple(subtasks))
