"""CRC-32C, at the speed of memory."""

from awscrt import checksums


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """CRC-32C (Castagnoli) of the bytes, going on from the checksum of what stood before them."""
    # Typed as int in the library's own docs, but it has no annotations.
    return int(checksums.crc32c(data, previous))
