"""Completed checkpoints as values: publish one, read one, find the latest."""

from dataclasses import dataclass
from os import PathLike

from holdfast.errors import StorageUnavailableError
from holdfast.locations import _uris
from holdfast.locations._file_system import file_system_for
from holdfast.locations._file_system_storage import FileSystemCheckpointStorage
from holdfast.locations._metadata import CheckpointMetadata, decode_metadata, encode_metadata
from holdfast.locations._storage import (
    CheckpointStorage,
    CheckpointStorageCoordinatorView,
    CheckpointStorageLocation,
    CompletedCheckpointStorageLocation,
)


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that exists: what it holds, and where it is.

    Attributes:
        metadata: What `_metadata` says.
        location: Where it stands.
        metadata_bytes: Length of `_metadata`.
    """

    metadata: CheckpointMetadata
    location: CompletedCheckpointStorageLocation
    metadata_bytes: int

    def discard(self) -> None:
        """Delete it, the metadata first."""
        self.location.dispose_storage_location()


def checkpoint_storage(directory: str | PathLike[str]) -> CheckpointStorage:
    """The storage of checkpoints below a directory, picked by the URI's scheme.

    Args:
        directory: URI, or a `pathlib.Path` for a local directory.

    Raises:
        InvalidRequestError: No scheme, no path, the root directory, or an unknown scheme.
    """
    storage = FileSystemCheckpointStorage(_uris.text(directory))
    file_system_for(storage.directory)
    return storage


def complete_checkpoint(
    location: CheckpointStorageLocation, metadata: CheckpointMetadata
) -> CompletedCheckpoint:
    """Publish the metadata of a pending checkpoint; from then on it exists.

    Raises:
        CheckpointConflictError: It exists already, written by somebody else.
        OutcomeUnknownError: The store did not say; delete nothing.
        StorageUnavailableError: It was not written.
    """
    content = encode_metadata(metadata, location.external_pointer)
    with location.create_metadata_output_stream() as stream:
        stream.write(content)
        completed = stream.close_and_finalize_checkpoint()
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
        try:
            content = stream.read()
        except OSError as error:
            message = f"metadata can't be read ({error.strerror})"
            raise StorageUnavailableError(message, uri) from error
    return CompletedCheckpoint(decode_metadata(content, pointer, uri=uri), location, len(content))


def latest_checkpoint(access: CheckpointStorageCoordinatorView) -> CompletedCheckpoint | None:
    """The completed checkpoint with the highest id, or None.

    A damaged one is an error, not passed over: an older one would silently bring back older
    state.
    """
    completed = access.completed_checkpoints()
    return load_checkpoint(completed[max(completed)]) if completed else None
