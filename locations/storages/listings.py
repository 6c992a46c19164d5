"""List many directories at a time."""

from collections.abc import Sequence

from holdfast.common import map_in_parallel, uripath
from holdfast.locations.file_systems import FileStatus, file_system_for

_AT_A_TIME = 16  # half of the connections that an S3 client keeps


def list_all(directories: Sequence[str]) -> list[FileStatus]:
    """The entries of all these directories, which are of one store.

    Raises:
        StorageUnavailableError: The store does not answer, or no threads start because Python is ending.
    """
    if not directories:
        return []
    listing = file_system_for(directories[0]).list
    if len(directories) == 1:
        return list(listing(directories[0]))
    listings = map_in_parallel(
        lambda directory: list(listing(directory)), directories, max_threads=_AT_A_TIME
    )
    return [entry for entries in listings for entry in entries]


def list_each(directories: Sequence[str]) -> dict[str, list[FileStatus]]:
    """The entries of each of these directories, which are of one store. Raises as `list_all` does."""
    inside: dict[str, list[FileStatus]] = {uri: [] for uri in directories}
    for entry in list_all(directories):
        inside[uripath.parent(entry.uri)].append(entry)
    return inside
