"""Reads the output of Java's `DataOutput`: big-endian numbers, strings in modified UTF-8.

A count is compared with the remaining bytes before it is used.
"""

import struct
from typing import Any

from holdfast.errors import CheckpointCorruptedError

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class DataInput:
    """A position in a byte string, from which numbers and strings are read in sequence.

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
        """Read `length` bytes."""
        if not 0 <= length <= self.left:
            raise corrupted_error(f"expected {length} bytes, got {self.left}")
        start = self.position
        self.position = start + length
        return self.data[start : self.position]

    def byte(self) -> int:
        """Read an unsigned byte."""
        return self.take(1)[0]

    def read_short(self) -> int:
        """Read a signed 16-bit integer."""
        return self._number(_SHORT)

    def read_int(self) -> int:
        """Read a signed 32-bit integer."""
        return self._number(_INT)

    def read_long(self) -> int:
        """Read a signed 64-bit integer."""
        return self._number(_LONG)

    def longs(self, count: int) -> tuple[int, ...]:
        """Read several signed 64-bit integers."""
        values: tuple[Any, ...] = struct.unpack(f">{count}q", self.take(8 * count))
        return values

    def utf(self) -> str:
        """Read a string with a length prefix."""
        return modified_utf8(self.take(self.read_short() & 0xFFFF))

    def count(self, min_item_bytes: int = 1) -> int:
        """Read the number of items that follow.

        Args:
            min_item_bytes: Size of the smallest possible item, >= 1.
        """
        count = self.read_int()
        if not 0 <= count <= self.left // min_item_bytes:
            raise corrupted_error(f"{count} items can't fit into {self.left} bytes")
        return count

    def short_count(self) -> int:
        """Read the number of items that follow as a 16-bit integer."""
        count = self.read_short()
        if not 0 <= count <= self.left:
            raise corrupted_error(f"{count} items can't fit into {self.left} bytes")
        return count

    def expect(self, number: int, name: str) -> None:
        """Read a 32-bit integer and check its value."""
        if self.read_int() & 0xFFFF_FFFF != number & 0xFFFF_FFFF:
            raise corrupted_error(f"{name} has an unexpected start")

    def _number(self, kind: struct.Struct) -> int:
        start = self.position
        if kind.size > self.end - start:
            raise corrupted_error(f"expected {kind.size} bytes, got {self.left}")
        self.position = start + kind.size
        value: int = kind.unpack_from(self.data, start)[0]
        return value


def modified_utf8(data: bytes) -> str:
    """Decode Java's modified UTF-8: NUL in two bytes, characters above U+FFFF as two surrogates."""
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        pass
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise corrupted_error("a string isn't in modified UTF-8") from error
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def corrupted_error(message: str) -> CheckpointCorruptedError:
    """Return the error for bytes that Flink can't have written."""
    return CheckpointCorruptedError(f"state is not in Flink's format, or is corrupted: {message}")
