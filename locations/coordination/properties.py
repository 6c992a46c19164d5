"""Which checkpoints are deleted, and when: by their kind, and by how the job ends."""

from dataclasses import dataclass
from enum import Enum

from holdfast.locations.storages import CompletedCheckpoint


class JobStatus(Enum):
    """How a job ends. A suspended one is expected to go on."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """What becomes of a checkpoint.

    Attributes:
        discarded_when_subsumed: Whether it is deleted when newer ones make it superfluous.
        discarded_at: Ends of the job at which it is deleted.
        is_savepoint: Whether it belongs to the user, and not to the job.
        is_synchronous: Whether it is the savepoint that the job is stopped with.

    Source:
        Flink, CheckpointProperties; the four kinds below are its own.
    """

    discarded_when_subsumed: bool
    discarded_at: frozenset[JobStatus]
    is_savepoint: bool = False
    is_synchronous: bool = False


NEVER_RETAIN = CheckpointProperties(discarded_when_subsumed=True, discarded_at=frozenset(JobStatus))
RETAIN_ON_FAILURE = CheckpointProperties(
    discarded_when_subsumed=True, discarded_at=frozenset(JobStatus) - {JobStatus.FAILED}
)
RETAIN_ON_CANCELLATION = CheckpointProperties(
    discarded_when_subsumed=True, discarded_at=frozenset({JobStatus.FINISHED})
)
SAVEPOINT = CheckpointProperties(
    discarded_when_subsumed=False, discarded_at=frozenset(), is_savepoint=True
)
SYNCHRONOUS_SAVEPOINT = CheckpointProperties(
    discarded_when_subsumed=False, discarded_at=frozenset(), is_savepoint=True, is_synchronous=True
)


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """A completed checkpoint, and what becomes of it."""

    checkpoint: CompletedCheckpoint
    properties: CheckpointProperties


def subsumed(retained: list[RetainedCheckpoint], num_retained: int) -> list[RetainedCheckpoint]:
    """Which of them, oldest first, newer ones make superfluous. Pure.

    The newest stays, and so does the newest that is no savepoint: a job can't rely on what belongs
    to its user. Only when it is stopped with a savepoint does that count alone.

    Source:
        Flink, CheckpointSubsumeHelper.subsume.
    """
    if not retained:
        return []
    kept = [retained[-1]]
    if not retained[-1].properties.is_synchronous:
        kept += [one for one in retained if not one.properties.is_savepoint][-1:]
    superfluous = len(retained) - num_retained
    candidates = [one for one in retained if not any(one is other for other in kept)]
    return candidates[: max(0, superfluous)]
