"""Bytes of a file that arrive out of order: at their places in a sparse file, or in memory."""

import errno
import fcntl
import logging
import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from holdfast.common import FULL_ERRNOS
from holdfast.locations.file_systems import BytesLike

_log = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"

_FULL_ERRNOS = {*FULL_ERRNOS, errno.EFBIG}

_SEEK_DATA: int | None = getattr(os, "SEEK_DATA", None)
_SEEK_HOLE: int | None = getattr(os, "SEEK_HOLE", None)


class SparseBytes:
    """The bytes of a segment, where some are missing, in `<path>.partial`; in memory without a path.

    They are written by calls, because writing through a mapping kills the process if the disk is full. If it is, the bytes
    continue in memory, where the system allocates only the pages that are written to.

    Several processes may write to the file. One that has all bytes renames it, and the mappings of others stay valid.
    `write` is called by one thread at a time.

    Attributes:
        path: The path of the complete file; None for bytes in memory.
        buffer: All bytes; a missing one has any value.
    """

    def __init__(self, path: str | None, size: int) -> None:
        self.path = path
        self._size = size
        self._file = -1
        self._inode = 0
        if path is not None:
            try:
                mapped = self._map_file(path)
            except OSError as error:
                _log.warning("segment is read without a local copy: %s: %s", path, error.strerror)
                self.path = None
        if self.path is None:
            mapped = mmap.mmap(-1, size)
        self._use(mapped)

    @property
    def partial_path(self) -> str | None:
        return None if self.path is None else self.path + PARTIAL_SUFFIX

    def is_changed(self) -> bool:
        """Return whether the file is complete, was replaced, or has another length."""
        if self.path is None:
            return False
        try:
            status = os.stat(self.path + PARTIAL_SUFFIX)
        except FileNotFoundError:
            return os.path.exists(self.path)
        return (status.st_ino, status.st_size) != (self._inode, self._size)

    def write(self, offset: int, data: BytesLike, verified: Iterable[tuple[int, int]]) -> None:
        """Write bytes to their place. If the disk is full, move the `verified` ranges to memory first."""
        whole = memoryview(data).cast("B")
        if self.path is not None:
            try:
                written = 0
                while written < len(whole):
                    written += os.pwrite(self._file, whole[written:], offset + written)
            except OSError as error:
                if error.errno not in _FULL_ERRNOS:
                    raise
                _log.warning(
                    "segment is read without a local copy: %s: %s", self.path, error.strerror
                )
                self._move_to_memory(verified)
        if self.path is None:
            self.view[offset : offset + len(whole)] = whole

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of the file that are not holes, start and end; others may have written to them.

        They are a hint: a hole may be reported as zeros, for example by a file system that has no holes.
        """
        if self.path is None:
            return []
        if _SEEK_DATA is None or _SEEK_HOLE is None:
            return [(0, self._size)]
        ranges, end = [], 0
        with suppress(OSError):  # there is no data after `end`
            while end < self._size:
                start = os.lseek(self._file, end, _SEEK_DATA)
                end = os.lseek(self._file, start, _SEEK_HOLE)
                ranges.append((start, end))
        return ranges

    def lock(self) -> bool:
        """Lock the file as long as this object exists; return False if it is locked elsewhere or in memory."""
        if self.path is None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def complete(self) -> None:
        """Rename the file, which has all bytes, to its final name."""
        if self.path is not None:
            with suppress(FileNotFoundError):  # renamed by another process, or deleted
                os.replace(self.path + PARTIAL_SUFFIX, self.path)

    def _map_file(self, path: str) -> mmap.mmap:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        file = os.open(path + PARTIAL_SUFFIX, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, self._size)
        self._file, self._inode = file, os.fstat(file).st_ino
        return mmap.mmap(file, self._size, prot=mmap.PROT_READ)

    def _move_to_memory(self, verified: Iterable[tuple[int, int]]) -> None:
        memory = mmap.mmap(-1, self._size)
        for (
            start,
            end,
        ) in verified:  # others must not be touched: on tmpfs reading a hole takes a page
            memory[start:end] = self.view[start:end]
        self.path = None
        self._use(memory)

    def _use(self, mapped: mmap.mmap) -> None:
        self.view = memoryview(mapped)
        self.buffer = pa.py_buffer(mapped)
