"""Completed checkpoints as values: publish one, read one, find the latest."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Protocol

from holdfast.common import uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations.coordination.claiming import take_back
from holdfast.locations.metadata import CheckpointMetadata, encode_metadata
from holdfast.locations.storages import (
    CheckpointStorageLocation,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    FileSystemCheckpointStorage,
    JobOwnership,
    find_stray_file,
    load_checkpoint,
    location_mismatch,
)
from holdfast.redaction import redact

_log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 100


class CompletedView(Protocol):
    """Lists a job's completed checkpoints."""

    def completed_checkpoints(self) -> Mapping[int, CompletedCheckpointStorageLocation]:
        """By id, oldest first."""
        ...


def complete_checkpoint(
    location: CheckpointStorageLocation,
    metadata: CheckpointMetadata,
    ownership: JobOwnership | None = None,
) -> CompletedCheckpoint:
    """Publish the metadata of a pending checkpoint; from then on it exists.

    Args:
        location: The place of the checkpoint.
        metadata: The content of its `_metadata`.
        ownership: The driver's claim to the job; None for a savepoint, which nobody else writes.

    Raises:
        CheckpointConflictError: The checkpoint exists already, written by somebody else, or another driver
            owns the job by now.
        OutcomeUnknownError: The store did not say, or it was written and not all could be seen to
            after that; delete nothing.
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
                ownership.check()  # the job may have gone on, and cleaned up behind itself
            raise
    if ownership is not None:
        _check_still_owned(ownership, metadata, completed)
    return CompletedCheckpoint(metadata, completed, len(content))


def load_latest_checkpoint(access: CompletedView) -> CompletedCheckpoint | None:
    """A job's completed checkpoint with the highest id, or None.

    A damaged one is an error, not passed over: an older one would silently bring back older
    state.
    """
    for _ in range(_MOST_ATTEMPTS):
        completed = access.completed_checkpoints()
        if not completed:
            return None
        location = completed[max(completed)]
        try:
            return load_checkpoint(location)
        except CheckpointNotFoundError:
            continue  # the job has completed a newer one, and deleted this
    raise _vanishing(location)


def load_checkpoints(access: CompletedView) -> list[CompletedCheckpoint]:
    """All completed checkpoints of a job, oldest first; the job may be running."""
    loaded: dict[int, CompletedCheckpoint] = {}
    for _ in range(_MOST_ATTEMPTS):
        completed = access.completed_checkpoints()
        try:
            # What is deleted soon comes last: whatever was read until then needn't be again.
            for checkpoint_id in sorted(completed.keys() - loaded.keys(), reverse=True):
                loaded[checkpoint_id] = load_checkpoint(completed[checkpoint_id])
        except CheckpointNotFoundError:
            continue  # the job has deleted it; a newer one may have taken its shared files over
        return [loaded[checkpoint_id] for checkpoint_id in completed]
    raise _vanishing(completed[max(completed)])


def latest_checkpoint(
    directory: str | PathLike[str], job_id: str | None = None
) -> CompletedCheckpoint | None:
    """The completed checkpoint with the highest id below a checkpoint directory, verified.

    Args:
        directory: URI, or a `pathlib.Path`, of the directory that jobs have their directories in.
        job_id: The job; may be left out where there is only one.

    Returns:
        None if there is no completed checkpoint.

    Raises:
        InvalidRequestError: There are several jobs, and none is named.
        CheckpointCorruptedError: The latest is damaged; an older one is not used instead.
    """
    storage = FileSystemCheckpointStorage(uripath.text(directory))
    if job_id is None:
        jobs = storage.jobs()
        if len(jobs) > 1:
            message = f"several jobs have checkpoints here, name one of: {', '.join(jobs)}"
            raise InvalidRequestError(message, storage.directory)
        if not jobs:
            return None
        (job_id,) = jobs
    return load_latest_checkpoint(storage.create_checkpoint_storage(job_id))


def _check_still_owned(
    ownership: JobOwnership,
    metadata: CheckpointMetadata,
    completed: CompletedCheckpointStorageLocation,
) -> None:
    """Take back a checkpoint that was committed too late, unless the job goes on from it."""
    try:
        try:
            ownership.check()
        except CheckpointConflictError:
            # The id may have been cleaned up long since, so that the name was free again. Nobody
            # restores from an id that the job has left behind; any other may be in use by now.
            number, token = metadata.checkpoint_id, metadata.commit_token
            with _logged(completed):
                if ownership.is_superseded(number, token):
                    completed.dispose_storage_location()
                elif ownership.ended_before(number, token):
                    take_back(metadata, completed, lambda: ownership.ended_before(number, token))
            raise
    except CheckpointConflictError:
        raise
    except CheckpointError as error:
        message = f"checkpoint is there, but who owns the job is not known ({error})"
        raise OutcomeUnknownError(message, completed.external_pointer) from error


@contextmanager
def _logged(completed: CompletedCheckpointStorageLocation) -> Iterator[None]:
    try:
        yield
    except CheckpointError:  # nobody restores from it; that it came too late is the news
        _log.warning("could not take back %s", completed.external_pointer, exc_info=True)


def _vanishing(location: CompletedCheckpointStorageLocation) -> CheckpointNotFoundError:
    message = "checkpoints are listed, and gone when they are read, time after time"
    return CheckpointNotFoundError(message, location.external_pointer)
