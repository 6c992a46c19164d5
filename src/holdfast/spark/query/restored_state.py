"""The state that the operators of a query begin with: the state of a checkpoint, or none."""

from collections.abc import Mapping

from holdfast.backends.assignment import AssignedOperator, assign
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.operators import Operator
from holdfast.spark_progress import SPARK, SparkProgress, progress_of


def assigned_operators(
    operators: Mapping[str, Operator], last: CompletedCheckpoint | None, *, is_ours: bool
) -> dict[str, AssignedOperator]:
    """The state that each subtask begins with, by the operator's uid.

    Args:
        operators: The query's operators by uid.
        last: The checkpoint; None if the query begins without state.
        is_ours: Whether this run of the query has completed the checkpoint.
    """
    if last is None:
        return {uid: _without_state(operator) for uid, operator in operators.items()}
    if is_ours:
        # Nothing was restarted. Spread anew, a union state would be stored by each subtask whole.
        return {uid: _unchanged(last.metadata.operators[uid]) for uid in operators}
    return assign(
        last.metadata,
        {uid: operator.settings for uid, operator in operators.items()},
        allow_non_restored_state=True,  # it was checked, with Spark's way out
    )


def progress_behind(last: CompletedCheckpoint | None) -> SparkProgress | None:
    """Spark's side of a checkpoint; None of a savepoint that was written from tables alone."""
    if last is None or SPARK not in last.metadata.coordinator_states:
        return None
    return progress_of(last.metadata)


def known_key_types(
    operators: Mapping[str, Operator], last: CompletedCheckpoint | None
) -> dict[str, tuple[str, ...]]:
    """Spark's types of the columns of keys in a checkpoint, by uid, of operators that still have that key."""
    stored = last.metadata.operators if last else {}
    return {
        uid: stored[uid].key_types
        for uid, operator in operators.items()
        if uid in stored and stored[uid].key_types and stored[uid].key == operator.key
    }


def _without_state(operator: Operator) -> AssignedOperator:
    subtasks = (StoredSubtask(),) * operator.parallelism
    return AssignedOperator(operator.settings.max_parallelism_or_default, subtasks)


def _unchanged(stored: StoredOperator) -> AssignedOperator:
    """Each subtask goes on with what it has stored itself."""
    subtasks = (stored.subtasks.get(index, StoredSubtask()) for index in range(stored.parallelism))
    return AssignedOperator(stored.max_parallelism, tuple(subtasks))
