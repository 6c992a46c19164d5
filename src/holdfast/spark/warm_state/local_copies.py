"""Copies of state files on the disk of the host, which any task there can map into its memory.

    <digest of the file's handle>.<owner>.<checkpoint id>    a copy
    <random>.inprogress                                      a copy in the making

A copy is named after the handle of its file, which no other file ever has, and checked against it
whenever it is used. So it can be missing or damaged, but never be out of date.
"""

import errno
import hashlib
import logging
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import msgspec
import pyarrow as pa

from holdfast.common import Clock, shortage_of
from holdfast.errors import CheckpointError, StorageFullError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from holdfast.spark.warm_state.copied_stream import CopiedOutputStream
from holdfast.spark.warm_state.local_stream import LocalOutputStream, is_unfinished, unlink

_log = logging.getLogger(__name__)

_UNFINISHED_S = 3600.0
_CHUNK_BYTES = 8 << 20
_COPY = re.compile(r"[0-9a-f]{32}\.[^.]+\.[0-9]+")

# Since Linux 5.14: reads what is mapped at once, and tells of errors, which else kill the process.
_MADV_POPULATE_READ = 22

_NO_COPY = (OSError, ValueError, CheckpointError)
"""Errors of a copy, after which the file does without a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopies:
    """The copies on this host, as one task uses them.

    Attributes:
        directory: Where they are; made when it is needed.
        owner: Tells the subtask from all others of the application; 32 hex digits.
        checkpoint_id: The checkpoint that the task takes. When a copy is kept, copies of the owner are
            deleted that belong neither to this checkpoint nor to the one before.
        max_bytes: About how many bytes all copies may take; the oldest have to go.
        on_read: Called for each file that is read, with the place that it was read from: `local` or `storage`.
        clock: Says how old a copy in the making is.
    """

    directory: str
    owner: str
    checkpoint_id: int
    max_bytes: int
    on_read: Callable[[str], object]
    clock: Clock

    def behind(self, stream: StreamStateHandle) -> StreamStateHandle:
        """The handle, made to read from a copy; if there is no copy, reading leaves one."""
        if isinstance(stream, FileStateHandle) and stream.checksum is not None:
            return _CopiedStateHandle(stream.uri, stream.size, stream.checksum, copies=self)
        return stream

    def beside(self, factory: CheckpointStreamFactory) -> CheckpointStreamFactory:
        """The factory, whose streams leave copies of the files that they write, if these are of one checkpoint alone."""
        return _CopyingStreamFactory(factory, self)

    def open(self, handle: FileStateHandle) -> BinaryIO:
        """The bytes of a file, from a copy if there is a sound one; errors are those of the file alone."""
        for path in self.paths(handle):
            try:
                reader = _checked_reader(path, handle)
            except FileNotFoundError:
                continue  # superseded meanwhile
            except _NO_COPY as error:
                _log.warning("local copy %s of state can't be used: %s", path, error)
                if shortage_of(error) is None:
                    unlink(path)
            else:
                self.on_read("local")
                return reader
        self.on_read("storage")
        return self._through_a_copy(handle)

    def keep(self, handle: FileStateHandle, copy: LocalOutputStream, *, checkpoint_id: int) -> str:
        """Let what was written be the copy of that file; returns its path.

        Raises:
            OSError: The disk did not take the copy.
            CheckpointError: The copy was given up before, or is too large.
        """
        path = os.path.join(self.directory, f"{_name(handle)}.{self.owner}.{checkpoint_id}")
        copy.finish()
        try:
            self._make_room(handle.size)
            os.rename(copy.path, path)
        except BaseException:
            unlink(copy.path)
            raise
        return path

    def new_copy(self) -> LocalOutputStream:
        """A copy in the making."""
        return LocalOutputStream(self.directory, max_bytes=self.max_bytes)

    def _through_a_copy(self, handle: FileStateHandle) -> BinaryIO:
        """The bytes of a file that has no copy; it has a copy from now on, if that is possible."""
        stream = handle.open_input_stream()
        if handle.size > self.max_bytes:
            return stream
        try:
            with self.new_copy() as copy:
                for chunk in _chunks(stream, handle.size):
                    copy.write(chunk)
                path = self.keep(handle, copy, checkpoint_id=self.checkpoint_id - 1)
            reader = _checked_reader(path, handle)
        except _NO_COPY as error:
            # If the file itself has failed, it fails again.
            _log.warning("there will be no local copy of state: %s", error)
            stream.seek(0)
            return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
        return reader

    def paths(self, handle: FileStateHandle) -> list[str]:
        """The copies of a file; several, if several subtasks have read it at the same time."""
        name = _name(handle)
        files = (path for path, _ in self._files())
        return [path for path in files if os.path.basename(path).startswith(name)]

    def _make_room(self, size: int) -> None:
        """Delete copies that are superseded, then the oldest, until so many bytes more fit."""
        if size > self.max_bytes:
            message = f"state of {size} bytes exceeds the limit for copies, {self.max_bytes}"
            raise StorageFullError(message)
        needed = {str(self.checkpoint_id - 1), str(self.checkpoint_id)}
        unfinished_since_s = self.clock.now_ms() / 1000 - _UNFINISHED_S
        others = []
        for path, status in self._files():
            name = os.path.basename(path)
            if is_unfinished(name):
                if status.st_mtime < unfinished_since_s:
                    unlink(path)
                continue
            if not _COPY.fullmatch(name):
                continue  # NFS leaves such files of what is mapped and deleted
            _, owner, checkpoint_id = name.split(".")
            if owner == self.owner and checkpoint_id not in needed:
                unlink(path)
            else:
                others.append((status.st_mtime_ns, path, status.st_size))
        used_bytes = sum(length for _, _, length in others)
        for _, path, length in sorted(others):
            if used_bytes + size <= self.max_bytes:
                break
            unlink(path)
            used_bytes -= length

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            names = os.listdir(self.directory)
        except OSError:  # nobody has made it yet
            return
        for name in names:
            path = os.path.join(self.directory, name)
            try:
                yield path, os.stat(path)
            except OSError:  # deleted by another task
                continue


class _CopiedStateHandle(FileStateHandle, frozen=True, kw_only=True):
    """A file's handle inside of a task; never stored."""

    copies: LocalCopies

    def open_input_stream(self) -> BinaryIO:
        return self.copies.open(FileStateHandle(self.uri, self.size, self.checksum))


@dataclass(frozen=True, slots=True)
class _CopyingStreamFactory:
    factory: CheckpointStreamFactory
    copies: LocalCopies

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> CheckpointStateOutputStream:
        stream = self.factory.create_checkpoint_state_output_stream(scope)
        if scope is CheckpointedStateScope.SHARED:
            return stream  # segments, which have copies of their own
        copy = self.copies.new_copy()
        checkpoint_id = self.copies.checkpoint_id
        return CopiedOutputStream(
            stream, copy, lambda file: self.copies.keep(file, copy, checkpoint_id=checkpoint_id)
        )


def owner_of(*names: object) -> str:
    """The name of an owner in names of files; 32 hex digits."""
    return _digest(names)


def _name(handle: FileStateHandle) -> str:
    """The name of a file's copies: a digest of its URI, length and checksum."""
    return _digest(handle)


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=16).hexdigest()


def _chunks(stream: BinaryIO, size: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, size)))
    while count := cast("int", stream.readinto(buffer)):  # type: ignore[attr-defined]  # all have it
        yield buffer[:count]


def _checked_reader(path: str, handle: FileStateHandle) -> BinaryIO:
    """The bytes of a copy, checked against the file's checksum; backends use them where they are.

    Raises:
        CheckpointCorruptedError: The bytes are not those of the file.
        OSError: The bytes can't be read.
    """
    data = _mapped(path)
    handle.check(memoryview(data))
    return cast("BinaryIO", pa.BufferReader(pa.py_buffer(data)))


def _mapped(path: str) -> mmap.mmap | bytes:
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
