"""The bytes of a segment where they lie: in memory, or in a file that is mapped. Verified block by block, once each."""

import mmap
import os
from contextlib import suppress
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.segments.trailer import decode_trailer, flaw_of_blocks
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.locations.handles import Checksum


class SegmentBytes:
    """All bytes of a segment.

    Args:
        data: The bytes; where they begin is a multiple of 8.
        location: Where they came from, for errors.
        written: The checksums of the bytes, if this process has just written them there.

    Raises:
        CheckpointCorruptedError: The bytes are no segment, or the trailer is damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """

    def __init__(self, data: pa.Buffer, location: str, written: Checksum | None = None) -> None:
        self.buffer = data
        self.view = memoryview(data).cast("B")
        self.location = location
        self.written = written
        self.trailer, self.end = decode_trailer(
            len(self.view), lambda offset, length: self.view[offset : offset + length], location
        )
        # What was just written is not read back, which would only read what the system has in memory.
        self._is_verified = np.full(len(self.trailer.blocks) // 4, written is not None)
        self._mapped: mmap.mmap | None = None
        self._status: os.stat_result | None = None
        self._is_read_around = True

    @classmethod
    def mapped(cls, path: str, written: Checksum | None = None) -> Self:
        """Map a file. Raises `CheckpointNotFoundError`, and what the class does."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError("segment is gone", path) from error
        try:
            status = os.fstat(descriptor)
            if not status.st_size:
                raise CheckpointCorruptedError("segment is empty", path)
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        mine = cls(pa.py_buffer(mapped), path, written)
        mine._mapped, mine._status = mapped, status
        return mine

    def is_changed(self) -> bool:
        """Whether somebody has written to the file since it was mapped, or put another one in its place.

        Where the file was deleted the bytes are still there, if nobody has cut them off.
        """
        if self._status is None:
            return False
        try:
            now = os.stat(self.location)
        except FileNotFoundError:
            return self._is_cut_off()
        return _changes_with_content(now) != _changes_with_content(self._status)

    def note_own_change(self) -> None:
        """Take the file as it is now for unchanged: this process has touched it, and not its bytes."""
        if self._status is not None:
            with suppress(FileNotFoundError):
                self._status = os.stat(self.location)

    def expect(self, *, most: bool) -> None:
        """Most pages of a section will be touched, or here and there some: see `Segment.expect`."""
        if self._mapped is not None and most != self._is_read_around:
            self._mapped.madvise(mmap.MADV_NORMAL if most else mmap.MADV_RANDOM)
            self._is_read_around = most

    def flaw(self, offset: int, length: int) -> str | None:
        """What is wrong with the first bad block that so many bytes lie in; None if none is bad."""
        if not length:
            return None
        if self._is_cut_off():
            return "file was cut off while it was used"
        size = self.trailer.block_bytes
        first, end = offset // size, -(-(offset + length) // size)
        numbers = (first + (~self._is_verified[first:end]).nonzero()[0]).tolist()
        blocks = (
            self.view[number * size : min((number + 1) * size, self.end)] for number in numbers
        )
        flaw = flaw_of_blocks(self.trailer, numbers, blocks)
        if flaw is None:
            self._is_verified[first:end] = True
        return flaw

    def _is_cut_off(self) -> bool:
        """Whether the file is shorter than what is mapped: to touch what is gone would end the process."""
        return self._mapped is not None and self._mapped.size() < len(self.view)


def _changes_with_content(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
