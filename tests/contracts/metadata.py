"""Files of metadata, made by hand."""

import struct

from holdfast.common import crc32c


def sealed(body: bytes, *, version: int = 1, length: int | None = None) -> bytes:
    """A whole file with a right checksum around any body, as docs and module describe it."""
    size = len(body) if length is None else length
    content = b"HOLDFAST" + struct.pack(">IQ", version, size) + body
    return content + struct.pack(">I", crc32c(content))
