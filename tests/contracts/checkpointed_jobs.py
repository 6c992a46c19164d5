"""Jobs with completed checkpoints, made by storages alone."""

import uuid

from contracts.values import EXCLUSIVE, SHARED, read

from holdfast.locations import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import CheckpointedStateScope, FileStateHandle
from holdfast.locations.storages import without_marker
from holdfast.testing import metadata_of


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    """A job whose state is all in files, and whose savepoints are beside it."""
    storage = FileSystemCheckpointStorage(
        directory,
        inline_threshold=0,
        savepoint_directory=f"{without_marker(directory)}/savepoints",
    )
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    return access


def write_state(
    location: CheckpointStorageLocation,
    scope: CheckpointedStateScope = EXCLUSIVE,
    data: bytes = b"state",
) -> FileStateHandle:
    """A file of state."""
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def completed(
    access: CheckpointStorageAccess,
    checkpoint_id: int,
    *reused: FileStateHandle,
    files: int = 1,
    shared: int = 0,
    savepoint: bool = False,
    job_id: str = "job",
) -> CompletedCheckpoint:
    """A checkpoint with new exclusive files, new shared ones, and files of other checkpoints."""
    begin = (
        access.initialize_location_for_savepoint
        if savepoint
        else access.initialize_location_for_checkpoint
    )
    location = begin(checkpoint_id)
    exclusive = [write_state(location) for _ in range(files)]
    streams = (*exclusive, *(write_state(location, SHARED) for _ in range(shared)), *reused)
    metadata = metadata_of(
        *streams, checkpoint_id=checkpoint_id, commit_token=uuid.uuid4().hex, job_id=job_id
    )
    return complete_checkpoint(location, metadata)


def files_of(checkpoint: CompletedCheckpoint) -> list[FileStateHandle]:
    """The files that a checkpoint leads to."""
    return [
        stream for stream in checkpoint.metadata.streams() if isinstance(stream, FileStateHandle)
    ]


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    """The checkpoint can be loaded, and all its files are as long as they were when written."""
    loaded = load_checkpoint(checkpoint.location)
    assert loaded.metadata == checkpoint.metadata
    for stream in loaded.metadata.streams():
        assert len(read(stream)) == stream.size
