"""Working directories on this host that are locked by their process.

    <parent>/<32 hex digits>.rocksdb/     the working directory of a process; its content doesn't outlive the process
        held                              locked by the process: created first, deleted last

The system releases a lock when its process ends, and the next process deletes unlocked directories. A directory can be
deleted between its creation and the lock, so its creator checks after locking that it still exists.
"""

import fcntl
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from typing import IO

from holdfast.backends.keyed.rocksdb_errors import map_errors
from holdfast.errors import StorageUnavailableError

SUFFIX = ".rocksdb"
_HELD = "held"


class LockedDirectory:
    """A new directory that this process has locked, until it is released or the process ends.

    Directories of ended processes are deleted from its parent, a subdirectory of the system's temporary
    directory without one.

    Raises:
        StorageFullError: The disk is full.
        StorageUnavailableError: The disk failed, or another user owns the temporary directory.
    """

    def __init__(self, parent: str | None) -> None:
        with map_errors(parent or tempfile.gettempdir()):
            if parent is None:
                parent = _user_directory()
            else:
                os.makedirs(parent, mode=0o700, exist_ok=True)
            delete_abandoned(parent)
            self._lock = None
            while self._lock is None:
                self.path = os.path.join(parent, uuid.uuid4().hex + SUFFIX)
                self._lock = _create_locked(self.path)

    def release(self) -> None:
        """Delete the directory. Never raises."""
        with suppress(OSError):
            _delete(self.path)
        if self._lock is not None:
            self._lock.close()


def delete_abandoned(parent: str) -> None:
    """Delete the directories in a parent that no process has locked. Never raises."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if name.endswith(SUFFIX):
                with suppress(OSError):
                    _delete_if_free(os.path.join(parent, name))


def _user_directory() -> str:
    """Return this user's temporary directory, after a check that no other user owns it and could change its content."""
    path = os.path.join(tempfile.gettempdir(), f"holdfast-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != os.getuid():
        message = "another user owns this directory; set TMPDIR to another temporary directory"
        raise StorageUnavailableError(message, path)
    return path


def _create_locked(path: str) -> IO[bytes] | None:
    """Create a directory and return its lock; None if another process deleted it as abandoned in between."""
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
        lock = open(os.path.join(path, _HELD), "rb")  # noqa: SIM115  # closed by `with` below
    except FileNotFoundError:
        os.rmdir(path)  # its process ended before it locked the directory, or while it deleted it
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _delete(path)


def _delete(path: str) -> None:
    """Delete a locked directory, the lock last: if the process is killed, the rest is still seen as abandoned."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != _HELD:
                os.unlink(entry.path)
    os.unlink(os.path.join(path, _HELD))
    os.rmdir(path)
