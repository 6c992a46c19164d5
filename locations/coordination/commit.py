"""The commit of a checkpoint: publish its metadata, and revoke it if its driver lost the job in the meantime."""

import logging
from collections.abc import Callable

import msgspec

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations.coordination.claims import ClaimRecord, claim_uri, withdraw_claim
from holdfast.locations.file_systems import file_system_for, publish
from holdfast.locations.handles import files_of
from holdfast.locations.metadata import CheckpointMetadata, encode_metadata
from holdfast.locations.storages import (
    METADATA_FILE,
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
    if ownership is not None:
        ownership.check()
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
