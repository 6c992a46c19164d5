"""Framed formats of small files, and the replacement of a file on this machine's disk in one step."""

import os
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.common.byte_streams import crc32c
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError

_HEADER = struct.Struct(">8sI")
_CHECKSUM = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class FramedFormat:
    """A format of files that have a magic, a version, and a checksum.

        offset  length  meaning
        0       8       magic, ASCII
        8       4       format version, unsigned, big-endian
        12      n       body, as the version defines it
        12+n    4       CRC-32C of all bytes before it, big-endian

    These are at the same places in every version, so that a damaged file is not mistaken for a newer one.

    Attributes:
        name: Name of such a file in messages.
        magic: Its first 8 bytes.
    """

    name: str
    magic: bytes

    def encode(self, body: bytes, *, version: int) -> bytes:
        """Return the bytes of a file."""
        content = _HEADER.pack(self.magic, version) + body
        return content + _CHECKSUM.pack(crc32c(content))

    def decode(
        self, content: bytes, location: str, *, versions: Collection[int]
    ) -> tuple[int, memoryview]:
        """Return the version and the body of a file.

        Args:
            content: The whole file.
            location: Its URI, for errors.
            versions: The versions that can be read.

        Raises:
            CheckpointCorruptedError: The file is of another format, or was cut off or changed.
            UnsupportedFormatError: The file is intact and of another version.
        """
        if not content.startswith(self.magic):
            raise CheckpointCorruptedError(f"not a holdfast {self.name}", location)
        end = len(content) - _CHECKSUM.size
        if end < _HEADER.size:
            message = f"{self.name} is cut off at {len(content)} bytes"
            raise CheckpointCorruptedError(message, location)
        (expected,) = _CHECKSUM.unpack_from(content, end)
        actual = crc32c(memoryview(content)[:end])
        if actual != expected:
            message = (
                f"{self.name} is damaged or cut off: its {len(content)} bytes have checksum "
                f"{actual:08x}, expected {expected:08x} (crc32c)"
            )
            raise CheckpointCorruptedError(message, location)
        _, version = _HEADER.unpack_from(content)
        if version not in versions:
            oldest, newest = min(versions), max(versions)
            readable = f"versions {oldest} to {newest}" if oldest < newest else f"version {newest}"
            way_out = ": upgrade Holdfast" if version > newest else ""
            message = f"{self.name} was written in format version {version}; this Holdfast reads {readable}"
            raise UnsupportedFormatError(message + way_out, location)
        return version, memoryview(content)[_HEADER.size : end]


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
