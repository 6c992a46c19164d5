"""The life of checkpoints: they are completed, retained, found, copied, verified, claimed and swept.

`commit` completes a checkpoint, `checkpoints` reads and finds them, `checkpoint_files` copies and verifies them,
`completed_store` retains the newest ones, `leases` keep those that are being read, `sweeping` deletes files that
crashes have left. With `claims` a job takes over a checkpoint of another job, and deletes it once it is no longer
needed. With `standby` one of several drivers runs the job, and the others wait. All of them use storages, and the handles of a checkpoint. Start with `commit`.
"""

from holdfast.locations.coordination.checkpoint_files import (
    CheckpointSize,
    VerifiedFile,
    checkpoint_size,
    copy_checkpoint,
    copy_file,
    copy_files,
    copy_stream,
    dispose_on_error,
    verify_files,
)
from holdfast.locations.coordination.checkpoints import (
    FoundCheckpoint,
    find_checkpoint,
    find_checkpoints,
    is_gone,
    is_savepoint,
    latest_checkpoint,
    load_checkpoints,
    load_if_complete,
    load_latest_checkpoint,
)
from holdfast.locations.coordination.claims import (
    CLAIMED,
    ClaimedCheckpoints,
    check_claimable,
    check_not_claimed,
    check_not_revoked,
    claim_checkpoint,
    read_claim,
    withdraw_claim,
)
from holdfast.locations.coordination.commit import (
    complete_checkpoint,
    has_only_job_files,
    revoke_late_checkpoint,
    without_placeholders,
)
from holdfast.locations.coordination.completed_store import (
    CheckpointsCleaner,
    CompletedCheckpointStore,
    SharedStateRegistry,
)
from holdfast.locations.coordination.job_history import (
    IncompleteCheckpoint,
    JobHistory,
    UnreadableCheckpoint,
    find_incomplete,
    is_job,
    job_histories,
    load_savepoint,
    missing_ranges,
    unreadable_checkpoint,
    with_unreadable,
)
from holdfast.locations.coordination.leases import (
    acquire_lease,
    deleted_error,
    explain_deletion,
    hold_checkpoint,
    hold_found_checkpoint,
)
from holdfast.locations.coordination.standby import ActiveDriver, Standby
from holdfast.locations.coordination.sweeping import (
    GRACE_S,
    MIN_GRACE_S,
    SweepReport,
    jobs_with_savepoints,
    sweep,
    sweep_savepoints,
)
