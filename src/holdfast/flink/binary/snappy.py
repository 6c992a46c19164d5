"""Snappy's framing format, in which Flink stores compressed state.

    ff 06 00 00 "sNaPpY", then chunks { byte kind, 3 bytes length, 4 bytes checksum, data }

Source:
    https://github.com/google/snappy/blob/main/framing_format.txt
"""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.common import raise_shortage
from holdfast.flink.binary.data_input import damaged
from holdfast.flink.binary.masked_crc import masked_crc32c

_STREAM = b"\xff\x06\x00\x00sNaPpY"
_MOST_OF_A_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Decompressed:
    """A stream, decompressed.

    Attributes:
        data: The bytes of the stream.
        positions: Where in them each chunk begins, by where the chunk begins in the compressed bytes.
    """

    data: bytes
    positions: dict[int, int]


def decompress_streams(data: bytes, *, has_begun: bool = False) -> list[Decompressed]:
    """Decompress streams that stand one behind the other.

    Args:
        data: The streams.
        has_begun: Whether the beginning of the first one stands before them.

    Raises:
        CheckpointCorruptedError: They are damaged.
    """
    streams: list[Decompressed] = []
    parts: list[bytes] = []
    positions: dict[int, int] = {0: 0} if has_begun else {}
    position = length = 0
    while position < len(data):
        kind = data[position]
        size = int.from_bytes(data[position + 1 : position + 4], "little")
        end = position + 4 + size
        if end > len(data):
            raise damaged(f"a chunk of {size} compressed bytes ends early")
        if kind == 0xFF:
            if data[position:end] != _STREAM:
                raise damaged("a compressed stream doesn't begin as it should")
            if position and positions:
                streams.append(Decompressed(b"".join(parts), positions))
            parts, positions, length = [], {position: 0}, 0
        elif not positions:
            raise damaged("compressed state doesn't begin with a stream")
        elif kind in {0, 1}:
            positions[position] = length
            parts.append(_chunk(data[position + 4 : end], is_plain=kind == 1))
            length += len(parts[-1])
        elif kind < 0x80:
            raise damaged(f"a compressed stream has a chunk of kind {kind}")
        position = end
    if positions:
        positions[position] = length
        streams.append(Decompressed(b"".join(parts), positions))
    return streams


def decompress_block(data: bytes, most: int) -> bytes:
    """Decompress a block, whose length it says itself; `most` is what it may be.

    Raises:
        CheckpointCorruptedError: It is damaged.
    """
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    # What is repeated takes three bytes for 64.
    if size > min(most, 64 * len(data)):
        raise damaged(f"{len(data)} compressed bytes are to be {size}")
    try:
        return bytes(pa.decompress(data, size, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise_shortage(error)
        raise damaged("compressed bytes can't be decompressed") from error


def _chunk(data: bytes, *, is_plain: bool) -> bytes:
    if len(data) < 4:
        raise damaged("a compressed chunk has no checksum")
    masked, content = int.from_bytes(data[:4], "little"), data[4:]
    if not is_plain:
        content = decompress_block(content, _MOST_OF_A_CHUNK)
    if masked_crc32c(content) != masked:
        raise damaged("a compressed chunk differs from its checksum")
    return content
