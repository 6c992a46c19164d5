"""Jobs with completed checkpoints, written by storages without a query."""

import uuid

from contracts.values import EXCLUSIVE, SHARED, read

from holdfast.locations import (
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    complete_checkpoint,
    load_checkpoint,
)
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    FileStateHandle,
)
from holdfast.locations.storages import without_marker
from holdfast.testing import metadata_of


def job_in(directory: str, job_id: str = "job") -> CheckpointStorageAccess:
    """Return a job with all state in files; its savepoints are in `savepoints` next to it."""
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
    """Write a state file."""
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def write_checkpoint(
    access: CheckpointStorageAccess,
    checkpoint_id: int,
    *reused: FileStateHandle,
    files: int = 1,
    shared: int = 0,
    savepoint: bool = False,
    job_id: str = "job",
) -> CompletedCheckpoint:
    """Complete a checkpoint with new exclusive and shared files, and files of earlier checkpoints."""
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
    """Return the files that a checkpoint refers to."""
    return [
        stream for stream in checkpoint.metadata.streams() if isinstance(stream, FileStateHandle)
    ]


def assert_complete(checkpoint: CompletedCheckpoint) -> None:
    """Check that the checkpoint can be loaded, and that all its files have their original length."""
    loaded = load_checkpoint(checkpoint.location)
    assert loaded.metadata == checkpoint.metadata
    for stream in loaded.metadata.streams():
        assert len(read(stream)) == stream.size
