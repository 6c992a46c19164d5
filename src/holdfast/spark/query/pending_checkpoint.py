"""A checkpoint that was begun and is not completed yet."""

from dataclasses import dataclass

from holdfast.backends.assignment import AssignedOperator
from holdfast.locations.storages import CheckpointStorageLocation
from holdfast.spark_progress import SparkProgress


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that was begun.

    Attributes:
        checkpoint_id: The number of the checkpoint.
        batch_id: The micro-batch that it will complete.
        location: Where it goes.
        restored_checkpoint_id: The checkpoint that the state comes from, or None.
        assigned: The state that operators begin with, by uid.
        new: The operators that the state has nothing of, by uid: it is their first batch.
        may_refer: Whether an operator's part of it may refer to shared streams of that state, by uid. If not,
            its subtasks write all of the state anew.
        key_types: Spark's types of the columns of their keys, by uid: as stored, and where nothing
            is stored, as the batch has them.
        progress: Spark's side of the checkpoint that the state comes from; None if it has none.
        commit_token: Random; tells the commit of this attempt from that of any other.
        started_s: `Clock.monotonic_s` when it was begun.
    """

    checkpoint_id: int
    batch_id: int
    location: CheckpointStorageLocation
    restored_checkpoint_id: int | None
    assigned: dict[str, AssignedOperator]
    new: frozenset[str]
    may_refer: dict[str, bool]
    key_types: dict[str, tuple[str, ...]]
    progress: SparkProgress | None
    commit_token: str
    started_s: float
