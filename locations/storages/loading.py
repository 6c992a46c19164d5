"""Read a completed checkpoint, and see whether it is the one that belongs where it lies."""

from holdfast.common import uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.metadata import CheckpointMetadata, decode_metadata
from holdfast.locations.storages.contract import (
    CHECKPOINT,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.places import find_stray_file
from holdfast.redaction import redact


def load_checkpoint(location: CompletedCheckpointStorageLocation) -> CompletedCheckpoint:
    """Read and verify the metadata of a completed checkpoint.

    Raises:
        CheckpointCorruptedError: Damaged, cut off, another kind of file, or the metadata of another
            checkpoint or job than its directory is named after; or it names a file in a place where the
            checkpoint can't have one.
        UnsupportedFormatError: Written by a newer version.
        CheckpointNotFoundError: The checkpoint is gone.
        StorageUnavailableError: The metadata can't be read.
    """
    pointer = location.external_pointer
    uri = getattr(location.metadata_handle, "uri", pointer)
    with location.metadata_handle.open_input_stream() as stream:
        content = stream.read()
    metadata = decode_metadata(content, pointer, uri=uri)
    difference = misplaced(metadata, pointer)
    if difference is not None:
        home = f"{metadata.job_id}/chk-{metadata.checkpoint_id}"
        message = (
            f"{difference}: it was put, or its directory renamed, where it doesn't belong; bring "
            f"its directory back to {home}, or give it another name than chk-<number> to use it alone"
        )
        raise CheckpointCorruptedError(message, uri)
    stray = find_stray_file(metadata, pointer)
    if stray is not None:
        message = f"metadata names {redact(stray)!a}, where this checkpoint can't have a file"
        raise CheckpointCorruptedError(message, uri)
    return CompletedCheckpoint(metadata, location, len(content))


def misplaced(metadata: CheckpointMetadata, directory: str) -> str | None:
    """How a directory's name contradicts the metadata in it; None if it doesn't.

    `<job>/chk-<N>` says which checkpoint lies there. Any other name says nothing: savepoints and
    copies are called as their users like.
    """
    named = CHECKPOINT.fullmatch(uripath.name(directory))
    if named is None:
        return None
    job_id, checkpoint_id = uripath.name(uripath.parent(directory)), int(named[1])
    if (metadata.job_id, metadata.checkpoint_id) == (job_id, checkpoint_id):
        return None
    return (
        f"metadata is of checkpoint {metadata.checkpoint_id} of job {metadata.job_id!r}, and its "
        f"directory of checkpoint {checkpoint_id} of job {job_id!r}"
    )
