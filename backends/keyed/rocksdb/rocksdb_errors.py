"""Errors of RocksDB and of the disk, made ours. Which they are RocksDB says in the text alone.

Where RocksDB says that a file is damaged, the host's copies of all files of that database are deleted, and the next
attempt fetches them from storage: RocksDB names only the first one that it meets, and what has damaged that may have
damaged others. It may have damaged the stored file, too, which a copy is where storage is on the host's disk: so that
file is read once more, and if it is damaged the error names it.
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
from holdfast.locations.coordination import verify
from holdfast.locations.handles import StreamStateHandle

_NONE: Mapping[str, StreamStateHandle] = {}
_SORTED_FILE = re.compile(r"/[^:]*?\.rocksdb/[\w-]+/\w+\.sst")
_LACKING = ("Too many open files", "Cannot allocate memory", "Resource temporarily unavailable")
_FULL = ("No space left", "Disk quota")


@contextmanager
def translated(directory: str, stored: Mapping[str, StreamStateHandle] = _NONE) -> Iterator[None]:
    """Raise errors of RocksDB and of the disk as ours.

    Args:
        directory: Where it happens, for errors.
        stored: Files that the database has from storage, by their names in the database.
    """
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
    if any(words in text for words in _LACKING):  # RocksDB may begin such a text with Corruption
        return ResourceExhaustedError(f"RocksDB: {text}; nothing is damaged", directory)
    if isinstance(error, OSError) or text.startswith("IO error"):
        return StorageUnavailableError(f"RocksDB: {text}", directory)
    if text.startswith("Corruption"):
        return _damage(text, directory, stored)
    return None


def _damage(
    text: str, directory: str, stored: Mapping[str, StreamStateHandle]
) -> CheckpointCorruptedError:
    """What is damaged: a stored file, or what the host has of it, whose copies are deleted."""
    named = _SORTED_FILE.search(text)
    if named is None:
        return CheckpointCorruptedError(f"RocksDB: {text}", directory)
    deleted = _without_copies(named[0])
    source = stored.get(os.path.basename(named[0]))
    for file in verify([] if source is None else [source]):
        if isinstance(file.failure, CheckpointCorruptedError):
            return file.failure
    return CheckpointCorruptedError(f"RocksDB: {text}{deleted}", directory)


def _without_copies(damaged: str) -> str:
    """Delete the host's copies of a database, of which a file is damaged, if that is among them. Never raises.

    Returns:
        What to say of it. Copies have the names of stored files; those that RocksDB gives are of its directory.
    """
    deleted: list[str] = []
    with suppress(OSError):
        copies = _copies_of(os.path.dirname(damaged))
        if damaged in copies:
            for file in (damaged, *(copies.keys() - {damaged})):
                os.unlink(copies[file])
                deleted.append(copies[file])
    if not deleted:
        return ""
    others = f", and {len(deleted) - 1} others of this database" if len(deleted) > 1 else ""
    return f"; the host's copy {deleted[0]} is deleted{others}: try again"


def _copies_of(database: str) -> dict[str, str]:
    """Where the host's copies are of the sorted files of a database, by the files' paths."""
    with os.scandir(database) as entries:
        files = {entry.inode(): entry.path for entry in entries if entry.name.endswith(".sst")}
    with os.scandir(os.path.dirname(os.path.dirname(database))) as entries:
        return {
            files[entry.inode()]: entry.path
            for entry in entries
            if entry.inode() in files and os.path.samefile(entry, files[entry.inode()])
        }
