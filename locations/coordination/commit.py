"""The commit of a checkpoint: placeholders are resolved, the metadata is published, a late checkpoint is revoked."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointDeclinedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations.coordination.claims import ClaimRecord, claim_uri, withdraw_claim
from holdfast.locations.file_systems import file_system_for, publish
from holdfast.locations.handles import PlaceholderStreamStateHandle, StreamStateHandle, files_of
from holdfast.locations.metadata import (
    CheckpointMetadata,
    StoredOperator,
    StoredSubtask,
    encode_metadata,
)
from holdfast.locations.storages import (
    METADATA_FILE,
    SHARED,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobOwnership,
    find_stray_file,
    is_file_of,
    location_mismatch,
)
from holdfast.redaction import redact

_log = logging.getLogger(__name__)


def has_only_job_files(
    streams: Iterable[StreamStateHandle],
    job_directory: str,
    *,
    claimed: Container[str] = frozenset(),
) -> bool:
    """Return whether all files among streams are shared files of a job, so that it decides when they are deleted.

    If not, some are of another job or a savepoint, and may be deleted at any time, or are deleted with their
    checkpoint: the next checkpoint must not refer to them.

    Args:
        streams: Streams of the state.
        job_directory: The job's directory.
        claimed: URIs of files in other directories that the job has claimed.
    """
    shared = uripath.join(job_directory, SHARED)
    return all(file.uri in claimed or is_file_of(file.uri, shared) for file in files_of(streams))


def without_placeholders(
    uid: str, reported: StoredOperator, restored: Sequence[StoredSubtask], *, may_refer: bool
) -> StoredOperator:
    """Resolve the placeholders in the state that the subtasks of an operator have reported.

    Args:
        uid: The operator, for errors.
        reported: The state.
        restored: The state that each subtask was restored from.
        may_refer: Whether the checkpoint may refer to shared streams of it.

    Raises:
        CheckpointDeclinedError: A subtask refers to a stream that it was not restored from or must not refer to, or
            its handles are inconsistent.
    """
    subtasks = {
        index: _resolve(
            state,
            restored[index].shared_streams() if may_refer else {},
            subtask=f"subtask {index} of operator {uid!r}",
        )
        for index, state in reported.subtasks.items()
    }
    operator = msgspec.structs.replace(reported, subtasks=subtasks)
    inconsistency = operator.find_inconsistency()
    if inconsistency is not None:
        message = f"state that operator {uid!r} reported is inconsistent: {inconsistency}"
        raise CheckpointDeclinedError(message)
    return operator


def _resolve(
    state: StoredSubtask, known: Mapping[str, StreamStateHandle], *, subtask: str
) -> StoredSubtask:
    def resolve(stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, PlaceholderStreamStateHandle):
            return stream
        resolved = known.get(stream.name)
        if resolved is None or resolved.size != stream.size:
            message = (
                f"{subtask} refers to shared stream {stream.name!r} of {stream.size} bytes, but the checkpoint "
                "that it was restored from does not have it or can't share it"
            )
            raise CheckpointDeclinedError(message)
        return resolved

    return state.with_streams(resolve)


def complete_checkpoint(
    location: CheckpointStorageLocation,
    metadata: CheckpointMetadata,
    ownership: JobOwnership | None = None,
) -> CompletedCheckpoint:
    """Publish the metadata of a pending checkpoint; from then on it exists.

    Args:
        location: The location of the checkpoint.
        metadata: The content of its `_metadata`.
        ownership: The driver's claim to the job; None for a savepoint, whose directory is unique.

    Raises:
        CheckpointConflictError: Another writer has completed the checkpoint, or another driver owns the job.
        OutcomeUnknownError: The store did not report the outcome, or the checkpoint was written and not all
            checks after that could be made; delete nothing.
        StorageUnavailableError: The checkpoint was not written.
        CheckpointNotFoundError: Its directory was deleted; it was not written.
        InvalidRequestError: The location is that of another checkpoint or job, or a file is in a place where the
            checkpoint can't have one; it was not written.
    """
    mismatch = location_mismatch(metadata, location.external_pointer)
    if mismatch is not None:
        raise InvalidRequestError(mismatch, location.external_pointer)
    stray = find_stray_file(metadata, location.external_pointer)
    if stray is not None:
        message = f"checkpoint leads to {redact(stray)!a}, where it can't have a file"
        raise InvalidRequestError(message, location.external_pointer)
    content = encode_metadata(metadata, location.external_pointer)
    with location.create_metadata_output_stream() as stream:
        stream.write(content)
        try:
            completed = stream.close_and_finalize_checkpoint()
        except CheckpointNotFoundError:
            if ownership is not None:
                ownership.check()  # a new owner may have deleted the directory
            raise
    if ownership is not None:
        _check_still_owned(ownership, metadata, completed)
    return CompletedCheckpoint(metadata, completed, len(content))


def revoke_late_checkpoint(
    metadata: CheckpointMetadata,
    completed: CompletedCheckpointStorageLocation,
    has_ended: Callable[[], bool],
) -> None:
    """Delete a checkpoint that was completed after its job had ended, unless the job resumes from it anyway.

    Other late drivers may write into the same directory: only files of this checkpoint are deleted. `has_ended` is
    called when a driver that starts would see the revocation.
    """
    pointer = completed.external_pointer
    job = uripath.parent(pointer)
    file_system = file_system_for(pointer)
    record = ClaimRecord(job_id=uripath.name(job), directory=job, claimed_ms=metadata.created_ms)
    content = msgspec.json.encode(record)
    try:
        publish(claim_uri(pointer), content, single_writer=False)
    except InvalidRequestError as error:
        if error.kind != "not-exclusive":
            raise
        # The user's promise of a single writer was broken: to look first is the best that is possible.
        publish(claim_uri(pointer), content, single_writer=True)
    if has_ended():
        file_system.delete([uripath.join(pointer, METADATA_FILE)])
        files = files_of(metadata.streams())
        file_system.delete(file.uri for file in files if is_file_of(file.uri, pointer))
    withdraw_claim(pointer, job)
    file_system.delete_empty_directory(pointer)


def _check_still_owned(
    ownership: JobOwnership,
    metadata: CheckpointMetadata,
    completed: CompletedCheckpointStorageLocation,
) -> None:
    """Revoke a checkpoint that was committed too late, unless the job resumes from it."""
    number, token = metadata.checkpoint_id, metadata.commit_token
    try:
        ownership.check()
    except CheckpointConflictError:
        try:
            # The id may have been deleted long ago, so that the name was free again. No driver restores
            # an id that the job has passed; any other may be in use.
            if ownership.is_superseded(number, token):
                completed.dispose_storage_location()
            elif ownership.ended_before(number, token):
                revoke_late_checkpoint(
                    metadata, completed, lambda: ownership.ended_before(number, token)
                )
        except CheckpointError:  # no driver restores it; the conflict is the error to raise
            _log.warning("could not revoke %s", completed.external_pointer, exc_info=True)
        raise
    except CheckpointError as error:
        message = f"checkpoint was written, but the owner of the job is unknown ({error})"
        raise OutcomeUnknownError(message, completed.external_pointer) from error
