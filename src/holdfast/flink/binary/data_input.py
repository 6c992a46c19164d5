"""Reads what Java's `DataOutput` has written: big-endian numbers, texts in modified UTF-8.

No count is believed before it was compared with the bytes that are left.
"""

import struct
from typing import Any

from holdfast.errors import CheckpointCorruptedError

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class DataInput:
    """A position in some bytes, from which numbers and texts are read one after the other.

    Every method raises `CheckpointCorruptedError` if the bytes end too early.

    Attributes:
        position: Where the next value begins.
        end: Where the bytes end.
        is_of_flink_1: Whether a Flink before 2.0 has written them, which has another Kryo.
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
            raise damaged(f"position {position} is outside of its {len(data)} bytes")

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self.end - self.position

    def part(self, start: int, end: int) -> "DataInput":
        """The bytes from one position to another, to be read by themselves."""
        return DataInput(self.data, start, end, is_of_flink_1=self.is_of_flink_1)

    def take(self, length: int) -> bytes:
        """The next bytes."""
        if not 0 <= length <= self.left:
            raise damaged(f"{length} bytes are to follow, and {self.left} are left")
        start = self.position
        self.position = start + length
        return self.data[start : self.position]

    def byte(self) -> int:
        """The next byte, unsigned."""
        return self.take(1)[0]

    def read_short(self) -> int:
        """The next 16 bits, signed."""
        return self._number(_SHORT)

    def read_int(self) -> int:
        """The next 32 bits, signed."""
        return self._number(_INT)

    def read_long(self) -> int:
        """The next 64 bits, signed."""
        return self._number(_LONG)

    def longs(self, count: int) -> tuple[int, ...]:
        """The next numbers of 64 bits."""
        values: tuple[Any, ...] = struct.unpack(f">{count}q", self.take(8 * count))
        return values

    def utf(self) -> str:
        """The next text, with its length before it."""
        return modified_utf8(self.take(self.read_short() & 0xFFFF))

    def count(self, least: int = 1) -> int:
        """The number of items that follow.

        Args:
            least: Bytes that the smallest of them takes, at least 1.
        """
        count = self.read_int()
        if not 0 <= count <= self.left // least:
            raise damaged(f"{count} items are to follow, and {self.left} bytes are left")
        return count

    def short_count(self) -> int:
        """The number of items that follow, in 16 bits."""
        count = self.read_short()
        if not 0 <= count <= self.left:
            raise damaged(f"{count} items are to follow, and {self.left} bytes are left")
        return count

    def expect(self, number: int, what: str) -> None:
        """Read 32 bits that have to be a certain number."""
        if self.read_int() & 0xFFFF_FFFF != number & 0xFFFF_FFFF:
            raise damaged(f"{what} doesn't begin as it should")

    def _number(self, kind: struct.Struct) -> int:
        start = self.position
        if kind.size > self.end - start:
            raise damaged(f"{kind.size} bytes are to follow, and {self.left} are left")
        self.position = start + kind.size
        value: int = kind.unpack_from(self.data, start)[0]
        return value


def modified_utf8(data: bytes) -> str:
    """The text of Java's modified UTF-8: NUL in two bytes, characters above U+FFFF as two surrogates."""
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        pass
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise damaged("a text isn't in modified UTF-8") from error
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def damaged(message: str) -> CheckpointCorruptedError:
    """The error of bytes that Flink can't have written."""
    return CheckpointCorruptedError(
        f"this is no state as Flink writes it, or it is damaged: {message}"
    )
