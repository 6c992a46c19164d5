"""A directory on this host that is a process' own until the process ends, however it ends.

    <parent>/<32 hex digits>.rocksdb/     a process works in it; nothing in it outlives the process
        held                              locked for as long as the process has it: made first, deleted last

A lock ends with the process that has it: who comes next deletes what nobody holds. So that nobody deletes what is
just being made, who has made a directory looks, once it has the lock, whether the directory is there still.
"""

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from holdfast.backends.keyed.rocksdb.rocksdb_errors import translated
from holdfast.errors import StorageUnavailableError

SUFFIX = ".rocksdb"
_HELD = "held"


class HeldDirectory:
    """A directory that is this process' own, until it is released or the process ends.

    Args:
        parent: Where it is made; those of processes that have ended are deleted from there. None takes the system's
            directory for temporary files.

    Raises:
        StorageFullError: The disk is full.
        StorageUnavailableError: The disk doesn't do it, or the system's directory has one of another user in its place.
    """

    def __init__(self, parent: str | None) -> None:
        with translated(parent or tempfile.gettempdir()):
            if parent is None:
                parent = _of_this_user()
            else:
                os.makedirs(parent, mode=0o700, exist_ok=True)
            delete_abandoned(parent)
            self._lock = None
            while self._lock is None:
                self.path = os.path.join(parent, uuid.uuid4().hex + SUFFIX)
                self._lock = _made(self.path)

    def release(self) -> None:
        """Delete it. Never raises."""
        with suppress(OSError):
            _delete(self.path)
        if self._lock is not None:
            self._lock.close()


def delete_abandoned(parent: str) -> None:
    """Delete the directories there that no process holds. Never raises."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if name.endswith(SUFFIX):
                with suppress(OSError):
                    _delete_if_free(os.path.join(parent, name))


def _of_this_user() -> str:
    """The directory among those for temporary files that is this user's; whoever else had it could change what is in it."""
    path = os.path.join(tempfile.gettempdir(), f"holdfast-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != os.getuid():
        message = (
            "another user has made this directory; set TMPDIR to another place for temporary files"
        )
        raise StorageUnavailableError(message, path)
    return path


def _made(path: str) -> IO[bytes] | None:
    """The lock of a new directory; None if another process took it for abandoned."""
    os.mkdir(path, mode=0o700)
    try:
        lock = open(os.path.join(path, _HELD), "xb")  # noqa: SIM115  # until it is released
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(os.path.join(path, _HELD)), os.fstat(lock.fileno())):
            return lock
    lock.close()
    return None


def _delete_if_free(path: str) -> None:
    try:
        lock = open(os.path.join(path, _HELD), "rb")  # noqa: SIM115
    except FileNotFoundError:
        os.rmdir(path)  # its process ended before it had a lock, or after it deleted all else
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _delete(path)


def _delete(path: str) -> None:
    """Delete a directory whose lock is held, the lock last: who is killed meanwhile leaves what is seen as abandoned."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != _HELD:
                os.unlink(entry.path)
    os.unlink(os.path.join(path, _HELD))
    os.rmdir(path)


@contextmanager
def held_directory(parent: str | None = None) -> Iterator[str]:
    """The path of a directory that is deleted at the end of the block. Raises as `HeldDirectory`."""
    held = HeldDirectory(parent)
    try:
        yield held.path
    finally:
        held.release()
