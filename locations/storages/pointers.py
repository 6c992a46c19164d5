"""From the text that a person or a setting gives to the completed checkpoint that it means."""

from os import PathLike

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages.contract import METADATA_FILE
from holdfast.locations.storages.entropy import without_marker
from holdfast.locations.storages.file_system_completed import (
    FileSystemCompletedCheckpointStorageLocation,
    metadata_among,
    metadata_at,
)

NOT_EXTERNALLY_ADDRESSABLE = "<checkpoint-not-externally-addressable>"
"""The pointer of checkpoints that live in the driver's memory alone."""


def resolve_pointer(
    pointer: str | PathLike[str],
) -> FileSystemCompletedCheckpointStorageLocation:
    """Find a checkpoint or savepoint by its directory or its metadata file.

    Raises:
        CheckpointNotFoundError: Nothing is there, or a directory without `_metadata`, or the
            pointer is the one of all checkpoints in memory.
        InvalidRequestError: The pointer is no usable URI.
    """
    if pointer == NOT_EXTERNALLY_ADDRESSABLE:
        message = "memory storage keeps no checkpoint that a pointer leads to; use a directory"
        raise CheckpointNotFoundError(message, NOT_EXTERNALLY_ADDRESSABLE)
    uri = uripath.checkpoint_directory(pointer)
    if uripath.scheme(uri) != "file":  # where the marker is a name like any other
        uri = uripath.checkpoint_directory(without_marker(uri))
    file_system = file_system_for(uri)
    metadata = metadata_among(file_system.list(uri))
    if metadata is not None:
        return metadata
    entries = [entry for entry in file_system.list(uripath.parent(uri)) if entry.uri == uri]
    if not entries:
        raise CheckpointNotFoundError("no such checkpoint or savepoint", uri)
    if entries[0].is_directory:
        message = (
            f"directory has no {METADATA_FILE}; name that of a checkpoint, chk-<number> below its job's, "
            "or of a savepoint"
        )
        raise CheckpointNotFoundError(message, uri)
    return metadata_at(uri, entries[0].size)
