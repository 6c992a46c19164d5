"""Statistics of checkpoints that retention has deleted, copied from each checkpoint to the next.

Each checkpoint has the statistics of the checkpoints before it in `_metadata`, under the coordinator state `history`;
its own follow from the rest of its metadata. So only `_metadata` is written, and a job that is rolled back has
the history of the checkpoint that it was rolled back to.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.errors import CheckpointError
from holdfast.locations.coordination import checkpoint_size
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.checkpoint_view import iso_time
from holdfast.spark_progress.history_format import (
    HISTORY,
    NO_HISTORY,
    CheckpointStatistics,
    FailedAttempt,
    OperatorStatistics,
    StoredHistory,
    decode_history,
    encode_history,
    unpack_history,
    with_attempts,
    with_checkpoint,
)
from holdfast.spark_progress.progress import progress_of

_PLACES = ("", "worker", "local", "storage")
"""Places from which a subtask can be restored, the most distant last."""


@dataclass(frozen=True, slots=True)
class History:
    """The recorded history of a job, oldest first; deleted checkpoints included."""

    checkpoints: tuple[CheckpointStatistics, ...] = ()
    failed_attempts: tuple[FailedAttempt, ...] = ()

    def checkpoint_rows(self, retained: Collection[int]) -> list[dict[str, Any]]:
        """Return a row for each checkpoint, oldest first, as commands and the report show them; `retained` has ids."""
        rows = []
        for before, statistics in zip((None, *self.checkpoints), self.checkpoints, strict=False):
            # The driver of a later epoch resumed from the checkpoint before. Claims without a checkpoint count too.
            claims = 0 if before is None else statistics.epoch - before.epoch
            rows.append(
                msgspec.structs.asdict(statistics)
                | {
                    "completed": iso_time(statistics.completed_ms),
                    "operators": {
                        uid: msgspec.structs.asdict(operator)
                        for uid, operator in sorted(statistics.operators.items())
                    },
                    "is_retained": statistics.checkpoint in retained,
                    "restored_checkpoint": before.checkpoint if before and claims > 0 else None,
                    "claims": max(0, claims),
                }
            )
        return rows

    def attempt_rows(self) -> list[dict[str, Any]]:
        """Return a row for each failed attempt, oldest first."""
        return [
            msgspec.structs.asdict(attempt) | {"failed": iso_time(attempt.failed_ms)}
            for attempt in self.failed_attempts
        ]


def checkpoint_statistics(completed: CompletedCheckpoint) -> CheckpointStatistics:
    """Return the statistics of a checkpoint; counts that were not recorded are zero."""
    metadata = completed.metadata
    size = checkpoint_size(completed)
    operators = {uid: _operator(state) for uid, state in metadata.operators.items()}
    return CheckpointStatistics(
        checkpoint=metadata.checkpoint_id,
        batch=_batch_of(metadata),
        completed_ms=metadata.created_ms,
        duration_ms=round(metadata.duration_ms),
        epoch=metadata.epoch,
        new_bytes=size.new_bytes,
        referenced_bytes=size.referenced_bytes,
        # Operators in a chain process the same rows.
        rows_in=max((operator.rows_in for operator in operators.values()), default=0),
        rows_late=sum(operator.rows_late for operator in operators.values()),
        rows_out=sum(operator.rows_out for operator in operators.values()),
        operators=operators,
    )


def next_history(
    latest: CompletedCheckpoint | None, attempts: Iterable[FailedAttempt]
) -> dict[str, bytes]:
    """Return the coordinator state with the history of the next checkpoint; empty without a history.

    A history that can't be read is replaced by a new one: it must not stop the job.

    Args:
        latest: The previous checkpoint.
        attempts: Attempts that failed since then.
    """
    history = NO_HISTORY
    if latest is not None:
        try:
            history = _history_in(latest.metadata)
        except CheckpointError:
            history = NO_HISTORY
        history = with_checkpoint(history, checkpoint_statistics(latest))
    history = with_attempts(history, attempts)
    return {} if history == NO_HISTORY else {HISTORY: encode_history(history)}


def history_of(checkpoints: Sequence[CompletedCheckpoint]) -> History:
    """Return the history of a job.

    Args:
        checkpoints: The retained checkpoints, oldest first.

    Raises:
        CheckpointCorruptedError: The history in the newest can't be read.
    """
    if not checkpoints:
        return History()
    history = _history_in(checkpoints[-1].metadata)
    recorded = (*unpack_history(history), *map(checkpoint_statistics, checkpoints))
    by_id = {statistics.checkpoint: statistics for statistics in recorded}
    return History(tuple(by_id[number] for number in sorted(by_id)), history.failed_attempts)


def _history_in(metadata: CheckpointMetadata) -> StoredHistory:
    encoded = metadata.coordinator_states.get(HISTORY)
    if encoded is None:
        return NO_HISTORY  # the first checkpoint, or written before there was a history
    return decode_history(encoded, f"checkpoint {metadata.checkpoint_id} of job {metadata.job_id}")


def _batch_of(metadata: CheckpointMetadata) -> int | None:
    try:
        return progress_of(metadata).batch_id
    except CheckpointError:
        return None


def _operator(state: StoredOperator) -> OperatorStatistics:
    known = [subtask.statistics for subtask in state.subtasks.values() if subtask.statistics]
    places = {statistics.restored_from for statistics in known}
    return OperatorStatistics(
        parallelism=state.parallelism,
        rows_in=sum(statistics.rows_in for statistics in known),
        rows_late=sum(statistics.rows_late for statistics in known),
        rows_out=sum(statistics.rows_out for statistics in known),
        written_bytes=sum(statistics.state_bytes for statistics in known),
        process_ms=round(max((statistics.process_ms for statistics in known), default=0)),
        restored_from=max(places & set(_PLACES), key=_PLACES.index, default=""),
    )
