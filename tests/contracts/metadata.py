"""Metadata files, encoded by independent code."""

import struct

from holdfast.common import crc32c


def seal(body: bytes, *, version: int = 1, length: int | None = None) -> bytes:
    """Encode a file with a valid checksum around any body, as the documentation describes it."""
    size = len(body) if length is None else length
    content = b"HOLDFAST" + struct.pack(">IQ", version, size) + body
    return content + struct.pack(">I", crc32c(content))
