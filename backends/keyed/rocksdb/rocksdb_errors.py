"""Errors of RocksDB and of the disk, made ours. Which they are RocksDB says in the text alone.

A copy that RocksDB says is damaged is deleted, so that the next attempt fetches it from storage.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rocksdict import DbClosedError

from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

_SORTED_FILE = re.compile(r"/[^:]*?\.rocksdb/[\w-]+/\w+\.sst")
_FULL = ("No space left", "Disk quota")


@contextmanager
def translated(directory: str) -> Iterator[None]:
    """Raise errors of RocksDB and of the disk as ours.

    Args:
        directory: Where it happens, for errors.
    """
    try:
        yield
    except CheckpointError:
        raise
    except DbClosedError as error:
        raise InvalidRequestError("the backend is closed") from error
    except Exception as error:
        failure = _error_for(error, directory)
        if failure is None:
            raise
        raise failure from error


def _error_for(error: Exception, directory: str) -> CheckpointError | None:
    text = str(error)
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if is_full or any(words in text for words in _FULL):
        return StorageFullError(f"no room left for RocksDB's files ({text})", directory)
    if isinstance(error, OSError) or text.startswith("IO error"):
        return StorageUnavailableError(f"RocksDB: {text}", directory)
    if text.startswith("Corruption"):
        copies = _deleted_copies(text)
        ending = "".join(f"; the host's copy {copy} is deleted: try again" for copy in copies)
        return CheckpointCorruptedError(f"RocksDB: {text}{ending}", directory)
    return None


def _deleted_copies(text: str) -> list[str]:
    """Delete the copies of the sorted files that an error of RocksDB names. Never raises.

    Returns:
        Where they were. Their names are among the names of stored files; those that RocksDB gives are of its directory.
    """
    deleted: list[str] = []
    for path in _SORTED_FILE.findall(text):
        directory = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        with suppress(OSError):
            damaged = os.stat(path)
            with os.scandir(directory) as entries:
                copies = [entry for entry in entries if entry.inode() == damaged.st_ino]
            for copy in copies:
                if os.path.samestat(copy.stat(), damaged):
                    os.unlink(copy)
                    deleted.append(copy.path)
    return deleted
