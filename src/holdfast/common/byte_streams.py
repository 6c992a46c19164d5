"""CRC-32C checksums, and reads of an exact number of bytes."""

from collections.abc import Iterator
from typing import BinaryIO

from awscrt import checksums

_CHUNK_BYTES = 1 << 20


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
