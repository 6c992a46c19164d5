"""Claim a checkpoint or savepoint: from then on it belongs to the job that begins with it.

    <checkpoint>/_claimed    a JSON object, published once: job_id, directory, claimed_ms

A job that claims does this, and the former job that:

    the job                                          a driver of the former job, if a checkpoint is claimed
    1  claims the former job (`_epoch`), as the      a  claims its job (`_epoch`)
       owner of which it sees the newest checkpoint  b  looks for `_claimed` in its checkpoints, and
    2  publishes `_claimed`                             stops if it is there
    3  looks whether it still owns the former job

Whatever the order, b sees 2 or 3 sees a, so that never both go on. A driver that ran before 1 commits nothing after
it, or takes it back, because 1 says that the job has ended; and so it lets go of nothing: only the newest checkpoint
can be claimed, which nobody was deleting then. What it takes back might be what another driver goes on from, if 2
never comes: so it publishes `_claimed` there first, with its own job in it, and looks for a newer claim.
The checkpoint stays whole, with its `_metadata`, until no checkpoint of the job needs any file of it. Meanwhile the
sweep of the former job finds all these files named there.
"""

from collections.abc import Callable, Iterable

import msgspec

from holdfast.common import SYSTEM_CLOCK, Clock, json_decoder, map_in_parallel, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.coordination.checkpoint_files import files_of
from holdfast.locations.file_systems import check_exclusive, file_system_for, publish
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata, ClaimedCheckpoint
from holdfast.locations.storages import (
    CHECKPOINT,
    METADATA_FILE,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobDirectory,
    JobOwnership,
    belongs_to,
    is_file_of,
    load_checkpoint,
    resolve_pointer,
)

CLAIMED = "_claimed"


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """Who has claimed a checkpoint or savepoint.

    Attributes:
        job_id: The job.
        directory: URI of the job's directory, which tells it from other jobs of that id.
        claimed_ms: When, by the driver's clock, milliseconds since 1970 UTC.
    """

    job_id: str
    directory: str
    claimed_ms: int


_DECODER = json_decoder(Claimant)


def claimant_of(pointer: str) -> Claimant | None:
    """Who has claimed a checkpoint or savepoint; None if nobody has.

    Args:
        pointer: URI of its directory.

    Raises:
        CheckpointCorruptedError: The record of that can't be read.
    """
    uri = claimed_at(pointer)
    try:
        with file_system_for(uri).open(uri) as stream:
            return _DECODER.decode(stream.read())
    except CheckpointNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        message = f"record of who has claimed this checkpoint can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error


def claimed_at(pointer: str) -> str:
    """The record of who has claimed a checkpoint or savepoint."""
    return uripath.join(pointer, CLAIMED)


def take_back(
    metadata: CheckpointMetadata,
    completed: CompletedCheckpointStorageLocation,
    still: Callable[[], bool],
) -> None:
    """Delete a checkpoint that was completed after its job had ended, unless the job goes on from it all the same.

    Other late drivers may write into the same directory: only files of this checkpoint are deleted.

    Args:
        metadata: The checkpoint's.
        completed: The checkpoint.
        still: Whether the job has ended, asked when a driver that starts would see that this is taken back.
    """
    pointer = completed.external_pointer
    own = uripath.parent(pointer)
    record = Claimant(job_id=uripath.name(own), directory=own, claimed_ms=metadata.created_ms)
    content = msgspec.json.encode(record)
    try:
        publish(claimed_at(pointer), content, single_writer=False)
    except InvalidRequestError as error:
        if error.kind != "not-exclusive":
            raise
        # The user promised a single writer, and that was not so: looking first is all that is possible.
        publish(claimed_at(pointer), content, single_writer=True)
    if still():
        file_system = file_system_for(pointer)
        file_system.delete([uripath.join(pointer, METADATA_FILE)])
        files = files_of(metadata.streams())
        file_system.delete(file.uri for file in files if is_file_of(file.uri, pointer))
    withdraw_claim(pointer, own)
    file_system_for(pointer).delete_empty_directory(pointer)


def check_not_claimed(checkpoints: Iterable[CompletedCheckpointStorageLocation]) -> None:
    """Refuse to change or go on with a job of which another one has claimed a checkpoint.

    Args:
        checkpoints: Where the job has its checkpoints.

    Raises:
        CheckpointConflictError: Another job has.
    """
    pointers = [location.external_pointer for location in checkpoints]
    for pointer, holder in zip(pointers, map_in_parallel(claimant_of, pointers), strict=True):
        if holder is not None:
            raise _is_claimed(pointer, holder)


def check_still_there(checkpoint: CompletedCheckpoint) -> None:
    """Refuse to go on from a checkpoint that its driver has taken back; asked behind `check_not_claimed`.

    Raises:
        CheckpointConflictError: It is gone.
    """
    pointer = checkpoint.location.external_pointer
    try:
        resolve_pointer(pointer)
    except CheckpointNotFoundError as error:
        message = "this checkpoint was deleted while a driver began with it; start the query again"
        raise CheckpointConflictError(message, pointer, kind="contended") from error


def check_claimable(
    checkpoint: CompletedCheckpoint, streams: Iterable[StreamStateHandle], job: JobDirectory
) -> None:
    """Refuse what a job can't claim. Writes nothing.

    Args:
        checkpoint: The checkpoint or savepoint.
        streams: All that it leads to.
        job: The job that wants it.

    Raises:
        CheckpointConflictError: Another job has claimed it.
        InvalidRequestError: It needs files that are not its own, or is not the newest checkpoint of its job.
    """
    pointer = checkpoint.location.external_pointer
    holder = claimant_of(pointer)
    if holder is not None and holder.directory != job.uri:
        raise _is_claimed(pointer, holder)
    handle = checkpoint.location.metadata_handle
    if not isinstance(handle, FileStateHandle) or uripath.name(handle.uri) != METADATA_FILE:
        message = f"only a directory with a {METADATA_FILE} file can be claimed"
        raise InvalidRequestError(message, pointer)
    former = _former_job(pointer, job)
    for file in files_of(streams):
        if not belongs_to(file.uri, pointer):
            raise _not_all_its_own(f"needs {file.uri}, which", pointer)
    for claim in checkpoint.metadata.claimed:  # this job could not be told any more to delete that
        raise _not_all_its_own(
            f"was made by a job that has yet to delete {claim.pointer}, which", pointer
        )
    if former is not None:
        _check_newest(checkpoint, former.completed_checkpoints())


def claim_checkpoint(
    checkpoint: CompletedCheckpoint,
    streams: Iterable[StreamStateHandle],
    job: JobDirectory,
    ownership: JobOwnership,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> ClaimedCheckpoint:
    """Make a checkpoint or savepoint that of a job, which begins with it. The job may repeat that.

    On a store that can't create a file only if it is not there yet, the user's promise that one driver at a
    time runs a job has to hold for all jobs that would claim it.

    Args:
        checkpoint: The checkpoint or savepoint.
        streams: All that it leads to.
        job: The job.
        ownership: The driver's claim to the job.
        clock: Dates the record.

    Raises:
        CheckpointConflictError: Another job has claimed it, or its own job goes on from it.
        CheckpointNotFoundError: It was deleted meanwhile.
        InvalidRequestError: As for `check_claimable`.
    """
    listed = list(streams)
    check_claimable(checkpoint, listed, job)
    pointer = checkpoint.location.external_pointer
    former = _former_job(pointer, job)
    fence: JobOwnership | None = None
    if former is not None:
        former.prepare()
        fence = former.claim(ends=True)
        _check_newest(checkpoint, fence.completed)
    elif not job.single_writer:
        check_exclusive(pointer)
    record = Claimant(job_id=uripath.name(job.uri), directory=job.uri, claimed_ms=clock.now_ms())
    ownership.check()
    try:
        publish(claimed_at(pointer), msgspec.json.encode(record), single_writer=job.single_writer)
    except CheckpointConflictError:
        holder = claimant_of(pointer)
        if holder is None or holder.directory != job.uri:
            raise _is_claimed(pointer, holder) from None
    ownership.check()  # if not, the record is for the new owner to use or to withdraw
    try:
        if fence is not None:
            _check_fenced(fence, pointer)
        stored = load_checkpoint(resolve_pointer(pointer))
        if stored.metadata.commit_token != checkpoint.metadata.commit_token:
            raise CheckpointNotFoundError("another one stands in its place by now", pointer)
    except CheckpointError:
        withdraw_claim(pointer, job.uri)
        raise
    uris = tuple(sorted(file.uri for file in files_of(listed)))
    return ClaimedCheckpoint(pointer, checkpoint.metadata.commit_token, uris)


def withdraw_claim(pointer: str, job_directory: str) -> None:
    """Let go of what a job has claimed and never used; what others have claimed stays theirs."""
    holder = claimant_of(pointer)
    if holder is not None and holder.directory == job_directory:
        file_system_for(pointer).delete([claimed_at(pointer)])


def _former_job(pointer: str, job: JobDirectory) -> JobDirectory | None:
    """The job that a checkpoint is of; None of a savepoint, or a copy, which belongs to no job."""
    if CHECKPOINT.fullmatch(uripath.name(pointer)) is None:
        return None
    return JobDirectory(uripath.parent(pointer), job.single_writer)


def _check_newest(checkpoint: CompletedCheckpoint, completed: Iterable[int]) -> None:
    newest = max(completed, default=-1)
    if newest != checkpoint.checkpoint_id:
        message = (
            f"checkpoint {checkpoint.checkpoint_id} is not its job's newest, which is {newest}, and a job may "
            "be deleting any other; claim that, or copy this (holdfast copy) and claim the copy"
        )
        raise InvalidRequestError(message, checkpoint.location.external_pointer)


def _not_all_its_own(why: str, pointer: str) -> InvalidRequestError:
    message = (
        f"it can't be claimed, because it {why} belongs to another checkpoint or savepoint; copy it (holdfast "
        "copy), and claim the copy"
    )
    return InvalidRequestError(message, pointer)


def _check_fenced(fence: JobOwnership, pointer: str) -> None:
    try:
        fence.check()
    except CheckpointConflictError as error:
        message = (
            "the job that this checkpoint is of was started while it was being claimed; stop that job, then "
            "start this query again"
        )
        raise CheckpointConflictError(message, pointer, kind="contended") from error


def _is_claimed(pointer: str, holder: Claimant | None) -> CheckpointConflictError:
    if holder is not None and holder.directory == uripath.parent(pointer):
        message = (
            "a former driver is taking this checkpoint back, which it completed when another job had claimed the one "
            "before; start the query again, and if that driver is gone, delete the checkpoint's directory"
        )
        return CheckpointConflictError(message, pointer, kind="contended")
    name = "another job" if holder is None else f"job {holder.job_id!r} in {holder.directory}"
    message = (
        f"{name} has claimed this checkpoint, and deletes it when it needs it no more; begin with a checkpoint "
        "or savepoint of that job instead, or, if that job is given up for good, delete the file "
        f"{CLAIMED} in this directory"
    )
    return CheckpointConflictError(message, pointer, kind="claimed")
