"""Completed checkpoints in directories: list, resolve, read and delete them."""

from collections.abc import Iterable, Sequence
from os import PathLike

import msgspec

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
)
from holdfast.locations.file_systems import FileStatus, file_system_for
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.metadata import decode_metadata
from holdfast.locations.storages.contract import (
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.layout import (
    METADATA_FILE,
    find_stray_file,
    is_dedicated,
    location_mismatch,
    without_marker,
)
from holdfast.redaction import redact

_MAX_LISTINGS_AT_A_TIME = 16  # half of the connections that an S3 client keeps


class FileSystemCompletedCheckpointStorageLocation(msgspec.Struct, frozen=True):
    """A directory with a metadata file in it.

    Attributes:
        external_pointer: URI of the directory.
        metadata_handle: The metadata file.
        is_link: Whether the directory is a link: the files of its target don't belong to the job.
    """

    external_pointer: str
    metadata_handle: FileStateHandle
    is_link: bool = False

    @classmethod
    def at(
        cls, metadata_file: FileStatus, *, is_link: bool = False
    ) -> "FileSystemCompletedCheckpointStorageLocation":
        """Return the completed checkpoint with this metadata file."""
        handle = FileStateHandle(metadata_file.uri, metadata_file.size)
        return cls(uripath.parent(metadata_file.uri), handle, is_link)

    def dispose_storage_location(self) -> None:
        if uripath.name(self.metadata_handle.uri) != METADATA_FILE:
            # Resolved from a pointer to a file; its directory may hold anything.
            message = f"only a directory with a {METADATA_FILE} file can be disposed of"
            raise InvalidRequestError(message, self.metadata_handle.uri)
        if uripath.local_path(self.external_pointer) == "/":
            message = "a root directory can't be disposed of: all of the store would be deleted"
            raise InvalidRequestError(message, self.external_pointer)
        file_system = file_system_for(self.external_pointer)
        if not self.is_link:
            # First, so that no one finds a checkpoint with some of its files deleted.
            file_system.delete([self.metadata_handle.uri])
        if is_dedicated(self.external_pointer):
            file_system.delete_tree(self.external_pointer)
        else:
            file_system.delete_empty_directory(self.external_pointer)


def find_metadata(
    entries: Iterable[FileStatus],
) -> FileSystemCompletedCheckpointStorageLocation | None:
    """Return the completed checkpoint among the entries of its directory; None if there is no metadata file.

    A directory of that name does not count: Spark has such ones in the `state` of a `checkpointLocation`.
    """
    for entry in entries:
        if uripath.name(entry.uri) == METADATA_FILE and not entry.is_directory:
            return FileSystemCompletedCheckpointStorageLocation.at(entry)
    return None


def resolve_pointer(
    pointer: str | PathLike[str],
) -> FileSystemCompletedCheckpointStorageLocation:
    """Find a checkpoint or savepoint by its directory or its metadata file.

    Raises:
        CheckpointNotFoundError: Nothing is there, or a directory without `_metadata`.
        InvalidRequestError: The pointer is not a valid URI.
    """
    uri = uripath.checkpoint_directory(pointer)
    if uripath.scheme(uri) != "file":  # where the marker is an ordinary name
        uri = uripath.checkpoint_directory(without_marker(uri))
    file_system = file_system_for(uri)
    metadata = find_metadata(file_system.list(uri))
    if metadata is not None:
        return metadata
    entries = [entry for entry in file_system.list(uripath.parent(uri)) if entry.uri == uri]
    if not entries:
        raise CheckpointNotFoundError("no such checkpoint or savepoint", uri, kind="no-checkpoint")
    if entries[0].is_directory:
        message = (
            f"directory has no {METADATA_FILE}; name the directory of a checkpoint, chk-<number> below its "
            "job's, or of a savepoint"
        )
        raise CheckpointNotFoundError(message, uri, kind="no-checkpoint")
    return FileSystemCompletedCheckpointStorageLocation.at(entries[0])


def load_checkpoint(location: CompletedCheckpointStorageLocation) -> CompletedCheckpoint:
    """Read and verify the metadata of a completed checkpoint.

    Raises:
        CheckpointCorruptedError: Damaged, cut off, another type of file, or the metadata of another checkpoint or job
            than its directory is named after; or it names a file in a place where the checkpoint can't have one.
        UnsupportedFormatError: Written by a newer version.
        CheckpointNotFoundError: The checkpoint was deleted.
        StorageUnavailableError: The metadata can't be read.
    """
    pointer = location.external_pointer
    uri = getattr(location.metadata_handle, "uri", pointer)
    with location.metadata_handle.open_input_stream() as stream:
        content = stream.read()
    metadata = decode_metadata(content, pointer, uri=uri)
    mismatch = location_mismatch(metadata, pointer)
    if mismatch is not None:
        home = f"{metadata.job_id}/chk-{metadata.checkpoint_id}"
        message = (
            f"{mismatch}: it was moved, or its directory renamed; move its directory back to {home}, or "
            "give it another name than chk-<number> to use it on its own"
        )
        raise CheckpointCorruptedError(message, uri, kind="moved")
    stray = find_stray_file(metadata, pointer)
    if stray is not None:
        message = f"metadata names {redact(stray)!a}, where this checkpoint can't have a file"
        raise CheckpointCorruptedError(message, uri)
    return CompletedCheckpoint(metadata, location, len(content))


def list_all(directories: Sequence[str]) -> list[FileStatus]:
    """Return the entries of many directories of one store. Raises as `list_each` does."""
    return [entry for entries in list_each(directories).values() for entry in entries]


def list_each(directories: Sequence[str]) -> dict[str, list[FileStatus]]:
    """Return the entries of each of many directories of one store.

    Raises:
        StorageUnavailableError: The store does not answer, or Python is exiting.
    """
    if not directories:
        return {}
    file_system = file_system_for(directories[0])
    inside = map_in_parallel(
        lambda uri: list(file_system.list(uri)), directories, max_threads=_MAX_LISTINGS_AT_A_TIME
    )
    return dict(zip(directories, inside, strict=True))
