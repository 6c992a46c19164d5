"""Files of checkpoints on the disk of the host: a cache that all tasks of an application on the host share.

    <SPARK_LOCAL_DIRS>/holdfast/
        <digest of job and operator>/
            <digest of a state file's handle>    a copy of a state file, as long as it is needed
            <name of a segment>                  a copy of a segment, written by `holdfast.backends.keyed`
            <name of a segment>.partial          a sparse copy, which has some blocks of the segment
            <subtask>.<checkpoint id>            a list: the names of the files that the subtask needs
            ….inprogress                         a file in progress

The name of a file is unique to its content, and checksums are verified when it is read. So a copy can be missing or
corrupted, but never stale. Files without an entry in a list are deleted: at its end each task replaces the list of its
subtask by the files of the checkpoint that it restored and of the checkpoint that it wrote.
"""

import errno
import hashlib
import logging
import mmap
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Self, cast

import msgspec
import pyarrow as pa

from holdfast.common import Clock, ProcessCache, replace_file, shortage_of, uripath
from holdfast.errors import CheckpointError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from holdfast.spark.subtask.duplicating_stream import (
    IN_PROGRESS,
    DuplicatingOutputStream,
    LocalOutputStream,
    make_directory,
    unlink,
)

_log = logging.getLogger(__name__)

_DIRECTORY = "holdfast"
_BLOCK_MANAGER = "blockmgr-"
_FILE = re.compile(r"([0-9a-f]{32})(\.partial)?")
_LIST = re.compile(r"[0-9]+\.[0-9]+")
_CHUNK_BYTES = 8 << 20
_STATUS_BLOCK_BYTES = 512

_MAX_UNLISTED_S = 3600.0
"""A younger file may belong to a task that has not written its list yet."""

_MAX_UNUSED_S = 24 * 3600.0
"""A subtask with an older list runs on another host, or not at all; an executor with an older directory is dead."""

# Since Linux 5.14: reads everything that is mapped at once, and reports errors, which would kill the process later.
_MADV_POPULATE_READ = 22

_COPY_ERRORS = (OSError, ValueError, CheckpointError)
"""Errors after which a file is used without a copy."""

_CLEANED: ProcessCache[str, None] = ProcessCache()
"""The directories whose neighbors, of dead executors, this process has deleted."""


def local_directory(environment: Mapping[str, str], clock: Clock) -> str | None:
    """Return the directory for files that tasks of an application share on a host; None if Spark has none.

    Spark or YARN deletes it when the application ends. It may not exist yet.
    """
    parent = environment.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not parent:
        return None
    if "CONTAINER_ID" in environment or "SPARK_EXECUTOR_DIRS" in environment:
        # In YARN and standalone clusters, the directory of the application is the parent of the executor's.
        parent = os.path.dirname(parent)
    directory = os.path.join(parent, _DIRECTORY)
    _CLEANED.get(directory, partial(_delete_directories_of_dead_executors, directory, clock))
    return directory


class OpenedStateHandle(FileStateHandle, frozen=True, kw_only=True):
    """A state file's handle inside of a task, which a function opens; never stored."""

    opener: Callable[[FileStateHandle], BinaryIO]

    @classmethod
    def of(cls, file: FileStateHandle, opener: Callable[[FileStateHandle], BinaryIO]) -> Self:
        return cls(file.uri, file.size, file.checksum, opener=opener)

    def open_input_stream(self) -> BinaryIO:
        return self.opener(FileStateHandle(self.uri, self.size, self.checksum))


class FetchMeter:
    """Counts reads of segments from storage. Several threads may share it.

    Attributes:
        bytes: Bytes that were read.
        requests: Reads that were begun.
        seconds: Time in which at least one read was in progress.
    """

    def __init__(self, clock: Clock) -> None:
        self.bytes = self.requests = 0
        self.seconds = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._in_progress = 0
        self._since_s = 0.0

    @contextmanager
    def measure(self, size: int) -> Iterator[None]:
        """Count a read of `size` bytes, which the block does."""
        with self._lock:
            self.requests += 1
            if not self._in_progress:
                self._since_s = self._clock.monotonic_s()
            self._in_progress += 1
        try:
            yield
        finally:
            with self._lock:
                self.bytes += size
                self._in_progress -= 1
                if not self._in_progress:
                    self.seconds += self._clock.monotonic_s() - self._since_s


class FetchedStateHandle(FileStateHandle, frozen=True, kw_only=True):
    """A segment's handle inside of a task, which counts reads from storage; never stored."""

    meter: FetchMeter

    @classmethod
    def of(cls, file: FileStateHandle, meter: FetchMeter) -> Self:
        return cls(file.uri, file.size, file.checksum, meter=meter)

    def open_input_stream(self) -> BinaryIO:
        with self.meter.measure(self.size):
            return FileStateHandle(self.uri, self.size, self.checksum).open_input_stream()

    def read_range(self, start: int, end: int) -> memoryview:
        with self.meter.measure(end - start):
            return FileStateHandle(self.uri, self.size).read_range(start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """The files of an operator on this host, as one task uses them, which writes a checkpoint.

    Attributes:
        root: The directory of all operators; created when it is needed.
        operator: Identifies the operator among all operators of the application; 32 hex digits.
        max_bytes: Approximate maximum size of all files; the least recently needed ones are deleted first.
            A file that is a hard link to a file of storage does not count.
    """

    root: str
    operator: str
    subtask: int
    checkpoint_id: int
    max_bytes: int
    clock: Clock

    @property
    def directory(self) -> str:
        return os.path.join(self.root, self.operator)

    def path(self, handle: FileStateHandle) -> str:
        """Return the path of a state file's copy, which may not exist."""
        return os.path.join(self.directory, digest_of(handle))

    def read_through(
        self, stream: StreamStateHandle, on_read: Callable[[str], object]
    ) -> StreamStateHandle:
        """Return a handle that reads from a copy, creates it if necessary, and reports `local` or `storage`."""
        if isinstance(stream, FileStateHandle) and stream.checksum is not None:
            return OpenedStateHandle.of(stream, partial(self.open, on_read=on_read))
        return stream

    def duplicate(self, factory: CheckpointStreamFactory) -> CheckpointStreamFactory:
        """Return a factory whose streams leave copies of the files of a single checkpoint."""
        return _DuplicatingStreamFactory(factory, self)

    def open(self, handle: FileStateHandle, on_read: Callable[[str], object]) -> BinaryIO:
        """Open a state file, from its copy if that is valid; all errors are those of the file."""
        path = self.path(handle)
        try:
            reader = _open_verified(path, handle)
        except FileNotFoundError:
            pass
        except _COPY_ERRORS as error:
            _log.warning("local copy %s of state can't be used: %s", path, error)
            if shortage_of(error) is None:
                unlink(path)
        else:
            on_read("local")
            return reader
        on_read("storage")
        return self._copy_and_open(handle)

    def keep(self, handle: FileStateHandle, copy: LocalOutputStream) -> None:
        """Make a stream the copy of a state file. Raises `OSError`, `CheckpointError`."""
        copy.finish()
        try:
            os.replace(copy.path, self.path(handle))
        except BaseException:
            unlink(copy.path)
            raise

    def new_copy(self) -> LocalOutputStream:
        return LocalOutputStream(self.directory, max_bytes=self.max_bytes)

    def link(self, segments: Iterable[tuple[str, str]]) -> None:
        """Create copies of segments in storage on the same disk, as hard links, by name and URI. Never raises."""
        local = [(name, uri) for name, uri in segments if uri.startswith("file:")]
        try:
            if local:
                make_directory(self.directory)
            for name, uri in local:
                with suppress(FileExistsError):
                    os.link(uripath.local_path(uri), os.path.join(self.directory, name))
        except OSError as error:
            _log.debug("segments are copied to local disk when they are needed: %s", error)

    def finish(self, names: Collection[str]) -> int:
        """Record the files of the restored and the written state; delete those of no subtask. Never raises.

        Returns the bytes that more files may have.
        """
        if not os.path.isdir(self.directory):
            return self.max_bytes  # all of them are in memory
        try:
            with replace_file(self._list) as in_progress, open(in_progress, "x") as file:
                file.write("\n".join(sorted(names)))
            self._delete_unneeded()
            room_bytes = self._make_room()
            os.utime(self.root)  # otherwise other executors count this one as dead after a while
        except OSError as error:
            _log.warning("local copies of state can't be cleaned up: %s", error)
            return 0
        return room_bytes

    def _copy_and_open(self, handle: FileStateHandle) -> BinaryIO:
        """Open a state file without a copy, after copying it if that is possible."""
        stream = handle.open_input_stream()
        if handle.size > self.max_bytes:
            return stream
        try:
            with self.new_copy() as copy:
                for chunk in _chunks(stream, handle.size):
                    copy.write(chunk)
                self.keep(handle, copy)
            reader = _open_verified(self.path(handle), handle)
        except _COPY_ERRORS as error:
            # An error of the file occurs again.
            _log.warning("there will be no local copy of state: %s", error)
            stream.seek(0)
            return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
        return reader

    @property
    def _list(self) -> str:
        return os.path.join(self.directory, f"{self.subtask}.{self.checkpoint_id}")

    def _delete_unneeded(self) -> None:
        now_s = self.clock.now_ms() / 1000
        files = dict(_files(self.directory))
        dropped: set[str] = set()
        needed: set[str] = set()
        for path, status in files.items():
            name = os.path.basename(path)
            if _LIST.fullmatch(name):
                is_superseded = name.partition(".")[0] == str(self.subtask) and path != self._list
                if is_superseded or status.st_mtime < now_s - _MAX_UNUSED_S:
                    dropped |= _read_list(path)
                    unlink(path)
                else:
                    needed |= _read_list(path)
        for path, status in files.items():
            name = os.path.basename(path)
            copied = _copied_name(path)
            is_unlisted = copied is not None and copied not in needed
            is_old = status.st_mtime < now_s - _MAX_UNLISTED_S
            is_part = copied is not None and copied != name
            is_superseded = is_part and path.removesuffix(".partial") in files
            if (
                is_superseded
                or (is_unlisted and copied in dropped)
                or (is_old and (is_unlisted or name.endswith(IN_PROGRESS)))
            ):
                unlink(path)

    def _make_room(self) -> int:
        """Delete the least recently needed files of any operator until the others fit; return the bytes that are left."""
        copies: list[tuple[float, int, str]] = []
        with os.scandir(self.root) as entries:
            directories = [entry.path for entry in entries if entry.is_dir()]
        for directory in directories:
            files = dict(_files(directory))
            needed_s: dict[str, float] = {}
            for path, status in files.items():
                if _LIST.fullmatch(os.path.basename(path)):
                    for name in _read_list(path):
                        needed_s[name] = max(status.st_mtime, needed_s.get(name, 0.0))
            for path, status in files.items():
                copied = _copied_name(path)
                if copied is not None and status.st_nlink == 1:
                    when_s = needed_s.get(copied, status.st_mtime)
                    size = min(status.st_size, status.st_blocks * _STATUS_BLOCK_BYTES)
                    copies.append((when_s, size, path))
        used_bytes = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if used_bytes <= self.max_bytes:
                break
            unlink(path)
            used_bytes -= size
        return self.max_bytes - used_bytes


@dataclass(frozen=True, slots=True)
class _DuplicatingStreamFactory:
    factory: CheckpointStreamFactory
    files: LocalFiles

    @property
    def inline_threshold(self) -> int:
        return self.factory.inline_threshold

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> CheckpointStateOutputStream:
        stream = self.factory.create_checkpoint_state_output_stream(scope)
        if scope is CheckpointedStateScope.SHARED:
            return stream  # a segment, which is written to the host's disk first
        copy = self.files.new_copy()
        return DuplicatingOutputStream(stream, copy, lambda file: self.files.keep(file, copy))


def digest_of(value: object) -> str:
    """Return 32 hex digits that identify a value which MessagePack can encode."""
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=16).hexdigest()


def _chunks(stream: BinaryIO, size: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, size)))
    while count := cast("int", stream.readinto(buffer)):  # type: ignore[attr-defined]  # all have it
        yield buffer[:count]


def _open_verified(path: str, handle: FileStateHandle) -> BinaryIO:
    """Open a copy and verify its checksum; backends use its bytes without copying. Raises one of `_COPY_ERRORS`."""
    data = _map(path)
    handle.check(memoryview(data))
    return cast("BinaryIO", pa.BufferReader(pa.py_buffer(data)))


def _map(path: str) -> mmap.mmap | bytes:
    with open(path, "rb") as file:
        if sys.platform == "linux":
            try:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                mapped.madvise(_MADV_POPULATE_READ)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return mapped
        return file.read()


def _copied_name(path: str) -> str | None:
    """Return the name of the file that a file is a copy of, perhaps of a part; None if it is not a copy."""
    match = _FILE.fullmatch(os.path.basename(path))
    return match[1] if match else None


def _read_list(path: str) -> set[str]:
    """Return the names in a list; empty if another task has replaced the list."""
    try:
        with open(path) as file:
            return set(file.read().split())
    except FileNotFoundError:
        return set()


def _files(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):  # deleted by another task
            yield path, os.stat(path)


def _delete_directories_of_dead_executors(directory: str, clock: Clock) -> None:
    """Delete the directories of killed executors, where Spark doesn't.

    The directory of a running executor has changed within a day; if not, it loses copies.
    """
    block_manager = os.path.dirname(directory)
    if not os.path.basename(block_manager).startswith(_BLOCK_MANAGER):
        return
    dead_since_s = clock.now_ms() / 1000 - _MAX_UNUSED_S
    with suppress(OSError), os.scandir(os.path.dirname(block_manager)) as entries:
        for entry in entries:
            other = os.path.join(entry.path, _DIRECTORY)
            if entry.name.startswith(_BLOCK_MANAGER) and other != directory:
                with suppress(OSError):
                    status = os.lstat(other)
                    if status.st_uid == os.geteuid() and status.st_mtime < dead_since_s:
                        shutil.rmtree(other)
