"""An open database: column families by name, in a directory that no other process uses.

    <directory>/<32 hex digits>.rocksdb/     what a process works in; nothing in it outlives the process
        held                                 locked for as long as the process has it
        db/                                  RocksDB's own files
        snapshot-<n>/                        files of a snapshot, as hard links, until it is written
    <directory>/<name>                       a copy of a sorted file, which databases have as a hard link

A lock ends with the process that has it, however it ends: who comes next deletes what nobody holds.
A copy that RocksDB says is damaged is deleted, so that the next attempt fetches it from storage.
"""

import fcntl
import os
import re
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from rocksdict import AccessType, Checkpoint, DbClosedError, Rdict, WriteBatch, WriteOptions

from holdfast.backends.keyed.rocksdb.budget import RocksDBSettings, database_options
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

_SUFFIX = ".rocksdb"
_UNLOCKED = ".unlocked"
_DEFAULT = "default"
"""RocksDB has this column family always; no state lies in it."""

_PREFIX = "state/"
_SORTED_FILE = re.compile(rf"/[^:]*?{re.escape(_SUFFIX)}/[\w-]+/\w+\.sst")
_UNLOGGED = WriteOptions()
_UNLOGGED.disable_wal = True  # type: ignore[assignment,method-assign]  # its stub is wrong


class Family:
    """The rows of one column family.

    Args:
        database: The database.
        name: The column family's name.
    """

    def __init__(self, database: Rdict, name: str) -> None:
        self._rows = database.get_column_family(name)
        self._handle = database.get_column_family_handle(name)
        self._database = database

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key; None where there is none."""
        with translated():
            return list(self._rows.get(list(keys)) or ())

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put values, and delete keys."""
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        with translated():
            self._database.write(batch, _UNLOGGED)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Delete the keys `first` <= key < `end`, without reading them."""
        with translated():
            self._rows.delete_range(first, end, _UNLOGGED)

    def ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of ranges `first` <= key < `end`, as they are now."""
        with translated():
            rows = self._rows.iter()
            for first, end in ranges:
                rows.seek(first)
                while rows.valid():
                    key = rows.key()
                    if key >= end:
                        break
                    yield key, rows.value()
                    rows.next()
                rows.status()  # a damaged block ends the rows, too


class Database:
    """A database that this process has open.

    Args:
        holder: The directory that it is in, which is deleted when it is closed; None of one that belongs to another.
        path: Where the database has its files.
        settings: What it is opened with.
        is_read_only: Whether nothing will be written.

    Raises:
        CheckpointCorruptedError: A file is damaged.
        StorageFullError: The disk is full.
        StorageUnavailableError: The disk doesn't do it.
    """

    def __init__(
        self,
        path: str,
        settings: RocksDBSettings,
        *,
        holder: "HeldDirectory | None" = None,
        is_read_only: bool = False,
    ) -> None:
        self.path = path
        self._settings = settings
        options = database_options(settings)
        names = {_DEFAULT}
        access = AccessType.read_only(False) if is_read_only else AccessType.read_write()
        with translated():
            if os.path.exists(os.path.join(path, "CURRENT")):
                names |= set(Rdict.list_cf(path, options))
            families = {name: database_options(settings) for name in names}
            self._database = Rdict(path, options, families, access)
        self._families = {
            name.removeprefix(_PREFIX): Family(self._database, name) for name in names - {_DEFAULT}
        }
        self._close = weakref.finalize(self, _closed, self._database, holder)

    @property
    def names(self) -> frozenset[str]:
        """The states that there are."""
        return frozenset(self._families)

    def family(self, name: str) -> Family:
        """The rows of a state; none if it is new."""
        family = self._families.get(name)
        if family is None:
            with translated():
                self._database.create_column_family(
                    _PREFIX + name, database_options(self._settings)
                )
            family = self._families[name] = Family(self._database, _PREFIX + name)
        return family

    def drop(self, name: str) -> None:
        """Delete a state, if it is there, without reading it."""
        if self._families.pop(name, None) is not None:
            with translated():
                self._database.drop_column_family(_PREFIX + name)

    def capture(self, path: str) -> None:
        """Make a database of what there is now, in a new directory on the same disk: its files are hard links."""
        with translated():
            Checkpoint(self._database).create_checkpoint(path)

    def close(self) -> None:
        """Close it, and delete its directory if it has one of its own. May be called twice."""
        self._families = {}
        self._close()


class HeldDirectory:
    """A directory that is this process' own, until it is released or the process ends.

    Args:
        parent: Where it is made; those of processes that have ended are deleted from there.

    Raises:
        StorageFullError: The disk is full.
        StorageUnavailableError: The disk doesn't do it.
    """

    def __init__(self, parent: str) -> None:
        with translated():
            os.makedirs(parent, mode=0o700, exist_ok=True)
            delete_abandoned(parent)
            unlocked = os.path.join(parent, uuid.uuid4().hex + _UNLOCKED)
            os.mkdir(unlocked, mode=0o700)
            self._lock = open(os.path.join(unlocked, "held"), "xb")  # noqa: SIM115  # until it is released
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Only now do others know it: before, they would take it for abandoned.
            self.path = unlocked.removesuffix(_UNLOCKED) + _SUFFIX
            os.rename(unlocked, self.path)

    def release(self) -> None:
        """Delete it. Never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def delete_abandoned(parent: str) -> None:
    """Delete the directories there that no process holds."""
    for name in os.listdir(parent):
        if name.endswith(_SUFFIX):
            path = os.path.join(parent, name)
            with suppress(OSError), open(os.path.join(path, "held"), "rb") as lock:
                if _is_free(lock):
                    shutil.rmtree(path, ignore_errors=True)


def _is_free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _closed(database: Rdict, holder: HeldDirectory | None) -> None:
    database.close()
    if holder is not None:
        holder.release()


@contextmanager
def translated() -> Iterator[None]:
    """Make errors of RocksDB and of the disk ours. Which they are RocksDB says in the text alone."""
    try:
        yield
    except DbClosedError as error:
        raise InvalidRequestError("the backend is closed") from error
    except Exception as error:
        failure = _error_for(error)
        if failure is None:
            raise
        raise failure from error


def _error_for(error: Exception) -> Exception | None:
    text = str(error)
    if isinstance(error, OSError) or text.startswith("IO error"):
        if "No space left" in text or "Disk quota" in text:
            return StorageFullError(f"RocksDB: {text}")
        return StorageUnavailableError(f"RocksDB: {text}")
    if text.startswith("Corruption"):
        _delete_copies(text)
        return CheckpointCorruptedError(f"RocksDB: {text}")
    return None


def _delete_copies(text: str) -> None:
    """Delete the copies of the sorted files that an error of RocksDB names. Never raises."""
    for path in _SORTED_FILE.findall(text):
        directory = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        with suppress(OSError):
            damaged = os.stat(path)
            with os.scandir(directory) as entries:
                copies = [entry for entry in entries if entry.inode() == damaged.st_ino]
            for copy in copies:
                if os.path.samestat(copy.stat(), damaged):
                    os.unlink(copy)
