"""List many directories at a time."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from holdfast.locations.file_systems import FileStatus, file_system_for

_AT_A_TIME = 16  # half of the connections that an S3 client keeps


def list_all(directories: Sequence[str]) -> list[FileStatus]:
    """The entries of all these directories, which are of one store."""
    if not directories:
        return []
    listing = file_system_for(directories[0]).list
    if len(directories) > 1:
        try:
            return _listed_at_once(listing, directories)
        except RuntimeError:  # the interpreter is going down, and starts no threads
            pass
    return [entry for one in directories for entry in listing(one)]


def _listed_at_once(
    listing: Callable[[str], Iterable[FileStatus]], directories: Sequence[str]
) -> list[FileStatus]:
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-list")
    try:
        # In copies of the context: the deadline of retries is in it.
        asked = [pool.submit(copy_context().run, listing, one) for one in directories]
        return [entry for one in asked for entry in one.result()]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use
