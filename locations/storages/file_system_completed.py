"""A completed checkpoint in a directory."""

from collections.abc import Iterable

import msgspec

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import FileStatus, file_system_for
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages.contract import METADATA_FILE, holds_nothing_else


class FileSystemCompletedCheckpointStorageLocation(msgspec.Struct, frozen=True):
    """A directory with a metadata file in it.

    Attributes:
        external_pointer: URI of the directory.
        metadata_handle: The metadata file.
        is_link: Whether the directory was linked there: what it leads to belongs to somebody else.
    """

    external_pointer: str
    metadata_handle: FileStateHandle
    is_link: bool = False

    def dispose_storage_location(self) -> None:
        if uripath.name(self.metadata_handle.uri) != METADATA_FILE:
            # Found by a pointer to some file; its directory may hold anything.
            message = f"only a directory with a {METADATA_FILE} file can be disposed of"
            raise InvalidRequestError(message, self.metadata_handle.uri)
        if uripath.local_path(self.external_pointer) == "/":
            message = "a root directory can't be disposed of: all of the store would be deleted"
            raise InvalidRequestError(message, self.external_pointer)
        file_system = file_system_for(self.external_pointer)
        if not self.is_link:
            # First of all, so that nobody finds a checkpoint some of whose files are gone.
            file_system.delete([self.metadata_handle.uri])
        if holds_nothing_else(self.external_pointer):
            file_system.delete_tree(self.external_pointer)
        else:
            file_system.delete_empty_directory(self.external_pointer)


def metadata_at(
    uri: str, size: int, *, is_link: bool = False
) -> FileSystemCompletedCheckpointStorageLocation:
    """The completed checkpoint whose metadata is this file."""
    handle = FileStateHandle(uri, size)
    return FileSystemCompletedCheckpointStorageLocation(uripath.parent(uri), handle, is_link)


def metadata_among(
    entries: Iterable[FileStatus],
) -> FileSystemCompletedCheckpointStorageLocation | None:
    """The completed checkpoint that entries of a directory are; None if none of them is a metadata file.

    A directory of that name is none: Spark has such in the `state` of a `checkpointLocation`.
    """
    for entry in entries:
        if uripath.name(entry.uri) == METADATA_FILE and not entry.is_directory:
            return metadata_at(entry.uri, entry.size)
    return None
