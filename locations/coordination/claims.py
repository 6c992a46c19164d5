"""Claims of checkpoints and savepoints: one that a job has claimed belongs to it, and it deletes it in the end.

    <checkpoint>/_claimed    a JSON object, published once: job_id, directory, claimed_ms

The job that claims and the former job do this:

    the job                                          a driver of the former job, if a checkpoint is claimed
    1  claims the former job (`_epoch`), as whose    a  claims its job (`_epoch`)
       owner it sees the newest checkpoint           b  looks for `_claimed` in its checkpoints, and
    2  publishes `_claimed`                             stops if it is there
    3  checks that it still owns the former job

In any order, b sees 2 or 3 sees a, so that the two never both resume. A driver that ran before 1 commits nothing after
it, or revokes it, because 1 records that the job has ended; so it deletes no checkpoint either: only the newest one can
be claimed, which no driver was deleting. Another driver might resume from the revoked checkpoint if 2 never happens:
so the late driver first publishes `_claimed` there, with its own job in it, and looks for a newer epoch.
The checkpoint stays complete, with its `_metadata`, until no checkpoint of the job needs any file of it. Until then the
sweep of the former job finds the names of all these files there.
"""

import logging
import threading
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
from holdfast.locations.coordination.checkpoints import load_checkpoints
from holdfast.locations.coordination.leases import is_leased
from holdfast.locations.file_systems import check_exclusive, file_system_for, publish
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, files_of
from holdfast.locations.metadata import ClaimedCheckpoint
from holdfast.locations.storages import (
    METADATA_FILE,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobDirectory,
    JobOwnership,
    belongs_to,
    find_metadata,
    is_checkpoint,
    is_file_of,
    list_each,
    load_checkpoint,
    resolve_pointer,
)

_log = logging.getLogger(__name__)

CLAIMED = "_claimed"

StreamsOf = Callable[[CompletedCheckpoint], Iterable[StreamStateHandle]]


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `_claimed`.

    Attributes:
        job_id: The job that has claimed the checkpoint or savepoint.
        directory: URI of the job's directory, which distinguishes it from other jobs of that id.
        claimed_ms: Time of the claim by the driver's clock, milliseconds since 1970 UTC.
    """

    job_id: str
    directory: str
    claimed_ms: int


_DECODER = json_decoder(ClaimRecord)


def claim_uri(pointer: str) -> str:
    """Return the URI of the record in the directory of a checkpoint or savepoint."""
    return uripath.join(pointer, CLAIMED)


def read_claim(pointer: str) -> ClaimRecord | None:
    """Return the record in the directory of a checkpoint or savepoint; None if it is not claimed.

    Raises:
        CheckpointCorruptedError: The record can't be read.
    """
    uri = claim_uri(pointer)
    try:
        with file_system_for(uri).open(uri) as stream:
            return _DECODER.decode(stream.read())
    except CheckpointNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        message = f"record of the claim to this checkpoint can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error


def withdraw_claim(pointer: str, job_directory: str) -> None:
    """Delete the record of a job that has not used its claim; records of other jobs stay."""
    record = read_claim(pointer)
    if record is not None and record.directory == job_directory:
        file_system_for(pointer).delete([claim_uri(pointer)])


def check_not_claimed(checkpoints: Iterable[CompletedCheckpointStorageLocation]) -> None:
    """Refuse to change or resume a job if another job has claimed one of its checkpoints.

    Raises:
        CheckpointConflictError: Another job has.
    """
    pointers = [location.external_pointer for location in checkpoints]
    for pointer, record in zip(pointers, map_in_parallel(read_claim, pointers), strict=True):
        if record is not None:
            raise _claimed_error(pointer, record)


def check_not_revoked(checkpoint: CompletedCheckpoint) -> None:
    """Refuse to resume from a checkpoint that its driver has revoked; called after `check_not_claimed`.

    Raises:
        CheckpointConflictError: It was deleted.
    """
    pointer = checkpoint.location.external_pointer
    try:
        resolve_pointer(pointer)
    except CheckpointNotFoundError as error:
        message = (
            "can't resume from this checkpoint: it has just been deleted; start the query again"
        )
        raise CheckpointConflictError(message, pointer, kind="contended") from error


def check_claimable(
    checkpoint: CompletedCheckpoint, streams: Iterable[StreamStateHandle], job: JobDirectory
) -> None:
    """Refuse a checkpoint or savepoint, with these streams, that a job can't claim. Writes nothing.

    Raises:
        CheckpointConflictError: Another job has claimed it.
        InvalidRequestError: It needs files of others, or is not the newest checkpoint of its job.
    """
    pointer = checkpoint.location.external_pointer
    record = read_claim(pointer)
    if record is not None and record.directory != job.uri:
        raise _claimed_error(pointer, record)
    handle = checkpoint.location.metadata_handle
    if not isinstance(handle, FileStateHandle) or uripath.name(handle.uri) != METADATA_FILE:
        message = f"only a directory with a {METADATA_FILE} file can be claimed"
        raise InvalidRequestError(message, pointer)
    former = _former_job(pointer, job)
    for file in files_of(streams):
        if not belongs_to(file.uri, pointer):
            raise _foreign_file_error(f"needs {file.uri}, which", pointer)
    for claim in checkpoint.metadata.claimed:  # the job that has to delete it has ended
        raise _foreign_file_error(
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
    """Claim a checkpoint or savepoint, with these streams, for a job that starts from it. May be repeated by the job.

    On a store that can't create a file exclusively, the user's promise that one driver at a time runs a job has to
    hold for all jobs that would claim it.

    Raises:
        CheckpointConflictError: Another job has claimed it, or its own job resumes from it.
        CheckpointNotFoundError: It was deleted in the meantime.
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
    record = ClaimRecord(job_id=uripath.name(job.uri), directory=job.uri, claimed_ms=clock.now_ms())
    ownership.check()
    try:
        publish(claim_uri(pointer), msgspec.json.encode(record), single_writer=job.single_writer)
    except CheckpointConflictError:
        other = read_claim(pointer)
        if other is None or other.directory != job.uri:
            raise _claimed_error(pointer, other) from None
    ownership.check()  # if it fails, the new owner uses or withdraws the record
    try:
        if fence is not None:
            _check_fence(fence, pointer)
        stored = load_checkpoint(resolve_pointer(pointer))
        if stored.metadata.commit_token != checkpoint.metadata.commit_token:
            raise CheckpointNotFoundError(
                "can't claim this checkpoint: another one has just replaced it", pointer
            )
    except CheckpointError:
        withdraw_claim(pointer, job.uri)
        raise
    uris = tuple(sorted(file.uri for file in files_of(listed)))
    return ClaimedCheckpoint(pointer, checkpoint.metadata.commit_token, uris)


class ClaimedCheckpoints:
    """The checkpoints and savepoints that a job has claimed and not deleted yet.

    Args:
        directory: URI of the job's directory.
        claimed: The claimed checkpoints and savepoints.
        streams_of: Returns all streams of a checkpoint or savepoint.
    """

    def __init__(
        self,
        directory: str,
        claimed: Iterable[ClaimedCheckpoint] = (),
        streams_of: StreamsOf = lambda checkpoint: checkpoint.metadata.streams(),
    ) -> None:
        self._directory = directory
        self._streams_of = streams_of
        self._lock = threading.Lock()
        self._last_used = dict.fromkeys(claimed, -1)
        self._needed_elsewhere: set[ClaimedCheckpoint] = set()

    @classmethod
    def restore(
        cls, directory: str, last: CompletedCheckpoint, streams_of: StreamsOf
    ) -> "ClaimedCheckpoints":
        """Return the claims in a job's last checkpoint that are left; some may have been released since."""
        needed = {file.uri for file in files_of(last.metadata.streams())}
        claimed = [
            claim
            for claim in last.metadata.claimed
            if _may_release(claim, directory)
            and not (needed.isdisjoint(claim.files) and _is_released(claim))
        ]
        return cls(directory, claimed, streams_of)

    @property
    def claimed(self) -> tuple[ClaimedCheckpoint, ...]:
        """The claimed checkpoints and savepoints that are not deleted yet."""
        with self._lock:
            return tuple(self._last_used)

    @property
    def files(self) -> frozenset[str]:
        """URIs of all their files."""
        return frozenset(uri for claim in self.claimed for uri in claim.files)

    def register(self, checkpoint: CompletedCheckpoint) -> None:
        """Note which of them a checkpoint of the job needs."""
        with self._lock:
            if not self._last_used:
                return
            needed = {file.uri for file in files_of(checkpoint.metadata.streams())}
            for claim, last_used in self._last_used.items():
                if not needed.isdisjoint(claim.files):
                    self._last_used[claim] = max(last_used, checkpoint.checkpoint_id)

    def find_unused(self, lowest_id: int) -> list[ClaimedCheckpoint]:
        """Return those that neither a checkpoint with at least this id nor another savepoint needs."""
        with self._lock:
            return [
                claim
                for claim, last_used in self._last_used.items()
                if last_used < lowest_id and claim not in self._needed_elsewhere
            ]

    def release(self, claim: ClaimedCheckpoint) -> None:
        """Delete a claimed checkpoint, unless it is being read: `_metadata` first, then the files, the record, the directory.

        May be repeated after a crash. Files that another checkpoint or savepoint in the same place needs
        stay; if one of them is in the directory itself, all of it stays.

        Raises:
            CheckpointConflictError: A checkpoint of this job still needs it; nothing was deleted.
            CheckpointCorruptedError: Another checkpoint there can't be read; nothing was deleted.
        """
        if is_leased(claim.pointer):
            return
        self._check_unneeded(claim)
        stored = _load_claimed(claim)
        is_replaced = stored is not None and stored.metadata.commit_token != claim.commit_token
        if is_replaced or not _may_release(claim, self._directory):
            _log.warning("%s was claimed by this job, and does not belong to it now", claim.pointer)
            withdraw_claim(claim.pointer, self._directory)
        else:
            needed = self._names_needed_elsewhere(claim.pointer)
            own = (uri for uri in claim.files if is_file_of(uri, claim.pointer))
            if any(uripath.name(uri) in needed for uri in own):
                _log.info("%s stays: another savepoint needs files of it", claim.pointer)
                with self._lock:
                    self._needed_elsewhere.add(claim)
                return
            file_system = file_system_for(claim.pointer)
            if stored is not None:  # otherwise another checkpoint may be in progress there
                file_system.delete([uripath.join(claim.pointer, METADATA_FILE)])
            # Without the record, a former driver has deleted the files.
            if read_claim(claim.pointer) is not None:
                file_system.delete(
                    uri
                    for uri in claim.files
                    if uripath.name(uri) not in needed and belongs_to(uri, claim.pointer)
                )
                file_system.delete([claim_uri(claim.pointer)])
            file_system.delete_empty_directory(claim.pointer)
            _log.info("deleted %s, which this job had claimed", claim.pointer)
        with self._lock:
            del self._last_used[claim]

    def _check_unneeded(self, claim: ClaimedCheckpoint) -> None:
        files = set(claim.files)
        for checkpoint in load_checkpoints(JobDirectory(self._directory, single_writer=False)):
            if not files.isdisjoint(file.uri for file in files_of(checkpoint.metadata.streams())):
                number = checkpoint.checkpoint_id
                message = f"checkpoint {number} needs files that its job has claimed"
                raise CheckpointConflictError(message, claim.pointer, kind="contended")

    def _names_needed_elsewhere(self, pointer: str) -> set[str]:
        """Return the names of the files that other checkpoints in the same place need."""
        return {
            uripath.name(file.uri)
            for checkpoint in _load_siblings(pointer)
            for file in files_of(self._streams_of(checkpoint))
        }


def _may_release(claim: ClaimedCheckpoint, directory: str) -> bool:
    """Return whether a job still has a claim, or its driver died while it released it."""
    record = read_claim(claim.pointer)
    return record.directory == directory if record is not None else _load_claimed(claim) is None


def _is_released(claim: ClaimedCheckpoint) -> bool:
    """Return whether everything is deleted, except for an empty directory: the record is deleted last."""
    return read_claim(claim.pointer) is None and _load_claimed(claim) is None


def _load_claimed(claim: ClaimedCheckpoint) -> CompletedCheckpoint | None:
    """Return the checkpoint in the directory of a claim; None if it was deleted."""
    try:
        return load_checkpoint(resolve_pointer(claim.pointer))
    except CheckpointNotFoundError:
        return None


def _load_siblings(pointer: str) -> list[CompletedCheckpoint]:
    """Return the other checkpoints of a checkpoint's job, or the other savepoints next to a savepoint."""
    parent = uripath.parent(pointer)
    if is_checkpoint(pointer):
        checkpoints = load_checkpoints(JobDirectory(parent, single_writer=False))
    else:
        entries = file_system_for(parent).list(parent)
        inside = list_each([entry.uri for entry in entries if entry.is_directory])
        locations = filter(None, map(find_metadata, inside.values()))
        checkpoints = map_in_parallel(load_checkpoint, list(locations))
    return [each for each in checkpoints if each.location.external_pointer != pointer]


def _former_job(pointer: str, job: JobDirectory) -> JobDirectory | None:
    """Return the job of a checkpoint; None for a savepoint or a copy, which belongs to no job."""
    if not is_checkpoint(pointer):
        return None
    return JobDirectory(uripath.parent(pointer), job.single_writer)


def _check_newest(checkpoint: CompletedCheckpoint, completed: Iterable[int]) -> None:
    newest = max(completed, default=-1)
    if newest != checkpoint.checkpoint_id:
        message = (
            f"checkpoint {checkpoint.checkpoint_id} is not its job's newest, which is {newest}, and a job may "
            "be deleting any other; claim that, or copy this (holdfast copy) and claim the copy"
        )
        raise InvalidRequestError(
            message, checkpoint.location.external_pointer, kind="not-claimable"
        )


def _check_fence(fence: JobOwnership, pointer: str) -> None:
    try:
        fence.check()
    except CheckpointConflictError as error:
        message = (
            "the job of this checkpoint was started while it was being claimed; stop that job, then start this "
            "query again"
        )
        raise CheckpointConflictError(message, pointer, kind="contended") from error


def _foreign_file_error(reason: str, pointer: str) -> InvalidRequestError:
    message = (
        f"can't claim this checkpoint: it {reason} belongs to another checkpoint or savepoint; make a self-contained "
        "copy (holdfast copy), and claim the copy"
    )
    return InvalidRequestError(message, pointer, kind="not-claimable")


def _claimed_error(pointer: str, record: ClaimRecord | None) -> CheckpointConflictError:
    if record is not None and record.directory == uripath.parent(pointer):
        message = (
            "this checkpoint was completed by a former driver after another job had claimed an earlier one, and is "
            "being withdrawn; start the query again. If that driver is dead, delete this checkpoint's directory first"
        )
        return CheckpointConflictError(message, pointer, kind="contended")
    name = "another job" if record is None else f"job {record.job_id!r} in {record.directory}"
    message = (
        f"{name} has claimed this checkpoint, and deletes it once it no longer needs it; begin with a checkpoint "
        "or savepoint of that job instead, or, if that job was abandoned for good, delete the file "
        f"{CLAIMED} in this directory"
    )
    return CheckpointConflictError(message, pointer, kind="claimed")
