"""Bytes of stored files: checksums, exact reads, the replacement of a file in one step, and the frame of some of them.

    offset  length  meaning
    0       8       magic, ASCII
    8       4       format version, unsigned, big-endian
    12      n       body
    12+n    4       CRC-32C of all bytes before it, big-endian

Every version of a framed file has these fields in these places, so that a damaged file is distinguished from a newer one.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from awscrt import checksums

from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError

_CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct(">8sI")
_CHECKSUM = struct.Struct(">I")


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """Compute the CRC-32C (Castagnoli) of bytes; `previous` is the checksum of the bytes before them."""
    # Typed as int in the library's own docs, but it has no annotations.
    return int(checksums.crc32c(data, previous))


def combine_crc32c(first: int, second: int, length: int) -> int:
    """Compute the CRC-32C of two concatenated byte strings from their checksums, without reading the bytes.

    Args:
        first: Checksum of the first byte string.
        second: Checksum of the second byte string.
        length: Length of the second byte string in bytes.
    """
    return int(checksums.combine_crc32c(first, second, length))


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a stream, at most 1 MiB at a time."""
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def fill(stream: BinaryIO, view: memoryview) -> int:
    """Read until a buffer is full or the stream ends; returns the number of bytes read."""
    filled = 0
    while filled < len(view):
        count = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # all have it
        if not count:
            break
        filled += count
    return filled


def read_exactly(stream: BinaryIO, length: int) -> bytearray:
    """Read `length` bytes from the stream's position.

    Raises:
        EOFError: The stream ends early.
    """
    data = bytearray(length)
    with memoryview(data) as view:
        read_into(stream, view)
    return data


def read_into(stream: BinaryIO, view: memoryview) -> None:
    """Fill a buffer from the stream's position.

    Raises:
        EOFError: The stream ends early.
    """
    filled = fill(stream, view)
    if filled < len(view):
        message = f"stream ended {len(view) - filled} bytes early"
        raise EOFError(message)


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame of one type of file.

    Attributes:
        magic: The first 8 bytes.
        version: The version that is written.
        name: The type of file in errors, such as "manifest of tables".
    """

    magic: bytes
    version: int
    name: str

    def encode(self, body: bytes) -> bytes:
        """Frame a body."""
        content = _HEADER.pack(self.magic, self.version) + body
        return content + _CHECKSUM.pack(crc32c(content))

    def decode(self, content: bytes, location: str) -> memoryview:
        """Verify framed bytes, and return their body.

        Raises:
            CheckpointCorruptedError: The bytes are of another type of file, or were cut or changed.
            UnsupportedFormatError: The bytes are intact, and of another version.
        """
        version, body = self.open(content, location)
        self.check_version(version, location)
        return body

    def open(self, content: bytes, location: str) -> tuple[int, memoryview]:
        """Verify framed bytes of any version, and return the version and the body.

        Raises:
            CheckpointCorruptedError: The bytes are of another type of file, or were cut or changed.
        """
        end = len(content) - _CHECKSUM.size
        if end < _HEADER.size or not content.startswith(self.magic):
            raise CheckpointCorruptedError(f"{len(content)} bytes are not a {self.name}", location)
        (expected,) = _CHECKSUM.unpack_from(content, end)
        view = memoryview(content)
        check_crc32c(view[:end], expected, self.name, location)
        _, version = _HEADER.unpack_from(content)
        return version, view[_HEADER.size : end]

    def check_version(self, version: int, location: str) -> None:
        """Raise `UnsupportedFormatError` for another version."""
        if version != self.version:
            message = (
                f"{self.name} of format version {version}; this Holdfast reads version {self.version}: "
                "upgrade Holdfast"
            )
            raise UnsupportedFormatError(message, location)


def check_crc32c(data: memoryview, expected: int, name: str, location: str) -> None:
    """Raise `CheckpointCorruptedError` if bytes have another checksum.

    Args:
        data: The bytes.
        expected: Their CRC-32C.
        name: The name of the data in the error.
        location: The file, for the error.
    """
    actual = crc32c(data)
    if actual != expected:
        message = f"{name} has checksum {actual:08x}, expected {expected:08x} (crc32c): it is damaged or cut off"
        raise CheckpointCorruptedError(message, location)


@contextmanager
def replace_file(path: str) -> Iterator[str]:
    """Yield a temporary path; the file written there replaces the one at `path` when the block ends.

    Readers find the old file or the complete new one. If the block raises, the temporary file is deleted and the
    old one stays.
    """
    unfinished = f"{path}.{os.urandom(8).hex()}.inprogress"
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
