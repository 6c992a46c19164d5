"""Whether a query may go on from a checkpoint, and whether a batch is the next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.errors import BatchGapError, InvalidRequestError
from holdfast.locations.handles import OperatorStateMode
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.operators import CheckpointedSink, Operator, sinks_left_behind
from holdfast.spark_progress import plan_of, progress_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The properties of a query that decide which checkpoints it may go on from.

    Attributes:
        query_id: Spark's id of the query.
        operators: The query's operators by uid.
        sinks: The query's sinks with a state of their own, by name.
        allow_non_restored_state: Whether state that nothing takes may be left behind.
    """

    query_id: str
    operators: Mapping[str, Operator]
    sinks: Mapping[str, CheckpointedSink]
    allow_non_restored_state: bool

    def check(self, last: CompletedCheckpoint) -> None:
        """Refuse a checkpoint of another query, or with operators unlike the query's.

        A checkpoint of another job can't have been read: `load_checkpoint` refuses it.

        Raises:
            InvalidRequestError: It is such a checkpoint.
        """
        metadata, pointer = last.metadata, last.location.external_pointer
        owner = progress_of(metadata).query_id
        if owner != self.query_id:
            message = (
                f"checkpoint belongs to another streaming query, {owner}; this is "
                f"{self.query_id}. Give this query a job id or a checkpoint directory of its own, "
                "or its old checkpointLocation back"
            )
            raise InvalidRequestError(message, pointer)
        if not self.allow_non_restored_state:
            self._check_operators_left_behind(metadata, pointer)
            self._check_sinks_left_behind(metadata, pointer)
        self._check_dealt_alike(metadata, pointer)

    def check_start(self, savepoint: CompletedCheckpoint) -> None:
        """Refuse a savepoint to begin with that has no state, or operators unlike the query's.

        The savepoint may be of another query; output that sinks of that query have still to commit is left to it.

        Raises:
            InvalidRequestError: It is such a savepoint.
        """
        metadata, pointer = savepoint.metadata, savepoint.location.external_pointer
        if not self.allow_non_restored_state:
            self._check_operators_left_behind(metadata, pointer)
            if not any(operator.streams() for operator in metadata.operators.values()):
                message = (
                    "no operator has state in the savepoint to begin with; name another one, or, to "
                    "begin without state, leave spark.holdfast.savepoint.path out or set "
                    "spark.holdfast.checkpoint.allow-non-restored-state to true"
                )
                raise InvalidRequestError(message, pointer)
        self._check_dealt_alike(metadata, pointer)

    def _check_dealt_alike(self, metadata: CheckpointMetadata, pointer: str) -> None:
        for uid, operator in self.operators.items():
            if uid in metadata.operators:
                _check_dealt_alike(operator, metadata.operators[uid], pointer)

    def _check_operators_left_behind(self, metadata: CheckpointMetadata, pointer: str) -> None:
        operators = sorted(
            uid
            for uid in metadata.operators.keys() - self.operators.keys()
            if metadata.operators[uid].streams()
        )
        if operators:
            message = (
                f"checkpoint has operators {operators}, which this query doesn't have; it has "
                f"{sorted(self.operators)}. An operator's uid must not change. If the operators "
                "are to go, with their state, set "
                "spark.holdfast.checkpoint.allow-non-restored-state to true; if another call of "
                "stateful(...) runs them in the same foreachBatch, bring them together by "
                "stateful_query(...)"
            )
            raise InvalidRequestError(message, pointer)

    def _check_sinks_left_behind(self, metadata: CheckpointMetadata, pointer: str) -> None:
        sinks = sinks_left_behind(metadata.coordinator_states, self.sinks)
        if sinks:
            message = (
                f"checkpoint has states of sinks under {sinks}, which this query doesn't have; they "
                "may name output that is still to be committed. Bring the sinks back, or, if that "
                "output is to be left, set "
                "spark.holdfast.checkpoint.allow-non-restored-state to true"
            )
            raise InvalidRequestError(message, pointer)


def was_completed(batch_id: int, last: CompletedCheckpoint | None, *, job_id: str) -> bool:
    """Whether the last checkpoint completed the batch; if not, the batch is the next.

    Raises:
        BatchGapError: The batch is neither the last nor the next.
    """
    if last is None:
        if batch_id != 0:
            raise _gap(f"there is no completed checkpoint, but Spark is at {batch_id}", job_id)
        return False
    done = progress_of(last.metadata).batch_id
    if batch_id not in (done, done + 1):
        message = f"the last checkpoint completed {done}, but Spark is at {batch_id}"
        raise _gap(message, last.location.external_pointer)
    return batch_id == done


def check_same_rows(last: CompletedCheckpoint, offsets_of: Callable[[int], str | None]) -> None:
    """Refuse to go on if Spark has planned the checkpoint's batch anew since.

    Raises:
        BatchGapError: Spark has other offsets in its log than the checkpoint.
    """
    progress = progress_of(last.metadata)
    offsets = offsets_of(progress.batch_id)
    if offsets is not None and plan_of(offsets) != plan_of(progress.offsets):
        message = (
            f"Spark has planned its batch {progress.batch_id} anew since the last checkpoint "
            f"completed it: it was {plan_of(progress.offsets)}, and is {plan_of(offsets)}"
        )
        raise _gap(message, last.location.external_pointer)


def _check_dealt_alike(operator: Operator, stored: StoredOperator, pointer: str) -> None:
    """Refuse state that would not be where its rows come to."""
    if not stored.streams():
        return
    if (operator.key, operator.key_hash) != (stored.key, stored.key_hash):
        message = (
            f"operator {operator.uid!r} deals rows {_how_dealt(operator.key, operator.key_hash)}, "
            f"but its state was stored when it dealt them {_how_dealt(stored.key, stored.key_hash)}; "
            "go on with that, or give it a new uid to begin without state. A column of the key that "
            "only has a new name must be given the old one before the operator"
        )
        raise InvalidRequestError(message, pointer)
    if not operator.key or operator.parallelism in {None, stored.parallelism}:
        return
    dealt_anywhere = sorted(
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
        dealt_anywhere.append("raw operator state")
    if dealt_anywhere:
        message = (
            f"operator {operator.uid!r} deals rows by key, and its {', '.join(dealt_anywhere)} would "
            f"not be spread by key: with parallelism {operator.parallelism} instead of "
            f"{stored.parallelism} it would be away from its keys. Go on with "
            f"{stored.parallelism}, and keep it as union list state or raw keyed state, of which "
            "a subtask picks what is in context.key_groups"
        )
        raise InvalidRequestError(message, pointer)


def _how_dealt(key: tuple[str, ...], key_hash: str) -> str:
    return f"by {', '.join(key)} ({key_hash})" if key else "evenly"


def _gap(what: str, where: str) -> BatchGapError:
    message = (
        f"state and stream don't fit: {what} (batch ids). Either Spark's checkpointLocation or "
        "the checkpoint directory was changed, moved or deleted without the other (bring back "
        "the one that is missing, or start over with a new checkpointLocation), or another "
        "driver runs this query too"
    )
    return BatchGapError(message, where)
