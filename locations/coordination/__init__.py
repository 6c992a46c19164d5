"""What becomes of checkpoints: commit, retention, cleanup."""

from holdfast.locations.coordination._checkpoints import (
    complete_checkpoint,
    latest,
    latest_checkpoint,
    load_checkpoints,
)
from holdfast.locations.coordination._cleaner import CheckpointsCleaner
from holdfast.locations.coordination._completed_store import CompletedCheckpointStore, RestoreMode
from holdfast.locations.coordination._retention import (
    NEVER_RETAIN,
    RETAIN_ON_CANCELLATION,
    RETAIN_ON_FAILURE,
    SAVEPOINT,
    SYNCHRONOUS_SAVEPOINT,
    CheckpointProperties,
    JobStatus,
)
from holdfast.locations.coordination._shared_state import SharedStateRegistry
from holdfast.locations.coordination._sweep import GRACE_S, LEAST_GRACE_S, SweepReport, sweep

__all__ = [
    "GRACE_S",
    "LEAST_GRACE_S",
    "NEVER_RETAIN",
    "RETAIN_ON_CANCELLATION",
    "RETAIN_ON_FAILURE",
    "SAVEPOINT",
    "SYNCHRONOUS_SAVEPOINT",
    "CheckpointProperties",
    "CheckpointsCleaner",
    "CompletedCheckpointStore",
    "JobStatus",
    "RestoreMode",
    "SharedStateRegistry",
    "SweepReport",
    "complete_checkpoint",
    "latest",
    "latest_checkpoint",
    "load_checkpoints",
    "sweep",
]
