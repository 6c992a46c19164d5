"""How many bytes a record batch of an Arrow IPC file takes once it is decompressed, before anything is decompressed.

A compressed buffer begins with its decompressed length, and Arrow allocates that many bytes on its word: a block of
a hundred kilobytes can ask for gigabytes. pyarrow shows neither these lengths nor where batches are, so the few
fields of Arrow's FlatBuffers that say it are read here:

    file       ARROW1 · messages · footer · length of the footer (4) · ARROW1
    Footer     dictionaries (2) and record batches (3): vectors of Block
    Block      offset (8) · length of the message (4) · padding (4) · length of the body (8)
    Message    type of the header (1) · header (2)
    RecordBatch  buffers (2), a vector of offset (8) and length (8) in the body · compression (3)

Source:
    Arrow, format/File.fbs and format/Message.fbs.
"""

import struct
from collections.abc import Callable, Iterator

import pyarrow as pa

Read = Callable[[int, int], bytes | memoryview]
"""Reads bytes of the file, by offset and length."""

Block = tuple[int, int, int]
"""Where a message is: its offset, its length and that of its body."""

_TAIL = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_LENGTH = struct.Struct("<q")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_NOT_COMPRESSED = -1


def blocks_of(read: Read, length: int) -> tuple[list[Block], list[Block]]:
    """Return where the dictionaries and the record batches of a file are.

    Args:
        read: Reads bytes of the file.
        length: Length of the file in bytes.

    Raises:
        ValueError: The bytes are no Arrow file, or a block is not inside of it.
    """
    try:
        size, _ = _TAIL.unpack(read(length - _TAIL.size, _TAIL.size))
        if not 0 < size <= length - _TAIL.size:
            raise ValueError(f"a footer of {size} bytes")
        footer = _FlatBuffer(read(length - _TAIL.size - size, size))
        table = footer.root()
        dictionaries, batches = (
            [_BLOCK.unpack(item) for item in footer.vector(table, field, _BLOCK.size)]
            for field in (2, 3)
        )
    except (struct.error, IndexError) as error:
        raise ValueError(f"a footer that can't be read ({error})") from error
    for offset, message, body in (*dictionaries, *batches):
        if min(offset, message, body) < 0 or offset + message + body > length:
            raise ValueError(f"a block of bytes {offset} to {offset + message + body} of {length}")
    return dictionaries, batches


def check_block(read: Read, block: Block, most: int) -> None:
    """Refuse a block that would take more than so many bytes when it is decompressed.

    Args:
        read: Reads bytes of the file.
        block: Where the block is.
        most: How many bytes; 0 refuses every compressed block.

    Raises:
        ValueError: It would, or it is no block.
    """
    offset, message, body = block
    prefix = 8 if bytes(read(offset, min(message, 4))) == b"\xff\xff\xff\xff" else 4
    _check_message(
        read(offset + prefix, max(0, message - prefix)),
        lambda start, size: read(offset + message + start, size),
        body,
        most,
    )


def check_blocks(file: pa.Buffer, most: int) -> None:
    """Check every block of a file in memory as `check_block` does. Raises `ValueError`."""
    view = memoryview(file).cast("B")

    def read(offset: int, size: int) -> memoryview:
        return view[offset : offset + size]

    for blocks in blocks_of(read, len(view)):
        for block in blocks:
            check_block(read, block, most)


def check_stream(data: pa.Buffer, most: int) -> None:
    """Check every message of an Arrow IPC stream in memory as `check_block` does. Raises `ValueError`."""
    for message in pa.ipc.MessageReader.open_stream(data):
        body = memoryview(message.body or b"")
        _check_message(
            memoryview(message.metadata),
            lambda start, size, body=body: body[start : start + size],
            len(body),
            most,
        )


def _check_message(metadata: bytes | memoryview, read: Read, body: int, most: int) -> None:
    total = 0
    try:
        for start, length in _compressed_buffers(_FlatBuffer(metadata)):
            if start < 0 or length < 0 or start + length > body:
                raise ValueError(f"a buffer of bytes {start} to {start + length} of {body}")
            if length >= _LENGTH.size:
                (size,) = _LENGTH.unpack(read(start, _LENGTH.size))
                total += length if size == _NOT_COMPRESSED else max(size, 0)
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message that can't be read ({error})") from error
    if total > most:
        raise ValueError(
            f"{body} compressed bytes would be {total}, and no block has more than {most}"
        )


def _compressed_buffers(message: "_FlatBuffer") -> Iterator[tuple[int, int]]:
    """Offset and length of each buffer in the body; none if they are not compressed."""
    table = message.root()
    kind, batch = message.byte(table, 1), message.table(table, 2)
    if kind == _DICTIONARY_BATCH:
        batch = message.table(batch, 1)
    elif kind != _RECORD_BATCH:
        return
    if message.position(batch, 3):
        yield from map(_BUFFER.unpack, message.vector(batch, 2, _BUFFER.size))


class _FlatBuffer:
    """The tables of a FlatBuffer. Raises `struct.error` or `IndexError` where the bytes are no such tables."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data).cast("B")

    def root(self) -> int:
        return self._number("<I", 0)

    def position(self, table: int, field: int) -> int:
        """Where a field of a table is; 0 if it is not there."""
        fields = table - self._number("<i", table)
        at = 4 + 2 * field
        if at + 2 > self._number("<H", fields):
            return 0
        offset = self._number("<H", fields + at)
        return table + offset if offset else 0

    def byte(self, table: int, field: int) -> int:
        position = self.position(table, field)
        return self._number("<B", position) if position else 0

    def table(self, table: int, field: int) -> int:
        position = self.position(table, field)
        if not position:
            raise IndexError("a table is not there")
        return position + self._number("<I", position)

    def vector(self, table: int, field: int, width: int) -> list[memoryview]:
        """The items of a vector, each of so many bytes."""
        if not self.position(table, field):
            return []
        start = self.table(table, field)
        count = self._number("<I", start)
        items = self._data[start + 4 : start + 4 + count * width]
        if len(items) < count * width:
            raise IndexError("a vector is cut off")
        return [items[at : at + width] for at in range(0, len(items), width)]

    def _number(self, kind: str, position: int) -> int:
        if position < 0:
            raise IndexError("a position before the beginning")
        number: int = struct.unpack_from(kind, self._data, position)[0]
        return number
