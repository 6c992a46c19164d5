"""Decompressed sizes of the record batches of an Arrow IPC file, read before anything is decompressed.

A compressed buffer begins with its decompressed length, and Arrow allocates that many bytes without a check: a block of
a hundred kilobytes can claim gigabytes. pyarrow exposes neither these lengths nor the positions of batches, so this
module reads the few fields of Arrow's FlatBuffers that have them:

    file       ARROW1 · messages · footer · length of the footer (4) · ARROW1
    Footer     dictionaries (2) and record batches (3): vectors of Block
    Block      offset (8) · length of the message (4) · padding (4) · length of the body (8)
    Message    type of the header (1) · header (2)
    RecordBatch  rows (0) · buffers (2), a vector of offset (8) and length (8) in the body · compression (3)

Source:
    Arrow, format/File.fbs and format/Message.fbs.
"""

import struct
from collections.abc import Callable

import pyarrow as pa

Bytes = bytes | memoryview

Read = Callable[[int, int], Bytes]
"""Reads bytes of the file, by offset and length."""

Block = tuple[int, int, int]
"""The place of a message: its offset, its length and that of its body."""

_TAIL = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_MARK = struct.Struct("<Ii")
_CONTINUES = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_NOT_COMPRESSED = -1

_int16 = struct.Struct("<H").unpack_from
_int32 = struct.Struct("<i").unpack_from
_int64 = struct.Struct("<q").unpack_from

_NOT_READABLE = (struct.error, IndexError)


def blocks_of(read: Read, length: int) -> tuple[list[Block], list[Block]]:
    """Return the places of the dictionaries and of the record batches of a file of `length` bytes.

    Raises `ValueError` if the bytes are not an Arrow file, a block is outside it, or the blocks together are larger.
    """
    try:
        size, _ = _TAIL.unpack(read(length - _TAIL.size, _TAIL.size))
        if not 0 < size <= length - _TAIL.size:
            raise ValueError(f"a footer of {size} bytes")
        footer = read(length - _TAIL.size - size, size)
        dictionaries, batches = (
            [_BLOCK.unpack(item) for item in _vector(footer, _table(footer, 0), field, _BLOCK.size)]
            for field in (2, 3)
        )
    except _NOT_READABLE as error:
        raise ValueError(f"a footer that can't be read ({error})") from error
    total = 0
    for offset, message, body in (*dictionaries, *batches):
        total += message + body
        if min(offset, message, body) < 0 or offset + message + body > length:
            raise ValueError(f"a block of bytes {offset} to {offset + message + body} of {length}")
    if total > length:
        raise ValueError(f"blocks of {total} bytes in a file of {length}")
    return dictionaries, batches


def check_block(read: Read, block: Block, max_bytes: int) -> None:
    """Refuse a block that would have more than `max_bytes` once it is decompressed; 0 refuses every compressed block.

    Raises `ValueError` if the block would be larger, or is not a block.
    """
    offset, length, body = block
    total = 0
    try:
        message = read(offset, length)
        mark, _ = _MARK.unpack_from(message)
        batch = _compressed_batch(message, _MARK.size if mark == _CONTINUES else 4)
        if not batch:
            return
        for item in _vector(message, batch, 2, _BUFFER.size):
            start, size = _BUFFER.unpack(item)
            if min(start, size) < 0 or start + size > body:
                raise ValueError(f"a buffer of bytes {start} to {start + size} of {body}")
            if size >= 8:
                (grown,) = _int64(read(offset + length + start, 8))
                total += size if grown == _NOT_COMPRESSED else max(grown, 0)
    except _NOT_READABLE as error:
        raise ValueError(f"a message that can't be read ({error})") from error
    if total > max_bytes:
        text = f"{body} compressed bytes claim to be {total}, and a block has at most {max_bytes}"
        raise ValueError(text)


def block_rows(read: Read, block: Block) -> int:
    """Return the number of rows of a record batch, from its header. Raises `ValueError`."""
    offset, length, _ = block
    try:
        message = read(offset, length)
        start = _MARK.size if _MARK.unpack_from(message)[0] == _CONTINUES else 4
        header = _field(message, _table(message, start), 2)
        rows = _field(message, _table(message, header), 0)
        return int(_int64(message, rows)[0]) if rows else 0
    except _NOT_READABLE as error:
        raise ValueError(f"a message that can't be read ({error})") from error


def check_blocks(file: pa.Buffer, max_bytes: int) -> None:
    """Check every block of a file in memory as `check_block` does. Raises `ValueError`."""
    view = memoryview(file).cast("B")

    def read(offset: int, size: int) -> memoryview:
        return view[offset : offset + size]

    for blocks in blocks_of(read, len(view)):
        for block in blocks:
            check_block(read, block, max_bytes)


def refuse_compressed(stream: bytes) -> None:
    """Refuse an Arrow IPC stream in which a message is compressed.

    Raises `ValueError` if a message is compressed, or the bytes are not an IPC stream.
    """
    at = 0
    try:
        while at < len(stream):
            mark, length = _MARK.unpack_from(stream, at)
            if mark != _CONTINUES or length <= 0:
                break  # the end of the stream, where Arrow stops too
            at += _MARK.size
            if _compressed_batch(stream, at):
                raise ValueError("a message is compressed")
            body = _field(stream, _table(stream, at), 3)
            at += length + max(0, _int64(stream, body)[0] if body else 0)
    except _NOT_READABLE as error:
        raise ValueError(f"a message that can't be read ({error})") from error


def _compressed_batch(data: Bytes, start: int) -> int:
    """Return the position of the batch of the message that begins at `start`; 0 without a batch or compression."""
    message = _table(data, start)
    kind, header = _field(data, message, 1), _field(data, message, 2)
    if not (kind and header) or data[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = _table(data, header)
    if data[kind] == _DICTIONARY_BATCH:
        inner = _field(data, batch, 1)
        batch = _table(data, inner) if inner else 0
    return batch if batch and _field(data, batch, 3) else 0


def _table(data: Bytes, position: int) -> int:
    """Return the position of the table or vector that a position refers to."""
    return position + int(_int32(data, position)[0])


def _field(data: Bytes, table: int, field: int) -> int:
    """Return the position of a field of a table; 0 if the table lacks it."""
    fields = table - _int32(data, table)[0]
    at = 4 + 2 * field
    if at >= _int16(data, fields)[0]:
        return 0
    offset = int(_int16(data, fields + at)[0])
    return table + offset if offset else 0


def _vector(data: Bytes, table: int, field: int, width: int) -> list[Bytes]:
    """Return the items of a vector, which are `width` bytes each."""
    position = _field(data, table, field)
    if not position:
        return []
    start = _table(data, position)
    (count,) = _int32(data, start)
    start += 4
    if count < 0 or start + count * width > len(data):
        raise IndexError("a vector is cut off")
    return [data[at : at + width] for at in range(start, start + count * width, width)]
