"""Checksums by block, so that a part of a file can be verified without the rest."""

import io
import struct
from typing import BinaryIO

import msgspec

from holdfast.common import BlockBytes, combine_crc32c, crc32c, fill
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    UnsupportedFormatError,
)
from holdfast.locations.file_systems import BytesLike, PositionedInputStream

BLOCK_BYTES = 1 << 20
"""Bytes under one checksum: 4 bytes of checksum for each MiB, and one MiB read for a small part."""


class Checksum(msgspec.Struct, frozen=True):
    """The checksums that a file's bytes must have.

    Attributes:
        algorithm: `crc32c`, the only one so far.
        block_bytes: Length of a block; the last one may be shorter.
        blocks: One checksum per block, 4 bytes each, big-endian; empty for an empty file.
    """

    algorithm: str
    block_bytes: BlockBytes
    blocks: bytes


class ChecksumBuilder:
    """Computes the checksums of a stream while it is written."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._blocks = bytearray()
        self._current = 0
        self._filled = 0

    def update(self, data: BytesLike) -> None:
        """Add these bytes to the checksum."""
        left = memoryview(data).cast("B")
        while left:
            part = left[: self._block_bytes - self._filled]
            self._current = crc32c(part, self._current)
            self._filled += len(part)
            left = left[len(part) :]
            if self._filled == self._block_bytes:
                self._end_block()

    def add_blocks(self, checksum: Checksum, size: int) -> None:
        """Add bytes whose checksums are known, without reading them.

        Args:
            checksum: Checksum of the bytes; this builder's block length must be a multiple of its block length.
            size: Number of bytes.
        """
        for (block,) in struct.iter_unpack(">I", checksum.blocks):
            length = min(size, checksum.block_bytes)
            size -= length
            self._current = combine_crc32c(self._current, block, length)
            self._filled += length
            if self._filled == self._block_bytes:
                self._end_block()

    def finish(self) -> Checksum:
        """Return the checksum of all bytes added; ends the life of the builder."""
        if self._filled:
            self._end_block()
        return Checksum("crc32c", self._block_bytes, bytes(self._blocks))

    def _end_block(self) -> None:
        self._blocks += struct.pack(">I", self._current)
        self._current = self._filled = 0


def checksum_of(data: BytesLike) -> Checksum:
    """Compute the checksum of bytes."""
    builder = ChecksumBuilder()
    builder.update(data)
    return builder.finish()


class VerifyingInputStream(PositionedInputStream):
    """A file of known length and checksum; every byte that it returns was verified.

    Raises:
        CheckpointCorruptedError: The length or a block differs: on opening, or while reading.
    """

    def __init__(self, raw: BinaryIO, *, uri: str, size: int, checksum: Checksum) -> None:
        self._raw = raw
        self._uri = uri
        self._size = size
        self._checksum = checksum
        self._block_index = -1
        self._block = bytearray()
        try:
            self._check_whole()
        except BaseException:
            self.close()
            raise

    def _check_whole(self) -> None:
        checksum, size = self._checksum, self._size
        if checksum.algorithm != "crc32c":
            message = f"checksum algorithm {checksum.algorithm!r} is not known"
            raise UnsupportedFormatError(message, self._uri)
        actual = self._raw.seek(0, io.SEEK_END)
        if actual != size:
            raise CheckpointCorruptedError(f"file has {actual} bytes, expected {size}", self._uri)
        if len(checksum.blocks) != 4 * -(-size // checksum.block_bytes):
            message = f"handle lacks checksums for {size} bytes"
            raise CheckpointCorruptedError(message, self._uri)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if not 0 <= base + offset <= self._size:
            message = f"position {base + offset} is outside of the {self._size} bytes"
            raise InvalidRequestError(message, self._uri)
        self._position = base + offset
        return self._position

    def _fill(self, view: memoryview) -> int:
        index, start = divmod(self._position, self._checksum.block_bytes)
        length = min(self._checksum.block_bytes, self._size - index * self._checksum.block_bytes)
        if index != self._block_index:
            if start == 0 and len(view) >= length:  # the block needs no copy
                self._load(index, view[:length])
                return length
            block = bytearray(length)
            self._load(index, memoryview(block))
            self._block_index, self._block = index, block
        part = memoryview(self._block)[start : start + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._raw.close()
        super().close()

    def _load(self, index: int, block: memoryview) -> None:
        start = index * self._checksum.block_bytes
        self._raw.seek(start)
        filled = fill(self._raw, block)
        (expected,) = struct.unpack_from(">I", self._checksum.blocks, index * 4)
        actual = crc32c(block[:filled])
        if filled != len(block) or actual != expected:
            message = (
                f"block {index} (bytes {start} to {start + len(block)}) has checksum {actual:08x}, "
                f"expected {expected:08x} (crc32c)"
            )
            raise CheckpointCorruptedError(message, self._uri)
