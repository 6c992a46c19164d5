"""Readers of the values of a state: functions over bytes, made once from the snapshot of a serializer.

A function takes bytes and a position, and returns a value and the position after it. It may raise Python's errors
for bytes that end too early (`struct.error`, `IndexError`) or are not a valid value (`ValueError`); `reading`
translates these to `CheckpointCorruptedError`.
"""

import decimal
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.common import raise_shortage
from holdfast.errors import CheckpointError, InvalidRequestError, UnreadableStateError
from holdfast.flink.binary import corrupted_error

Read = Callable[[bytes, int], tuple[Any, int]]
Rows = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
HashCodes = Callable[[pa.Array], npt.NDArray[np.int32]]

VARIABLE = -1
BASE = "org.apache.flink.api.common.typeutils.base."
COMPOSITE_MAGIC, NESTED_MAGIC = 911108, 1333245
"""Starts of a composite snapshot, and of the snapshots of its parts."""
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Packed:
    """Concatenated values, and the number of bytes of each."""

    data: npt.NDArray[np.uint8]
    lengths: Numbers

    @classmethod
    def of(cls, values: "Sequence[bytes]") -> "Packed":
        """Concatenate copies of values."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), lengths)

    def split(self, head: int, tail: int) -> "tuple[Rows, Packed, Rows] | None":
        """Return the first bytes, middles and last bytes of each value, or None if a value is too short."""
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
    """The format of a state's values, and their Arrow type.

    Attributes:
        type: Arrow type of the values.
        read: Reads a value in a form that Arrow converts to the type.
        length: Length of every value according to Flink, or -1 if they differ.
        width: Number of bytes of every value, or 0 if they differ.
        column: Converts rows of values of that width to a column.
        packed_column: Converts values of any widths to a column, or returns None for invalid ones, which `read` reports.
        parts: Serializers of the elements of a list, or of the keys and values of a map.
        unreadable: The unreadable class, or empty. If set, `read` raises, and values can only be read as
            bytes if their length is stored.
        hash_codes: Computes Java's hash codes of a column of keys; None if they are defined by the job's class.
        has_last_access: Whether values are structs of a value with a time to live and the time of its last use.
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

    @property
    def content_type(self) -> pa.DataType:
        """Arrow type of the values without the time of their last use."""
        return self.type.field("value").type if self.has_last_access else self.type


def unreadable(java_class: str) -> Serializer:
    """Return the serializer of a class whose values can only be read as bytes."""
    return _failing(java_class, partial(not_readable, java_class))


def only_as_bytes() -> Serializer:
    """Return the serializer of values that are not decoded."""
    message = (
        "the heap backend's own format does not store the length of values, so they can't be read as bytes; take "
        "a canonical savepoint"
    )
    return _failing("bytes", partial(InvalidRequestError, message))


def _failing(unreadable: str, make_error: Callable[[], CheckpointError]) -> Serializer:
    def read(_data: bytes, _position: int) -> tuple[Any, int]:
        raise make_error()

    return Serializer(pa.binary(), read, unreadable=unreadable)


def not_readable(java_class: str) -> UnreadableStateError:
    """Return the error for values of an unreadable class."""
    message = (
        f"values of {java_class} can't be read without that class; store another type in the job, or read their "
        "bytes with as_bytes=True or --bytes from canonical savepoints and RocksDB"
    )
    return UnreadableStateError(message)


def null_key() -> UnreadableStateError:
    """Return the error for a map with a null key, which Arrow does not support."""
    message = "a map has a null key, which Arrow does not support; read its bytes with as_bytes=True or --bytes"
    return UnreadableStateError(message)


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Translate Python's errors for invalid bytes to `CheckpointCorruptedError`, and name the data in messages."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{subject}: {error.args[0]}", error.location, error.kind) from error
    except OverflowError as error:
        message = (
            f"{subject}: a number is too large for Arrow, or a time in nanoseconds isn't between 1677 and 2262, or the "
            "state is corrupted; read its bytes with as_bytes=True or --bytes"
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
        raise corrupted_error(f"{subject}: {error}") from error


def snapshot_class(serializer: str) -> str:
    """Return the name of the snapshot class inside of a serializer's class."""
    return f"{serializer}${re.split(r'[.$]', serializer)[-1]}Snapshot"


def decimal_of(unscaled: int, scale: int) -> decimal.Decimal:
    """Return a decimal number of any size."""
    digits = tuple(map(int, str(abs(unscaled))))
    return decimal.Decimal((int(unscaled < 0), digits, -scale))


def integer_of(data: bytes) -> int:
    """Return Java's `BigInteger` of bytes."""
    return int.from_bytes(data, "big", signed=True)


def converting_reader(read: Read, convert: Callable[[Any], Any]) -> Read:
    """Return a reader that converts values, except null."""

    def read_converted(data: bytes, position: int) -> tuple[Any, int]:
        value, position = read(data, position)
        return None if value is None else convert(value), position

    return read_converted


def read_count(data: bytes, position: int) -> tuple[int, int]:
    """Read a number of items of at least one byte each; returns it with the next position. Raises ValueError."""
    count: int = _INT.unpack_from(data, position)[0]
    position += 4
    if not 0 <= count <= len(data) - position:
        message = f"{count} items can't fit into {len(data) - position} bytes"
        raise ValueError(message)
    return count, position


def read_bytes(data: bytes, position: int, length: int) -> tuple[bytes, int]:
    """Read `length` bytes; returns them with the next position. Raises ValueError."""
    end = position + length
    if not position <= end <= len(data):
        message = f"expected {length} bytes, got {len(data) - position}"
        raise ValueError(message)
    return data[position:end], end
