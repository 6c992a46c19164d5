"""The start of a run: checks the checkpoint or savepoint that the job continues from, and claims the job.

A driver that claims a job stops the driver that ran it before. So everything that can be checked is checked before.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.common import Clock
from holdfast.locations.coordination import (
    ClaimedCheckpoints,
    check_claimable,
    check_not_claimed,
    check_not_revoked,
    claim_checkpoint,
    load_latest_checkpoint,
    withdraw_claim,
)
from holdfast.locations.storages import (
    CheckpointStorageAccess,
    CompletedCheckpoint,
    JobDirectory,
    JobOwnership,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark.query.continuation import Continuation, check_same_rows, was_completed
from holdfast.spark_progress import all_streams

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job in storage, and the savepoint that it starts from.

    Attributes:
        job_id: The job.
        access: The job's storage.
        directory: The job's directory; None if it has no directory.
        savepoint: Pointer of a savepoint. If the job has no checkpoint, its operators start with that state.
        claims_savepoint: Whether the savepoint becomes the property of the job, which then refers to its files, and
            deletes it when it needs no file of it. The job needs a directory for that.
    """

    job_id: str
    access: CheckpointStorageAccess
    directory: JobDirectory | None = None
    savepoint: str | None = None
    claims_savepoint: bool = False

    def take_over(
        self,
        continuation: Continuation,
        batch_id: int,
        offsets_of: Callable[[int], str | None],
        clock: Clock,
    ) -> "OwnedJob":
        """Claim the job for a run that starts with a batch. Errors are those of `CheckpointCoordinator.begin`."""
        savepoint = self._check(continuation, batch_id, offsets_of)
        ownership = self.access.claim_job()
        completed = list(ownership.completed.values())
        claims = ClaimedCheckpoints(self.directory.uri if self.directory is not None else "")
        if completed:
            last = completed[-1]
            continuation.check(last)
            check_not_claimed(checkpoint.location for checkpoint in completed)
            check_not_revoked(last)
            if self.directory is not None:
                claims = ClaimedCheckpoints.restore(self.directory.uri, last, all_streams)
            _log.info(
                "job %s resumes from checkpoint %d at %s",
                self.job_id,
                last.checkpoint_id,
                last.location.external_pointer,
            )
            if self.savepoint is not None:
                _log.info("the job has that checkpoint, and ignores savepoint %s", self.savepoint)
        elif savepoint is not None:
            _log.info(
                "job %s starts with the state of its operators in %s",
                self.job_id,
                savepoint.location.external_pointer,
            )
            claims = self._claim_savepoint(savepoint, claims, ownership, clock)
        return OwnedJob(ownership, completed, savepoint, claims)

    def _check(
        self,
        continuation: Continuation,
        batch_id: int,
        offsets_of: Callable[[int], str | None],
    ) -> CompletedCheckpoint | None:
        """Check the last checkpoint; without one load and check the savepoint, and return it."""
        savepoint = None
        last = load_latest_checkpoint(self.access)
        if last is not None:
            continuation.check(last)
            check_not_claimed([last.location])
        was_completed(batch_id, last, job_id=self.job_id)
        if last is not None:
            check_same_rows(last, offsets_of)
        elif self.savepoint is not None:
            savepoint = load_checkpoint(resolve_pointer(self.savepoint))
            continuation.check_start(savepoint)
            if self.claims_savepoint and self.directory is not None:
                check_claimable(savepoint, all_streams(savepoint), self.directory)
        continuation.assign(last or savepoint, is_own=False)  # for its errors
        return savepoint

    def _claim_savepoint(
        self,
        savepoint: CompletedCheckpoint,
        claims: ClaimedCheckpoints,
        ownership: JobOwnership,
        clock: Clock,
    ) -> ClaimedCheckpoints:
        """Claim the savepoint; or release it, if an earlier start claimed it."""
        if self.directory is None:
            return claims
        if not self.claims_savepoint:
            withdraw_claim(savepoint.location.external_pointer, self.directory.uri)
            return claims
        streams = all_streams(savepoint)
        claim = claim_checkpoint(savepoint, streams, self.directory, ownership, clock=clock)
        return ClaimedCheckpoints(self.directory.uri, [claim], all_streams)


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """A job that this run has claimed.

    Attributes:
        ownership: The claim.
        completed: The job's completed checkpoints at that time, the newest last.
        savepoint: The savepoint that the job starts from, if it has no checkpoint.
        claims: The checkpoints of other jobs that the job has claimed.
    """

    ownership: JobOwnership
    completed: list[CompletedCheckpoint]
    savepoint: CompletedCheckpoint | None
    claims: ClaimedCheckpoints
