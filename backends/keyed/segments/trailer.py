"""The bytes around the sections of a segment: what it begins and ends with. Pure, no I/O.

    offset  length  meaning
    0       8       magic, "HOLDSEGM" in ASCII
    8       4       format version, unsigned, big-endian
    12      52      zeros
    64      ...     sections and side tables, each at a multiple of 64, with zeros between them
    t       n       trailer: a MessagePack map by field names
    t+n     4       CRC-32C of the trailer, big-endian
    t+n+4   4       n, unsigned, big-endian
    t+n+8   4       format version, again
    t+n+12  8       magic, again

The trailer says where all else is, and has the checksum of each block of all bytes before it.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from holdfast.common import BlockBytes, Count, crc32c, message_pack_decoder
from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError

MAGIC = b"HOLDSEGM"
VERSION = 1
"""The version that is written, and the only one that is read."""

ALIGNMENT = 64
"""Every part begins at a multiple of so many bytes."""

BLOCK_BYTES = 1 << 16
"""Bytes under one checksum: for each column that is touched, whole blocks are read and verified."""

_HEADER = struct.Struct(">8sI52x")
_TAIL = struct.Struct(">III8s")

_Bytes = tuple[Count, Count]
"""Offset in the segment, and length, in bytes."""

_Shift = Annotated[int, msgspec.Meta(ge=0, le=63)]

FIXED_KINDS = frozenset(
    {
        *(f"<{kind}{width}" for kind in "iu" for width in (2, 4, 8)),
        "|i1",
        "|u1",
        "<f2",
        "<f4",
        "<f8",
    }
)
"""Kinds of columns that are numbers side by side: NumPy's name of the type."""

TEXT_KINDS = {"string": 4, "binary": 4, "large_string": 8, "large_binary": 8}
"""Kinds of columns that are offsets and bytes, and the width of an offset."""

ARROW_KIND = "arrow"
"""The kind of all other columns: Arrow's metadata in the section says where they are."""


class ColumnPlace(msgspec.Struct, frozen=True):
    """Where a column's buffers are.

    Attributes:
        name: The column's name.
        kind: One of `FIXED_KINDS` or `TEXT_KINDS`, without nulls; else `ARROW_KIND`.
        buffers: The values, or the offsets and then the bytes; none of a column of `ARROW_KIND`.
    """

    name: str
    kind: str
    buffers: tuple[_Bytes, ...]


class DirectoryPlace(msgspec.Struct, frozen=True):
    """Where a directory is: positions of rows, unsigned, 4 bytes each, little-endian."""

    place: _Bytes
    shift: _Shift
    first: Count


class FilterPlace(msgspec.Struct, frozen=True):
    """Where a filter is: one bit a prefix."""

    place: _Bytes
    shift: _Shift
    first_byte: Count


class SectionPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a section is, and what leads to its rows.

    Attributes:
        table: The table that the rows are of.
        rows: How many rows.
        place: The section itself, an Arrow IPC file of one record batch.
        columns: Where its columns are.
        directory: Where rows begin, by prefix.
        filter: Which prefixes occur.
    """

    table: str
    rows: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    place: _Bytes
    columns: tuple[ColumnPlace, ...]
    directory: DirectoryPlace | None = None
    filter: FilterPlace | None = None


class Trailer(msgspec.Struct, frozen=True):
    """The content of a segment.

    Attributes:
        sections: In the order in which they lie.
        block_bytes: Length of all blocks but the last, which may be shorter.
        blocks: One CRC-32C a block of all bytes before the trailer, 4 bytes each, big-endian.
    """

    sections: tuple[SectionPlace, ...]
    block_bytes: BlockBytes
    blocks: bytes


def header() -> bytes:
    """The first bytes of a segment."""
    return _HEADER.pack(MAGIC, VERSION)


def encode_trailer(trailer: Trailer) -> bytes:
    """The last bytes of a segment."""
    body = msgspec.msgpack.encode(trailer)
    return body + _TAIL.pack(crc32c(body), len(body), VERSION, MAGIC)


def decode_trailer(
    size: int, read: Callable[[int, int], memoryview], location: str
) -> tuple[Trailer, int]:
    """The content of a segment, and where its trailer begins.

    Args:
        size: Length of the segment in bytes.
        read: Reads bytes by offset and length.
        location: The file, for errors.

    Raises:
        CheckpointCorruptedError: The bytes are no segment, were cut or changed, or have numbers that can't be.
        UnsupportedFormatError: The bytes are of a newer version.
    """
    if size < _HEADER.size + _TAIL.size:
        raise CheckpointCorruptedError(f"{size} bytes are no segment", location)
    magic, version_ahead = _HEADER.unpack(read(0, _HEADER.size))
    if magic != MAGIC:
        raise CheckpointCorruptedError(f"{size} bytes are no segment", location)
    expected, length, version, magic = _TAIL.unpack(read(size - _TAIL.size, _TAIL.size))
    if magic != MAGIC:
        raise CheckpointCorruptedError(f"segment is cut off at {size} bytes", location)
    if version != version_ahead:
        message = f"segment of format versions {version_ahead} and {version} at its two ends"
        raise CheckpointCorruptedError(message, location)
    if version != VERSION:
        message = f"segment of format version {version}; this Holdfast reads version {VERSION}"
        raise UnsupportedFormatError(f"{message}: upgrade Holdfast", location)
    start = size - _TAIL.size - length
    if start < _HEADER.size:
        raise CheckpointCorruptedError(
            f"trailer of {length} bytes in a segment of {size}", location
        )
    body = read(start, length)
    actual = crc32c(body)
    if actual != expected:
        message = f"trailer has checksum {actual:08x}, expected {expected:08x} (crc32c)"
        raise CheckpointCorruptedError(message, location)
    try:
        trailer = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptedError(f"trailer can't be decoded ({error})", location) from error
    flaw = _flaw(trailer, start)
    if flaw is not None:
        raise CheckpointCorruptedError(f"trailer can't be right: {flaw}", location)
    return trailer, start


def flaw_of_blocks(
    trailer: Trailer, numbers: Sequence[int], blocks: Iterable[memoryview]
) -> str | None:
    """What is wrong with the first bad block; None if none is.

    Args:
        trailer: Has the checksums.
        numbers: Numbers of the blocks, which count from the segment's beginning.
        blocks: The bytes of each.
    """
    if not numbers:
        return None
    expected = np.frombuffer(trailer.blocks, ">u4").take(numbers)
    actual = np.fromiter(map(crc32c, blocks), np.int64, len(numbers))
    bad = (expected != actual).nonzero()[0]
    if not len(bad):
        return None
    at = int(bad[0])
    start = numbers[at] * trailer.block_bytes
    return (
        f"block {numbers[at]} (from byte {start} on) has checksum {actual[at]:08x}, "
        f"expected {expected[at]:08x} (crc32c)"
    )


_DECODER = message_pack_decoder(Trailer)


def _flaw(trailer: Trailer, end: int) -> str | None:
    """Which number of the trailer contradicts another, or the `end` of what it is about; None if none does."""
    if len(trailer.blocks) != 4 * -(-end // trailer.block_bytes):
        return f"checksums of {len(trailer.blocks) // 4} blocks for {end} bytes"
    for number, section in enumerate(trailer.sections):
        for what, (offset, length) in _parts(section):
            if offset < _HEADER.size or offset + length > end:
                return f"{what} of section {number} is bytes {offset} to {offset + length} of {end}"
        for column in section.columns:
            flaw = _flaw_of_column(column, section.rows)
            if flaw is not None:
                return f"column {column.name!r} of section {number} has {flaw}"
        directory = section.directory
        if directory is not None and (directory.place[1] % 4 or directory.place[1] < 8):
            return f"directory of section {number} has {directory.place[1]} bytes"
        if section.filter is not None and not section.filter.place[1]:
            return f"filter of section {number} is empty"
    return None


def _parts(section: SectionPlace) -> list[tuple[str, tuple[int, int]]]:
    parts = [("whole", section.place)]
    parts += [(column.name, place) for column in section.columns for place in column.buffers]
    if section.directory is not None:
        parts.append(("directory", section.directory.place))
    if section.filter is not None:
        parts.append(("filter", section.filter.place))
    return parts


def _flaw_of_column(column: ColumnPlace, rows: int) -> str | None:
    needed: tuple[int, ...]
    if column.kind in FIXED_KINDS:
        needed = (rows * np.dtype(column.kind).itemsize,)
    elif column.kind in TEXT_KINDS:
        needed = ((rows + 1) * TEXT_KINDS[column.kind], 0)
    elif column.kind == ARROW_KIND:
        needed = ()
    else:
        return f"kind {column.kind!r}, which no column has"
    lengths = tuple(length for _, length in column.buffers)
    if len(lengths) != len(needed) or any(a < b for a, b in zip(lengths, needed, strict=True)):
        return f"buffers of {lengths} bytes for {rows} rows"
    return None


def column_kind(type: Any, dtype: np.dtype[Any] | None) -> str:
    """The kind of a column without nulls.

    Args:
        type: Arrow's type.
        dtype: How NumPy holds the column, if it does.
    """
    if dtype is not None:
        return dtype.str
    return str(type) if str(type) in TEXT_KINDS else ARROW_KIND
