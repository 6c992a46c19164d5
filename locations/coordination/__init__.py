"""What becomes of checkpoints: they are completed, retained, found, copied, verified and swept.

`checkpoints` completes and loads, `shared_streams` fills in what tasks did not write again, `completed_store`
retains, `sweeping` deletes what crashes left; `claiming` makes a checkpoint that of another job, and `claims` deletes
it when that needs it no more. All go through storages, and through the handles of a checkpoint. Start with `checkpoints`.
"""

from holdfast.locations.coordination.checkpoint_files import (
    CheckpointSize,
    files_of,
    size_of,
    without_place,
)
from holdfast.locations.coordination.checkpoints import (
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoints,
    load_latest_checkpoint,
)
from holdfast.locations.coordination.claiming import (
    CLAIMED,
    check_claimable,
    check_not_claimed,
    check_still_there,
    claim_checkpoint,
    claimant_of,
    withdraw_claim,
)
from holdfast.locations.coordination.claims import Claims
from holdfast.locations.coordination.cleaner import CheckpointsCleaner
from holdfast.locations.coordination.completed_store import CompletedCheckpointStore
from holdfast.locations.coordination.copying import (
    chunks,
    copy_checkpoint,
    disposed_on_failure,
    stored,
    with_copies,
)
from holdfast.locations.coordination.finding import (
    FoundCheckpoint,
    find_checkpoint,
    find_checkpoints,
    is_gone,
    is_savepoint,
)
from holdfast.locations.coordination.job_history import (
    JobHistory,
    Uncommitted,
    Unreadable,
    job_histories,
)
from holdfast.locations.coordination.shared_state import SharedStateRegistry
from holdfast.locations.coordination.shared_streams import (
    are_own,
    outlives_checkpoint,
    without_placeholders,
)
from holdfast.locations.coordination.sweeping import (
    GRACE_S,
    MIN_GRACE_S,
    SweepReport,
    jobs_with_savepoints,
    sweep,
    sweep_savepoints,
)
from holdfast.locations.coordination.verification import VerifiedFile, verify

__all__ = [
    "CLAIMED",
    "GRACE_S",
    "MIN_GRACE_S",
    "CheckpointSize",
    "CheckpointsCleaner",
    "Claims",
    "CompletedCheckpointStore",
    "FoundCheckpoint",
    "JobHistory",
    "SharedStateRegistry",
    "SweepReport",
    "Uncommitted",
    "Unreadable",
    "VerifiedFile",
    "are_own",
    "check_claimable",
    "check_not_claimed",
    "check_still_there",
    "chunks",
    "claim_checkpoint",
    "claimant_of",
    "complete_checkpoint",
    "copy_checkpoint",
    "disposed_on_failure",
    "files_of",
    "find_checkpoint",
    "find_checkpoints",
    "is_gone",
    "is_savepoint",
    "job_histories",
    "jobs_with_savepoints",
    "latest_checkpoint",
    "load_checkpoints",
    "load_latest_checkpoint",
    "outlives_checkpoint",
    "size_of",
    "stored",
    "sweep",
    "sweep_savepoints",
    "verify",
    "with_copies",
    "withdraw_claim",
    "without_place",
    "without_placeholders",
]
