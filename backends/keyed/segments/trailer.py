"""The bytes of a segment around its sections: header and trailer. Pure, no I/O.

    offset  length  meaning
    0       8       magic, "HOLDSEGM" in ASCII
    8       4       format version, unsigned, big-endian
    12      52      zeros
    64      ...     all sections, directories, samples and filters, each at a multiple of 64, with zeros between them
    t       n       trailer: a MessagePack map by field names
    t+n     4       n, unsigned, big-endian
    t+n+4   4       format version, again
    t+n+8   8       magic, again
    t+n+16  4       CRC-32C of the bytes from t on, big-endian

The trailer has the place of everything else, and a checksum for each block of the bytes before it. So a reader that
begins with the last bytes, the tail, needs one request to know where each row may be. The tail starts with the block in
which the first side table starts, because only whole blocks can be verified; without side tables it is the trailer.
Manifests have its length.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.columns import numpy_type
from holdfast.common import BlockBytes, Count, Frame, check_crc32c, crc32c, message_pack_decoder
from holdfast.errors import CheckpointCorruptedError

FRAME = Frame(b"HOLDSEGM", 1, "segment")
"""Magic and version are at both ends of a segment; the checksum at the end is that of the trailer."""

ALIGNMENT = 64
"""Sections and side tables start at a multiple of this."""

BLOCK_BYTES = 1 << 16
"""Bytes under one checksum. Reading a column reads and verifies whole blocks."""

BLOCK_BYTES_OF_LARGE_ROWS = 1 << 14
"""Bytes under one checksum in a segment of large rows: a larger block would have rows that were not requested."""

LARGE_ROW_BYTES = 1 << 10
"""Rows are large if they have more bytes than this on average."""

_HEADER = struct.Struct(">8sI52x")
_END = struct.Struct(">II8s")
_CHECKSUM = struct.Struct(">I")

_Bytes = tuple[Count, Count]
"""Offset in the segment, and length, in bytes."""

_Shift = Annotated[int, msgspec.Meta(ge=0, le=63)]

FIXED_KINDS = frozenset(
    {"|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
)
"""Kinds of columns that are contiguous numbers: NumPy's name of the type."""

TEXT_KINDS = {"string": 4, "binary": 4, "large_string": 8, "large_binary": 8}
"""Kinds of columns that are offsets and bytes, with the width of an offset."""

ARROW_KIND = "arrow"
"""The kind of all other columns: their places are in Arrow's metadata of the section."""


class ColumnPlace(msgspec.Struct, frozen=True):
    """The place of a column's buffers.

    Attributes:
        name: The column's name.
        kind: One of `FIXED_KINDS` or `TEXT_KINDS`, without nulls; else `ARROW_KIND`.
        buffers: The values, or the offsets and then the bytes; empty for a column of `ARROW_KIND`.
    """

    name: str
    kind: str
    buffers: tuple[_Bytes, ...]


class DirectoryPlace(msgspec.Struct, frozen=True):
    """The place of a directory: positions of rows, unsigned, 4 bytes each, little-endian."""

    place: _Bytes
    shift: _Shift
    first: Count


class SamplesPlace(msgspec.Struct, frozen=True):
    """The place of samples: sort keys, unsigned, 8 bytes each, little-endian, one for each `step` rows."""

    place: _Bytes
    step: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class FilterPlace(msgspec.Struct, frozen=True):
    """The place of a filter: one bit per prefix."""

    place: _Bytes
    shift: _Shift
    first_byte: Count


class SectionPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a section and of its side tables.

    Attributes:
        table: The name of the table that the rows belong to.
        rows: Number of rows.
        place: The section itself, an Arrow IPC file of one record batch.
        columns: The places of its columns.
        directory: The first row of each prefix.
        samples: Some of the sort keys, if there is no directory.
        filter: The prefixes that occur.
    """

    table: str
    rows: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    place: _Bytes
    columns: tuple[ColumnPlace, ...]
    directory: DirectoryPlace | None = None
    samples: SamplesPlace | None = None
    filter: FilterPlace | None = None


class Trailer(msgspec.Struct, frozen=True):
    """The content of a segment.

    Attributes:
        sections: In the order of their places.
        block_bytes: Length of every block except the last, which may be shorter.
        blocks: The CRC-32C of each block of the bytes before the trailer, 4 bytes each, big-endian.
    """

    sections: tuple[SectionPlace, ...]
    block_bytes: BlockBytes
    blocks: bytes


def header() -> bytes:
    return _HEADER.pack(FRAME.magic, FRAME.version)


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the last bytes of a segment."""
    body = msgspec.msgpack.encode(trailer)
    content = body + _END.pack(len(body), FRAME.version, FRAME.magic)
    return content + _CHECKSUM.pack(crc32c(content))


def decode_trailer(
    size: int, read: Callable[[int, int], memoryview], location: str
) -> tuple[Trailer, int]:
    """Read the trailer of a segment of `size` bytes; return it, and its offset. `read` takes an offset and a length.

    Only the end of the segment is read: the trailer's checksums cover the header, too.

    Raises:
        CheckpointCorruptedError: The bytes are not a segment, were cut or changed, or have invalid numbers.
        UnsupportedFormatError: The version is another one.
    """
    end = size - _END.size - _CHECKSUM.size
    if end < _HEADER.size:
        raise CheckpointCorruptedError(f"{size} bytes are not a segment", location)
    last = read(end, _END.size + _CHECKSUM.size)
    length, version, magic = _END.unpack_from(last)
    if magic != FRAME.magic:
        raise CheckpointCorruptedError(f"{size} bytes are not a whole segment", location)
    start = end - length
    if start < _HEADER.size:
        message = f"trailer of {length} bytes in a segment of {size}"
        raise CheckpointCorruptedError(message, location)
    content = read(start, length + _END.size)
    (expected,) = _CHECKSUM.unpack_from(last, _END.size)
    check_crc32c(content, expected, "trailer", location)
    FRAME.check_version(version, location)
    body = content[:length]
    try:
        trailer = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptedError(f"trailer can't be decoded ({error})", location) from error
    contradiction = _find_contradiction(trailer, start)
    if contradiction is not None:
        raise CheckpointCorruptedError(f"trailer is invalid: {contradiction}", location)
    return trailer, start


def find_corrupt_block(
    trailer: Trailer, numbers: Sequence[int], blocks: Iterable[memoryview]
) -> str | None:
    """Verify blocks, given by their numbers in the segment and their bytes; describe the first corrupt one, or return None."""
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
        f"block {numbers[at]} (from byte {start}) has checksum {actual[at]:08x}, "
        f"expected {expected[at]:08x} (crc32c)"
    )


_DECODER = message_pack_decoder(Trailer)


def _find_contradiction(trailer: Trailer, end: int) -> str | None:
    """Describe the first number that contradicts another one, or the trailer's offset `end`; None if none does."""
    if len(trailer.blocks) != 4 * -(-end // trailer.block_bytes):
        return f"checksums of {len(trailer.blocks) // 4} blocks for {end} bytes"
    for number, section in enumerate(trailer.sections):
        for name, (offset, length) in _places(section):
            if offset < _HEADER.size or offset + length > end:
                return f"{name} of section {number} is bytes {offset} to {offset + length} of {end}"
        for column in section.columns:
            contradiction = _find_wrong_buffers(column, section.rows)
            if contradiction is not None:
                return f"column {column.name!r} of section {number} has {contradiction}"
        directory = section.directory
        if directory is not None and (directory.place[1] % 4 or directory.place[1] < 8):
            return f"directory of section {number} has {directory.place[1]} bytes"
        samples = section.samples
        if samples is not None and samples.place[1] != 8 * -(-section.rows // samples.step):
            return f"samples of section {number} are {samples.place[1]} bytes"
        if section.filter is not None and not section.filter.place[1]:
            return f"filter of section {number} is empty"
    return None


def _places(section: SectionPlace) -> list[tuple[str, tuple[int, int]]]:
    places = [("data", section.place)]
    places += [(column.name, place) for column in section.columns for place in column.buffers]
    side_tables = {
        "directory": section.directory,
        "samples": section.samples,
        "filter": section.filter,
    }
    places += [(name, table.place) for name, table in side_tables.items() if table is not None]
    return places


def _find_wrong_buffers(column: ColumnPlace, rows: int) -> str | None:
    needed: tuple[int, ...]
    if column.kind in FIXED_KINDS:
        needed = (rows * np.dtype(column.kind).itemsize,)
    elif column.kind in TEXT_KINDS:
        needed = ((rows + 1) * TEXT_KINDS[column.kind], 0)
    elif column.kind == ARROW_KIND:
        needed = ()
    else:
        return f"unknown kind {column.kind!r}"
    lengths = tuple(length for _, length in column.buffers)
    if len(lengths) != len(needed) or any(a < b for a, b in zip(lengths, needed, strict=True)):
        return f"buffers of {lengths} bytes for {rows} rows"
    return None


def column_kind(type: pa.DataType) -> str:
    """Return the kind of a column without nulls."""
    dtype = numpy_type(type)
    if dtype is not None:
        return dtype.str
    return str(type) if str(type) in TEXT_KINDS else ARROW_KIND
