"""List many directories at a time."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from holdfast.common import uripath
from holdfast.errors import StorageUnavailableError
from holdfast.locations.file_systems import FileStatus, file_system_for

_AT_A_TIME = 16  # half of the connections that an S3 client keeps


def list_all(directories: Sequence[str]) -> list[FileStatus]:
    """The entries of all these directories, which are of one store.

    Raises:
        StorageUnavailableError: No threads can be started, because the interpreter is going down.
    """
    if not directories:
        return []
    listing = file_system_for(directories[0]).list
    if len(directories) == 1:
        return list(listing(directories[0]))
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-list")
    try:
        asked = [_submitted(pool, listing, one) for one in directories]
        return [entry for one in asked for entry in one.result()]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use


def list_each(directories: Sequence[str]) -> dict[str, list[FileStatus]]:
    """The entries of each of these directories, which are of one store. Raises as `list_all` does."""
    inside: dict[str, list[FileStatus]] = {uri: [] for uri in directories}
    for entry in list_all(directories):
        inside[uripath.parent(entry.uri)].append(entry)
    return inside


def _submitted(
    pool: ThreadPoolExecutor, listing: Callable[[str], Iterable[FileStatus]], directory: str
) -> Future[Iterable[FileStatus]]:
    try:
        # In a copy of the context: the deadline of retries is in it.
        return pool.submit(copy_context().run, listing, directory)
    except RuntimeError as error:
        # One after the other would hold up the process's end, by as many requests.
        message = "no threads start to list directories, as when Python ends; try again later"
        raise StorageUnavailableError(message, directory) from error
