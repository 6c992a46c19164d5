"""Completed checkpoints as values: publish one, read one, find the latest."""

from dataclasses import dataclass
from os import PathLike

from holdfast.errors import (
    CheckpointConflictError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import _uris
from holdfast.locations._metadata import CheckpointMetadata, decode_metadata, encode_metadata
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages import (
    CheckpointStorage,
    CheckpointStorageCoordinatorView,
    CheckpointStorageLocation,
    CompletedCheckpointStorageLocation,
    FileSystemCheckpointStorage,
    JobOwnership,
)


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint that exists: what it holds, and where it is.

    Attributes:
        metadata: What `_metadata` says.
        location: Where it stands.
        metadata_bytes: Length of `_metadata`.
    """

    metadata: CheckpointMetadata
    location: CompletedCheckpointStorageLocation
    metadata_bytes: int

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        return self.metadata.checkpoint_id

    def discard(self) -> None:
        """Delete it, the metadata first. What it shares with others is not touched."""
        self.location.dispose_storage_location()


def checkpoint_storage(
    directory: str | PathLike[str], *, single_writer: bool = False
) -> CheckpointStorage:
    """The storage of checkpoints below a directory, picked by the URI's scheme.

    Args:
        directory: URI, or a `pathlib.Path` for a local directory.
        single_writer: The promise that one driver at a time runs a job, which stores need that
            can't create a file only if it is not there yet.

    Raises:
        InvalidRequestError: No scheme, no path, the root directory, or an unknown scheme.
    """
    storage = FileSystemCheckpointStorage(_uris.text(directory), single_writer=single_writer)
    file_system_for(storage.directory)
    return storage


def complete_checkpoint(
    location: CheckpointStorageLocation,
    metadata: CheckpointMetadata,
    ownership: JobOwnership | None = None,
) -> CompletedCheckpoint:
    """Publish the metadata of a pending checkpoint; from then on it exists.

    Args:
        location: Where it goes.
        metadata: What it holds.
        ownership: The driver's claim to the job; None for a savepoint, which nobody else writes.

    Raises:
        CheckpointConflictError: It exists already, written by somebody else, or another driver
            owns the job by now.
        OutcomeUnknownError: The store did not say; delete nothing.
        StorageUnavailableError: It was not written.
    """
    if ownership is not None:
        ownership.check()
    content = encode_metadata(metadata, location.external_pointer)
    with location.create_metadata_output_stream() as stream:
        stream.write(content)
        completed = stream.close_and_finalize_checkpoint()
    if ownership is not None:
        _check_still_owned(ownership, metadata.checkpoint_id, completed)
    return CompletedCheckpoint(metadata, completed, len(content))


def load_checkpoint(location: CompletedCheckpointStorageLocation) -> CompletedCheckpoint:
    """Read and verify the metadata of a completed checkpoint.

    Raises:
        CheckpointCorruptedError: Damaged, cut off, or another kind of file.
        UnsupportedFormatError: Written by a newer version.
        CheckpointNotFoundError: It is gone.
        StorageUnavailableError: It can't be read.
    """
    pointer = location.external_pointer
    uri = getattr(location.metadata_handle, "uri", pointer)
    with location.metadata_handle.open_input_stream() as stream:
        content = stream.read()
    return CompletedCheckpoint(decode_metadata(content, pointer, uri=uri), location, len(content))


def latest_checkpoint(access: CheckpointStorageCoordinatorView) -> CompletedCheckpoint | None:
    """A job's completed checkpoint with the highest id, or None.

    A damaged one is an error, not passed over: an older one would silently bring back older
    state.
    """
    completed = access.completed_checkpoints()
    return load_checkpoint(completed[max(completed)]) if completed else None


def latest(directory: str | PathLike[str], job_id: str | None = None) -> CompletedCheckpoint | None:
    """The completed checkpoint with the highest id below a checkpoint directory, verified.

    Args:
        directory: URI or local path of the directory that jobs have their directories in.
        job_id: The job; may be left out where there is only one.

    Returns:
        None if there is no completed checkpoint.

    Raises:
        InvalidRequestError: There are several jobs, and none is named.
        CheckpointCorruptedError: The latest is damaged; an older one is not used instead.
    """
    storage = FileSystemCheckpointStorage(_uris.text(directory))
    if job_id is None:
        jobs = storage.jobs()
        if len(jobs) > 1:
            message = f"several jobs have checkpoints here, name one of: {', '.join(jobs)}"
            raise InvalidRequestError(message, storage.directory)
        if not jobs:
            return None
        (job_id,) = jobs
    return latest_checkpoint(storage.create_checkpoint_storage(job_id))


def _check_still_owned(
    ownership: JobOwnership, checkpoint_id: int, completed: CompletedCheckpointStorageLocation
) -> None:
    """Take back a checkpoint that was committed too late, unless the job goes on from it."""
    try:
        ownership.check()
    except CheckpointConflictError:
        # Its id may have been cleaned up long since, so that the name was free again. Nobody
        # restores from an id that the job has left behind; any other may be in use by now.
        if ownership.is_past(checkpoint_id):
            completed.dispose_storage_location()
        raise
    except StorageUnavailableError as error:
        message = "checkpoint is there, but whether this driver still owns the job is not known"
        raise OutcomeUnknownError(message, completed.external_pointer) from error
