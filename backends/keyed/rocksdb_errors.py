"""Mapping of RocksDB and disk errors. RocksDB's errors differ in their text only.

When RocksDB reports a corrupted file, the host's copies of all files of that database are deleted, and the next attempt
downloads them again: RocksDB reports only the first corrupted file that it reads, and others may be corrupted as well.
The stored file may be, too, for example if storage is on the same disk. So it is verified, and the error names it if it
is corrupted.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from rocksdict import DbClosedError

from holdfast.common import FULL_ERRNOS, shortage_of
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    ResourceExhaustedError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.coordination import verify_files
from holdfast.locations.handles import StreamStateHandle

_NONE: Mapping[str, StreamStateHandle] = {}
_SORTED_FILE = re.compile(r"/[^:]*?\.rocksdb/[\w-]+/\w+\.sst")
_SHORTAGES = ("Too many open files", "Cannot allocate memory", "Resource temporarily unavailable")
_FULL = ("No space left", "Disk quota")


@contextmanager
def map_errors(directory: str, stored: Mapping[str, StreamStateHandle] = _NONE) -> Iterator[None]:
    """Raise RocksDB and disk errors as a `CheckpointError` at a location, or at a stored file of a database."""
    try:
        yield
    except CheckpointError:
        raise
    except DbClosedError as error:
        raise InvalidRequestError("the backend is closed") from error
    except Exception as error:
        failure = _error_for(error, directory, stored)
        if failure is None:
            raise
        raise failure from error


def _error_for(
    error: Exception, directory: str, stored: Mapping[str, StreamStateHandle]
) -> CheckpointError | None:
    text = str(error)
    is_full = getattr(error, "errno", None) in FULL_ERRNOS
    if is_full or any(words in text for words in _FULL):
        return StorageFullError(f"no space left for RocksDB's files ({text})", directory)
    shortage = shortage_of(error, directory)
    if shortage is not None:
        return shortage
    if any(words in text for words in _SHORTAGES):  # such a text can begin with "Corruption"
        return ResourceExhaustedError(f"RocksDB: {text}; nothing is damaged", directory)
    if isinstance(error, OSError) or text.startswith("IO error"):
        return StorageUnavailableError(f"RocksDB: {text}", directory)
    if text.startswith("Corruption"):
        return _corruption_error(text, directory, stored)
    return None


def _corruption_error(
    text: str, directory: str, stored: Mapping[str, StreamStateHandle]
) -> CheckpointCorruptedError:
    """Return an error that names the stored file, or else the host's, whose copies are deleted."""
    named = _SORTED_FILE.search(text)
    if named is None:
        return CheckpointCorruptedError(f"RocksDB: {text}", directory)
    deleted = _delete_copies(named[0])
    source = stored.get(os.path.basename(named[0]))
    for file in verify_files([] if source is None else [source]):
        if isinstance(file.failure, CheckpointCorruptedError):
            return file.failure
    if deleted:
        return CheckpointCorruptedError(f"RocksDB: {text}{deleted}", directory, kind="local-copy")
    return CheckpointCorruptedError(f"RocksDB: {text}", directory)


def _delete_copies(corrupted: str) -> str:
    """Delete the host's copies of a database's files, if the corrupted file is a copy. Never raises.

    Returns an addition to the error's message: copies have the names of stored files, which RocksDB's message lacks.
    """
    deleted: list[str] = []
    with suppress(OSError):
        copies = _find_copies(os.path.dirname(corrupted))
        if corrupted in copies:
            for file in (corrupted, *(copies.keys() - {corrupted})):
                os.unlink(copies[file])
                deleted.append(copies[file])
    if not deleted:
        return ""
    others = f" and {len(deleted) - 1} others of this database" if len(deleted) > 1 else ""
    return f"; deleted the host's copy {deleted[0]}{others}: try again"


def _find_copies(database: str) -> dict[str, str]:
    """Return the paths of the host's copies of a database's sorted files, by the files' paths."""
    with os.scandir(database) as entries:
        files = {entry.inode(): entry.path for entry in entries if entry.name.endswith(".sst")}
    with os.scandir(os.path.dirname(os.path.dirname(database))) as entries:
        return {
            files[entry.inode()]: entry.path
            for entry in entries
            if entry.inode() in files and os.path.samefile(entry, files[entry.inode()])
        }
