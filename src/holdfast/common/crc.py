"""CRC-32C, at the speed of memory."""

from awscrt import checksums


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """CRC-32C (Castagnoli) of the bytes, going on from the checksum of what stood before them."""
    # Typed as int in the library's own docs, but it has no annotations.
    return int(checksums.crc32c(data, previous))


def joined_crc32c(first: int, second: int, length: int) -> int:
    """The CRC-32C of bytes that lie one behind the other, by those of both, without a look at the bytes.

    Args:
        first: The checksum of the former.
        second: The checksum of the latter.
        length: How many bytes the latter are.
    """
    return int(checksums.combine_crc32c(first, second, length))
