"""The checksum that Snappy's streams and RocksDB's blocks have: CRC-32C, turned and moved.

So the checksum of bytes that have a checksum in them is another one.

Source:
    https://github.com/google/snappy/blob/main/framing_format.txt, section 3; RocksDB, util/crc32c.h.
"""

from holdfast.common import crc32c

_DELTA, _MASK = 0xA282EAD8, 0xFFFF_FFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum of some bytes, 32 bits."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _DELTA) & _MASK
