"""The state that the operators of a query begin with: the state of a checkpoint, or none."""

from collections.abc import Callable, Mapping

from holdfast.backends.assignment import AssignedOperator, OperatorSettings, assign
from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.operators import Operator
from holdfast.spark_progress import SPARK, SparkProgress, progress_of


def assigned_operators(
    operators: Mapping[str, Operator],
    last: CompletedCheckpoint | None,
    *,
    is_ours: bool,
    default_parallelism: Callable[[], int],
) -> dict[str, AssignedOperator]:
    """The state that each subtask begins with, by the operator's uid.

    Args:
        operators: The query's operators by uid.
        last: The checkpoint; None if the query begins without state.
        is_ours: Whether this run of the query has completed the checkpoint.
        default_parallelism: Returns the number of subtasks of a new operator that was given none.
    """
    if last is not None and is_ours:
        # Nothing was restarted. Spread anew, a union state would be stored by each subtask whole.
        return {uid: _unchanged(last.metadata.operators[uid]) for uid in operators}
    stored = last.metadata.operators if last else {}
    settings = {
        uid: _settings(operator, stored.get(uid), default_parallelism)
        for uid, operator in operators.items()
    }
    if last is None:
        return {uid: _without_state(each) for uid, each in settings.items()}
    return assign(
        last.metadata,
        settings,
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


def _settings(
    operator: Operator, stored: StoredOperator | None, default_parallelism: Callable[[], int]
) -> OperatorSettings:
    """Return the operator's settings, with a number of subtasks if it was given none."""
    parallelism = operator.parallelism
    if parallelism is None:
        parallelism = min(
            stored.parallelism if stored else default_parallelism(),
            operator.max_parallelism or MAX_PARALLELISM,
        )
    return OperatorSettings(parallelism, operator.max_parallelism)


def _without_state(settings: OperatorSettings) -> AssignedOperator:
    subtasks = (StoredSubtask(),) * settings.parallelism
    return AssignedOperator(settings.max_parallelism_or_default, subtasks)


def _unchanged(stored: StoredOperator) -> AssignedOperator:
    """Each subtask goes on with what it has stored itself."""
    subtasks = (stored.subtasks.get(index, StoredSubtask()) for index in range(stored.parallelism))
    return AssignedOperator(stored.max_parallelism, tuple(subtasks))
