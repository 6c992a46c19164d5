"""Drivers that claim a job and commit its checkpoints, and their files in its directory."""

from contracts.values import EXCLUSIVE

from holdfast.errors import CheckpointConflictError
from holdfast.locations import CompletedCheckpoint, complete_checkpoint, load_checkpoint
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    JobOwnership,
    file_system_for,
)
from holdfast.testing import metadata_of


def begin_checkpoint(
    access: CheckpointStorageAccess, checkpoint_id: int
) -> CheckpointStorageLocation:
    return access.initialize_location_for_checkpoint(checkpoint_id)


def commit(
    location: CheckpointStorageLocation,
    ownership: JobOwnership | None,
    checkpoint_id: int,
    token: str = "token",
) -> CompletedCheckpoint:
    """Complete a checkpoint with one file."""
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(30_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    metadata = metadata_of(handle, checkpoint_id=checkpoint_id, commit_token=token)
    return complete_checkpoint(location, metadata, ownership)


def run(access: CheckpointStorageAccess, ownership: JobOwnership, *checkpoint_ids: int) -> None:
    for checkpoint_id in checkpoint_ids:
        commit(begin_checkpoint(access, checkpoint_id), ownership, checkpoint_id)


def discard(access: CheckpointStorageAccess, checkpoint_id: int) -> None:
    load_checkpoint(access.completed_checkpoints()[checkpoint_id]).discard()


def claims(directory: str) -> set[str]:
    uri = f"{directory}/job/_epoch"
    return {entry.uri.removeprefix(f"{uri}/") for entry in file_system_for(uri).list(uri)}


def files_in_checkpoint(directory: str, checkpoint_id: int) -> set[str]:
    uri = f"{directory}/job/chk-{checkpoint_id}"
    return {entry.uri.removeprefix(f"{uri}/") for entry in file_system_for(uri).list(uri)}


def overwrite_claim(directory: str, epoch: int, data: bytes) -> None:
    uri = f"{directory}/job/_epoch/{epoch}"
    file_system = file_system_for(uri)
    file_system.delete([uri])
    stream = file_system.create(uri)
    stream.write(data)
    stream.commit()


def owns(ownership: JobOwnership) -> bool:
    try:
        ownership.check()
    except CheckpointConflictError:
        return False
    return True
