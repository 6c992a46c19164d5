"""Snappy's framing format, which Flink uses for compressed state.

    ff 06 00 00 "sNaPpY", then chunks { byte type, 3 bytes length, 4 bytes checksum, data }

Source:
    https://github.com/google/snappy/blob/main/framing_format.txt
"""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.common import crc32c, raise_shortage
from holdfast.flink.binary.data_input import corrupted_error

_STREAM = b"\xff\x06\x00\x00sNaPpY"
_MAX_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Decompressed:
    """A stream, decompressed.

    Attributes:
        data: The bytes of the stream.
        positions: Start of each chunk in `data`, by its start in the compressed bytes.
    """

    data: bytes
    positions: dict[int, int]


def decompress_streams(data: bytes, *, has_header: bool = False) -> list[Decompressed]:
    """Decompress concatenated streams.

    Args:
        data: The streams.
        has_begun: Whether the stream header of the first one precedes the data.

    Raises:
        CheckpointCorruptedError: They are corrupted.
    """
    streams: list[Decompressed] = []
    parts: list[bytes] = []
    positions: dict[int, int] = {0: 0} if has_header else {}
    position = length = 0
    while position < len(data):
        kind = data[position]
        size = int.from_bytes(data[position + 1 : position + 4], "little")
        end = position + 4 + size
        if end > len(data):
            raise corrupted_error(f"a chunk of {size} compressed bytes ends early")
        if kind == 0xFF:
            if data[position:end] != _STREAM:
                raise corrupted_error("a compressed stream has a wrong header")
            if position and positions:
                streams.append(Decompressed(b"".join(parts), positions))
            parts, positions, length = [], {position: 0}, 0
        elif not positions:
            raise corrupted_error("compressed state doesn't begin with a stream")
        elif kind in {0, 1}:
            positions[position] = length
            parts.append(_chunk(data[position + 4 : end], is_plain=kind == 1))
            length += len(parts[-1])
        elif kind < 0x80:
            raise corrupted_error(f"a compressed stream has a chunk of unknown type {kind}")
        position = end
    if positions:
        positions[position] = length
        streams.append(Decompressed(b"".join(parts), positions))
    return streams


def decompress_block(data: bytes, max_bytes: int) -> bytes:
    """Decompress a block, which contains its length; `max_bytes` is the greatest valid one.

    Raises:
        CheckpointCorruptedError: It is corrupted.
    """
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    # A copy of up to 64 bytes takes three bytes, so a longer output is not valid.
    if size > min(max_bytes, 64 * len(data)):
        raise corrupted_error(f"{len(data)} compressed bytes can't have {size} bytes")
    try:
        return bytes(pa.decompress(data, size, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise_shortage(error)
        raise corrupted_error("compressed bytes can't be decompressed") from error


def _chunk(data: bytes, *, is_plain: bool) -> bytes:
    if len(data) < 4:
        raise corrupted_error("a compressed chunk has no checksum")
    masked, content = int.from_bytes(data[:4], "little"), data[4:]
    if not is_plain:
        content = decompress_block(content, _MAX_CHUNK_BYTES)
    if masked_crc32c(content) != masked:
        raise corrupted_error("a compressed chunk differs from its checksum")
    return content


_DELTA, _MASK = 0xA282EAD8, 0xFFFF_FFFF


def masked_crc32c(data: bytes) -> int:
    """Compute the 32-bit checksum of bytes."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _DELTA) & _MASK
