"""The figures of checkpoints that retention has deleted, carried from one checkpoint to the next.

Each checkpoint says in `_metadata`, under the coordinator state `history`, what those before it were like.
What it is like itself stands in the rest of its metadata. So nothing is written but `_metadata`, which is
written anyway; and whatever a job goes back to has the history of just those that led to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import CheckpointError
from holdfast.locations.coordination import checkpoint_size
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.history_format import (
    HISTORY,
    NO_HISTORY,
    GivenUpAttempt,
    History,
    PastCheckpoint,
    PastOperator,
    decode_history,
    encode_history,
    opened_blocks,
    with_attempts,
    with_checkpoint,
)
from holdfast.spark_progress.progress import progress_of

_PLACES = ("", "worker", "local", "storage")
"""Where a subtask has found its state, the farthest last."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A driver that went on from a checkpoint of another one.

    Attributes:
        epoch: Number of its claim to the job.
        claims: How many claims there were since the driver before, with its own; those of drivers that have
            completed nothing are among them.
        restored_checkpoint: The checkpoint that it went on from.
        checkpoint: The first that it completed.
    """

    epoch: int
    claims: int
    restored_checkpoint: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Past:
    """The history of a job, as far as its checkpoints remember.

    Attributes:
        checkpoints: Completed ones, oldest first; also those that are there no more.
        given_up: Attempts that were given up and left nothing, oldest first.
    """

    checkpoints: tuple[PastCheckpoint, ...] = ()
    given_up: tuple[GivenUpAttempt, ...] = ()

    @property
    def restarts(self) -> list[Restart]:
        """The drivers that took the job over, oldest first."""
        pairs = zip(self.checkpoints, self.checkpoints[1:], strict=False)
        return [
            Restart(later.epoch, later.epoch - earlier.epoch, earlier.checkpoint, later.checkpoint)
            for earlier, later in pairs
            if later.epoch > earlier.epoch
        ]


def figures_of(completed: CompletedCheckpoint) -> PastCheckpoint:
    """The figures of a checkpoint to remember. Statistics that nobody has counted are zero."""
    metadata = completed.metadata
    size = checkpoint_size(completed)
    operators = {uid: _operator(state) for uid, state in metadata.operators.items()}
    return PastCheckpoint(
        checkpoint=metadata.checkpoint_id,
        batch=_batch_of(metadata),
        completed_ms=metadata.created_ms,
        duration_ms=round(metadata.duration_ms),
        epoch=metadata.epoch,
        new_bytes=size.new_bytes,
        referenced_bytes=size.referenced_bytes,
        # Operators that are applied one after the other are given the same rows.
        rows_in=max((operator.rows_in for operator in operators.values()), default=0),
        rows_late=sum(operator.rows_late for operator in operators.values()),
        rows_out=sum(operator.rows_out for operator in operators.values()),
        operators=operators,
    )


def carried_history(
    latest: CompletedCheckpoint | None, attempts: Iterable[GivenUpAttempt]
) -> dict[str, bytes]:
    """The history that a checkpoint carries, as a coordinator state; empty if there is nothing to say.

    A history that can't be read is begun anew: no job stands still for it.

    Args:
        latest: The checkpoint before.
        attempts: The attempts that were given up since then.
    """
    history = NO_HISTORY
    if latest is not None:
        try:
            history = _history_in(latest.metadata)
        except CheckpointError:
            history = NO_HISTORY
        history = with_checkpoint(history, figures_of(latest))
    history = with_attempts(history, attempts)
    return {} if history == NO_HISTORY else {HISTORY: encode_history(history)}


def past_of(checkpoints: Sequence[CompletedCheckpoint]) -> Past:
    """The history of a job, from its checkpoints.

    Args:
        checkpoints: The checkpoints that there are, oldest first.

    Raises:
        CheckpointCorruptedError: The history in the newest can't be read.
    """
    if not checkpoints:
        return Past()
    history = _history_in(checkpoints[-1].metadata)
    past = {figures.checkpoint: figures for figures in opened_blocks(history)}
    past |= {figures.checkpoint: figures for figures in map(figures_of, checkpoints)}
    return Past(tuple(past[number] for number in sorted(past)), history.given_up)


def _history_in(metadata: CheckpointMetadata) -> History:
    encoded = metadata.coordinator_states.get(HISTORY)
    if encoded is None:
        return NO_HISTORY  # the first checkpoint, or written before there was a history
    return decode_history(encoded, f"checkpoint {metadata.checkpoint_id} of job {metadata.job_id}")


def _batch_of(metadata: CheckpointMetadata) -> int | None:
    try:
        return progress_of(metadata).batch_id
    except CheckpointError:
        return None


def _operator(state: StoredOperator) -> PastOperator:
    did = [subtask.statistics for subtask in state.subtasks.values() if subtask.statistics]
    places = {statistics.restored_from for statistics in did}
    return PastOperator(
        parallelism=state.parallelism,
        rows_in=sum(statistics.rows_in for statistics in did),
        rows_late=sum(statistics.rows_late for statistics in did),
        rows_out=sum(statistics.rows_out for statistics in did),
        written_bytes=sum(statistics.state_bytes for statistics in did),
        process_ms=round(max((statistics.process_ms for statistics in did), default=0)),
        restored_from=max(places & set(_PLACES), key=_PLACES.index, default=""),
    )
