"""CRC-32C, at the speed of memory."""

from functools import lru_cache

from awscrt import checksums


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """CRC-32C (Castagnoli) of the bytes, going on from the checksum of what stood before them."""
    # Typed as int in the library's own docs, but it has no annotations.
    return int(checksums.crc32c(data, previous))


def joined_crc32c(first: int, second: int, length: int, *, comes_often: bool = False) -> int:
    """The CRC-32C of bytes that lie one behind the other, by those of both, without a look at the bytes.

    Args:
        first: The checksum of the former.
        second: The checksum of the latter.
        length: How many bytes the latter are.
        comes_often: Whether other bytes of that length follow: the first takes longer then, all others next to nothing.
    """
    if not comes_often:
        zeros = bytes(length)
        return crc32c(zeros, first) ^ crc32c(zeros) ^ second
    for table in _behind(length):
        second ^= table[first & 0xFF]
        first >>= 8
    return second


@lru_cache(maxsize=4)
def _behind(length: int) -> tuple[list[int], ...]:
    """What a checksum's four bytes, the lowest first, become when so many zeros follow.

    Each bit does so by itself, whatever the others are.
    """
    zeros = bytes(length)
    of_zeros = crc32c(zeros)
    tables = []
    for low in range(0, 32, 8):
        table = [0]
        for bit in range(low, low + 8):
            after = crc32c(zeros, 1 << bit) ^ of_zeros
            table += [after ^ entry for entry in table]
        tables.append(table)
    return tuple(tables)
