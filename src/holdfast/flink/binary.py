"""Bytes as Java and Flink write them: big-endian numbers, strings in modified UTF-8, and Snappy's framing format.

    stream  ff 06 00 00 "sNaPpY", then chunks { byte type, 3 bytes length, 4 bytes checksum, data }

Every count is compared with the remaining bytes before it is used.

Source:
    https://github.com/google/snappy/blob/main/framing_format.txt
"""

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.common import crc32c, raise_shortage
from holdfast.errors import CheckpointCorruptedError

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_STREAM = b"\xff\x06\x00\x00sNaPpY"
_MAX_CHUNK_BYTES = 1 << 16
_CRC_DELTA, _CRC_MASK = 0xA282EAD8, 0xFFFF_FFFF


class DataInput:
    """A position in a byte string, from which numbers and strings are read in sequence, as written by Java's `DataOutput`.

    Every method raises `CheckpointCorruptedError` if the bytes end too early.

    Attributes:
        position: Start of the next value.
        end: End of the bytes.
        is_of_flink_1: Whether a Flink before 2.0, with its older Kryo, wrote the bytes.
    """

    __slots__ = ("data", "end", "is_of_flink_1", "position")

    def __init__(
        self, data: bytes, position: int = 0, end: int | None = None, *, is_of_flink_1: bool = False
    ) -> None:
        self.data = data
        self.is_of_flink_1 = is_of_flink_1
        self.position = position
        self.end = len(data) if end is None else end
        if not 0 <= position <= self.end <= len(data):
            raise corrupted_error(f"position {position} is outside of its {len(data)} bytes")

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
        return self.end - self.position

    def part(self, start: int, end: int) -> "DataInput":
        """Return an input of the bytes between two positions."""
        return DataInput(self.data, start, end, is_of_flink_1=self.is_of_flink_1)

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise corrupted_error(f"expected {length} bytes, got {self.left}")
        start = self.position
        self.position = start + length
        return self.data[start : self.position]

    def byte(self) -> int:
        """Read an unsigned byte."""
        return self.take(1)[0]

    def read_short(self) -> int:
        return self._number(_SHORT)

    def read_int(self) -> int:
        return self._number(_INT)

    def read_long(self) -> int:
        return self._number(_LONG)

    def longs(self, count: int) -> tuple[int, ...]:
        values: tuple[Any, ...] = struct.unpack(f">{count}q", self.take(8 * count))
        return values

    def utf(self) -> str:
        """Read a string with a length prefix."""
        return modified_utf8(self.take(self.read_short() & 0xFFFF))

    def count(self, min_item_bytes: int = 1) -> int:
        """Read the number of items that follow, of at least `min_item_bytes` each."""
        return self._checked_count(self.read_int(), min_item_bytes)

    def short_count(self) -> int:
        """Read the number of items that follow as a 16-bit integer."""
        return self._checked_count(self.read_short(), 1)

    def expect(self, number: int, name: str) -> None:
        """Read a 32-bit integer and check its value."""
        if self.read_int() & 0xFFFF_FFFF != number & 0xFFFF_FFFF:
            raise corrupted_error(f"{name} has an unexpected start")

    def _checked_count(self, count: int, min_item_bytes: int) -> int:
        if not 0 <= count <= self.left // min_item_bytes:
            raise corrupted_error(f"{count} items can't fit into {self.left} bytes")
        return count

    def _number(self, kind: struct.Struct) -> int:
        start = self.position
        if kind.size > self.end - start:
            raise corrupted_error(f"expected {kind.size} bytes, got {self.left}")
        self.position = start + kind.size
        value: int = kind.unpack_from(self.data, start)[0]
        return value


def modified_utf8(data: bytes) -> str:
    """Decode Java's modified UTF-8: NUL in two bytes, characters above U+FFFF as two surrogates."""
    if data.isascii():
        return data.decode("ascii")
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise corrupted_error("a string isn't in modified UTF-8") from error
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def corrupted_error(message: str) -> CheckpointCorruptedError:
    """Return the error for bytes that Flink can't have written."""
    return CheckpointCorruptedError(f"state is not in Flink's format, or is corrupted: {message}")


@dataclass(frozen=True, slots=True)
class Decompressed:
    """A decompressed stream, and the start of each chunk in `data` by its start in the compressed bytes."""

    data: bytes
    positions: dict[int, int]


def decompress_streams(data: bytes, *, has_header: bool = False) -> list[Decompressed]:
    """Decompress concatenated streams; with `has_header`, the header of the first one precedes the data."""
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
    """Decompress a Snappy block, which starts with its length; `max_bytes` is the greatest valid one."""
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


def masked_crc32c(data: bytes) -> int:
    """Compute the 32-bit checksum of Snappy and RocksDB."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _CRC_DELTA) & _CRC_MASK
