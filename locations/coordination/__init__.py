"""What becomes of checkpoints: commit, retention, cleanup."""

from holdfast.locations.coordination._checkpoints import (
    complete_checkpoint,
    latest,
    latest_checkpoint,
    load_checkpoints,
)
from holdfast.locations.coordination._cleaner import CheckpointsCleaner
from holdfast.locations.coordination._completed_store import CompletedCheckpointStore, RestoreMode
from holdfast.locations.coordination._files import CheckpointSize, files_of, size_of
from holdfast.locations.coordination._history import (
    JobHistory,
    Uncommitted,
    Unreadable,
    job_histories,
)
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
from holdfast.locations.coordination._sweep import GRACE_S, SweepReport, sweep

__all__ = [
    "GRACE_S",
    "NEVER_RETAIN",
    "RETAIN_ON_CANCELLATION",
    "RETAIN_ON_FAILURE",
    "SAVEPOINT",
    "SYNCHRONOUS_SAVEPOINT",
    "CheckpointProperties",
    "CheckpointSize",
    "CheckpointsCleaner",
    "CompletedCheckpointStore",
    "JobHistory",
    "JobStatus",
    "RestoreMode",
    "SharedStateRegistry",
    "SweepReport",
    "Uncommitted",
    "Unreadable",
    "complete_checkpoint",
    "files_of",
    "job_histories",
    "latest",
    "latest_checkpoint",
    "load_checkpoints",
    "size_of",
    "sweep",
]
