"""What reads the values of a state: a function over bytes, made once of what the savepoint says of its serializer.

A function takes bytes and a position, and returns a value and the position behind it. It may raise what Python
raises when bytes end too early (`struct.error`, `IndexError`) or make no value (`ValueError`); `reading` makes
`CheckpointCorruptedError` of these.
"""

import decimal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.common import raise_shortage
from holdfast.errors import CheckpointError, InvalidRequestError, UnreadableStateError
from holdfast.flink.binary import damaged

Read = Callable[[bytes, int], tuple[Any, int]]
Rows = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
HashCodes = Callable[[pa.Array], npt.NDArray[np.int32]]

VARIABLE = -1


@dataclass(frozen=True, slots=True)
class Packed:
    """Values of any widths, one behind the other.

    Attributes:
        data: Their bytes, and no others.
        lengths: How many bytes each has.
    """

    data: npt.NDArray[np.uint8]
    lengths: Numbers

    @classmethod
    def of(cls, values: "Sequence[bytes]") -> "Packed":
        """The values, copied."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), lengths)

    def split(self, head: int, tail: int) -> "tuple[Rows, Packed, Rows] | None":
        """The first and the last bytes of each value, and what is between; None if one has nothing there."""
        lengths = self.lengths - head - tail
        if not len(lengths) or lengths.min() <= 0:
            return None
        ends = np.cumsum(self.lengths)
        starts = ends - self.lengths
        heads = starts[:, None] + np.arange(head)
        tails = ends[:, None] - np.arange(tail, 0, -1)
        is_between = np.ones(len(self.data), bool)
        is_between[heads] = False
        is_between[tails] = False
        return self.data[heads], Packed(self.data[is_between], lengths), self.data[tails]


@dataclass(frozen=True, slots=True)
class Serializer:
    """How values of a state lie in bytes, and as what they are read.

    Attributes:
        type: The Arrow type that they are read as.
        read: Reads a value, as something that Arrow makes a value of that type of.
        length: What Flink takes for the length of every value, or -1 if they differ.
        width: How many bytes every value has, or 0 if they differ.
        column: Makes a column of values of that width, given one below the other.
        packed_column: Makes a column of values of any widths; returns None if it can't, and `read` says why.
        parts: Serializers of the elements of a list, or of the keys and values of a map.
        unreadable: The class that it can't read, or empty. Then `read` raises, and its values are
            only had as bytes, where somebody says where they end.
        hash_codes: Java's hash codes of a column of such keys; None where only the job's class knows them.
        has_last_access: Whether values are structs of a value with a time to live, and when it was last used.
    """

    type: pa.DataType
    read: Read
    length: int = VARIABLE
    width: int = 0
    column: Callable[[Rows], pa.Array] | None = None
    packed_column: Callable[[Packed], pa.Array | None] | None = None
    parts: "tuple[Serializer, ...]" = ()
    unreadable: str = ""
    hash_codes: HashCodes | None = None
    has_last_access: bool = False


def unreadable(java_class: str) -> Serializer:
    """The serializer of values of which only their bytes can be had."""

    def read(_data: bytes, _position: int) -> tuple[Any, int]:
        raise not_readable(java_class)

    return Serializer(pa.binary(), read, unreadable=java_class)


def only_as_bytes() -> Serializer:
    """The serializer of values that nobody wants to have decoded."""

    def read(_data: bytes, _position: int) -> tuple[Any, int]:
        message = (
            "the heap backend's own format doesn't say how long values are, so that they can't be had as bytes; take "
            "a canonical savepoint"
        )
        raise InvalidRequestError(message)

    return Serializer(pa.binary(), read, unreadable="bytes")


def not_readable(java_class: str) -> UnreadableStateError:
    """The error of a class whose values can't be read."""
    message = (
        f"values of {java_class} can't be read without that class; let the job store another type, or take their "
        "bytes: as_bytes=True, or --bytes, of canonical savepoints and of RocksDB"
    )
    return UnreadableStateError(message)


def null_key() -> UnreadableStateError:
    """The error of a map with a key that is null, which Java has and Arrow hasn't."""
    message = "a map has a key that is null, which Arrow can't have; take its bytes: as_bytes=True, or --bytes"
    return UnreadableStateError(message)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Make `CheckpointCorruptedError` of what Python raises of bytes that make no value.

    Args:
        what: What is read, for people.
    """
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{what}: {error.args[0]}", error.location, error.kind) from error
    except OverflowError as error:
        message = (
            f"{what}: a number is too large, or a time in nanoseconds isn't between 1677 and 2262, which Arrow can't "
            "have, unless the state is damaged; take its bytes: as_bytes=True, or --bytes"
        )
        raise UnreadableStateError(message) from error
    except (
        struct.error,
        IndexError,
        ValueError,
        TypeError,
        RecursionError,
        decimal.DecimalException,
        pa.ArrowException,
    ) as error:
        raise_shortage(error)
        raise damaged(f"{what}: {error}") from error


def counted(data: bytes, position: int) -> tuple[int, int]:
    """A number of items of at least one byte each, and the position behind it. Raises ValueError."""
    count: int = _INT.unpack_from(data, position)[0]
    position += 4
    if not 0 <= count <= len(data) - position:
        message = f"{count} items are to follow, and {len(data) - position} bytes are left"
        raise ValueError(message)
    return count, position


def sliced(data: bytes, position: int, length: int) -> tuple[bytes, int]:
    """So many bytes, and the position behind them. Raises ValueError."""
    end = position + length
    if not position <= end <= len(data):
        message = f"{length} bytes are to follow, and {len(data) - position} are left"
        raise ValueError(message)
    return data[position:end], end


_INT = struct.Struct(">i")
