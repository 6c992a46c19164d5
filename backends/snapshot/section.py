"""Sections: the stored form of one operator state in a snapshot's stream, an Arrow IPC file with a row for each element.

It is the IPC file format, not the stream format, because its footer has the places of the record batches: a reader that
needs some of the rows can skip the rest.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import BinaryIO, Literal, Protocol, Self, cast

import pyarrow as pa

from holdfast.backends.arrow import (
    Block,
    block_rows,
    blocks_of,
    check_block,
    check_blocks,
    check_memory,
    size_of,
    trim_rows,
)
from holdfast.backends.serializers import stored_serializer
from holdfast.common import raise_shortage, read_exactly, read_into
from holdfast.errors import CheckpointCorruptedError, CheckpointError, InvalidRequestError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import ByteStreamStateHandle, StreamStateHandle


def location_of(handle: StreamStateHandle) -> str:
    """Return the URI of a stream's file, for errors; empty if the bytes are in the handle."""
    return getattr(handle, "uri", "")


class StateSource:
    """The stream of a handle, which the first reader opens and all readers share."""

    def __init__(self, handle: StreamStateHandle) -> None:
        self.size = handle.size
        self.location = location_of(handle)
        self._handle = handle
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def readinto(self, position: int, buffer: memoryview) -> int:
        """Read some bytes from a position; returns their number, 0 at the end."""
        if self._stream is None:
            self._stream = self._handle.open_input_stream()
        self._stream.seek(position)
        count: int = self._stream.readinto(buffer)  # type: ignore[attr-defined]  # all streams have it
        return count


class BoundedInputStream(io.RawIOBase):
    """A part of a source, as a file."""

    def __init__(self, source: StateSource, offset: int, length: int) -> None:
        self._source = source
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise InvalidRequestError(f"position {base + offset} is before the partition")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # typeshed's buffer is wider
        wanted = memoryview(buffer).cast("B")[: self._remaining()]
        if not wanted:
            return 0
        count = self._source.readinto(self._offset + self._position, wanted)
        if not count:
            message = f"state ends {self._remaining()} bytes before its partition does"
            raise CheckpointCorruptedError(message, self._source.location)
        self._position += count
        return count

    def readall(self) -> bytes:
        return bytes(read_exactly(cast("BinaryIO", self), self._remaining()))

    def _remaining(self) -> int:
        end = self._offset + self._length
        if self._offset < 0 or self._length < 0 or end > self._source.size:
            message = (
                f"partition from {self._offset} to {end} is outside of the "
                f"{self._source.size} bytes of state"
            )
            raise CheckpointCorruptedError(message, self._source.location)
        return max(0, self._length - self._position)


Compression = Literal["zstd", "lz4"]

BLOCK_BYTES = 16 << 20
"""Approximate maximum size of a block of rows, which is read into memory as a whole."""

MAX_COMPRESSED_BYTES = 2 * BLOCK_BYTES
"""Maximum size of a block that is compressed. A section with a larger block, such as one of a large value, is not compressed."""

_MAX_DECOMPRESSED_BYTES = 2 * MAX_COMPRESSED_BYTES
"""Maximum size that a reader accepts for a decompressed block, including the padding that Arrow adds to each buffer."""

_ALIGNMENT = 8  # bytes; Arrow aligns its buffers

_MAGIC_BYTES = 8  # `ARROW1` and padding, before the first message

LIST_COLUMNS = ("element",)
MAP_COLUMNS = ("key", "value")


class SectionStream(Protocol):
    """The methods of a stream that a section is written to."""

    def write(self, data: BytesLike, /) -> int: ...

    def tell(self) -> int: ...


def write_section(
    stream: SectionStream, rows: pa.Table, compression: Compression | None = None
) -> int:
    """Append a section with rows; returns its length in bytes."""
    rows = trim_rows(rows)
    start = stream.tell()
    block_rows = max(1, len(rows) * BLOCK_BYTES // max(1, size_of(rows)))
    if compression is not None and any(
        size_of(block) > MAX_COMPRESSED_BYTES for block in rows.to_batches(block_rows)
    ):
        compression = None
    # A file has a single dictionary for a column; chunks of different batches have several.
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True, compression=compression)
    with pa.PythonFile(_Section(stream), mode="w") as sink:
        with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
            writer.write_table(rows, max_chunksize=block_rows)
    return stream.tell() - start


def read_section(
    section: pa.Buffer, *, first: int, count: int, name: str, location: str = ""
) -> pa.Table:
    """Read a range of rows of a section, without a copy unless it is compressed.

    Raises `CheckpointCorruptedError`, with the state and its file, if the bytes are not a section or have too few rows.
    """
    with _decoding(name, location):
        check_blocks(section, _MAX_DECOMPRESSED_BYTES)
        with pa.ipc.open_file(section) as reader:
            _check_columns(reader.schema, name, location)
            rows = reader.read_all()
            for column in rows.columns:
                for chunk in column.chunks:
                    check_memory(chunk)
    if first < 0 or count < 0 or first + count > len(rows):
        message = f"state {name!r} has {len(rows)} elements, expected {first + count}"
        raise CheckpointCorruptedError(message, location)
    return rows.slice(first, count)


def section_of(handle: StreamStateHandle, stream: BinaryIO, offset: int, length: int) -> pa.Buffer:
    """Return the bytes of a section, or raise EOFError: without a copy if they are in memory, else in Arrow's memory."""
    is_inline = isinstance(handle, ByteStreamStateHandle)
    size = handle.size if is_inline else stream.seek(0, io.SEEK_END)
    if offset < 0 or length < 0 or offset + length > size:
        raise EOFError(f"bytes {offset} to {offset + length} of a stream of {size}")
    if isinstance(handle, ByteStreamStateHandle):
        return _align(pa.py_buffer(handle.data).slice(offset, length))
    if isinstance(stream, pa.BufferReader):
        stream.seek(offset)
        section = stream.read_buffer(length)
        # A small part of a mapped file would keep all of it, as long as the state exists.
        return _align(section) if 2 * length >= stream.size() else _copy(section)
    section = pa.allocate_buffer(length)  # from a pool: new pages would cost more than reading
    stream.seek(offset)
    read_into(stream, memoryview(section).cast("B"))
    return section


def read_schema(handle: StreamStateHandle, offset: int, length: int, *, name: str) -> pa.Schema:
    """Read the stored columns of a section; reads no rows.

    Raises:
        CheckpointNotFoundError: The state file is gone.
        CheckpointCorruptedError: The bytes are not a section.
    """
    with _open(handle, offset, length, name) as section:
        return section.schema


def blocks_and_rows(
    handle: StreamStateHandle, offset: int, length: int, *, name: str
) -> tuple[int, int]:
    """Count the blocks and the rows of a section; reads no rows. Raises what `read_schema` does."""
    with _open(handle, offset, length, name) as section:
        return len(section.blocks), sum(section.count_rows(block) for block in section.blocks)


def read_blocks(
    handle: StreamStateHandle,
    offset: int,
    length: int,
    *,
    name: str,
    blocks: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the blocks of rows of a section, one at a time: all, or a range of their indices without its end.

    Raises what `read_schema` does.
    """
    with _open(handle, offset, length, name) as section:
        first, end = blocks or (0, len(section.blocks))
        for block in section.blocks[first:end]:
            rows = section.read_rows(block)
            for column in rows.columns:
                check_memory(column)
            yield rows


@contextmanager
def _open(
    handle: StreamStateHandle, offset: int, length: int, name: str
) -> Iterator["_SectionReader"]:
    with _decoding(name, location_of(handle)), StateSource(handle) as source:
        section = _SectionReader(BoundedInputStream(source, offset, length), length)
        _check_columns(section.schema, name, location_of(handle))
        yield section


class _SectionReader:
    """Reads single blocks of a section.

    Arrow's own file reader would read a Python stream in one of its threads. If the interpreter ends before this
    thread has released its last buffer, the process aborts (arrow#34314).

    Attributes:
        schema: The columns.
        blocks: The places of the blocks of rows.
    """

    def __init__(self, section: BoundedInputStream, length: int) -> None:
        self._section = io.BufferedReader(section)
        self._dictionaries, self.blocks = blocks_of(self._read, length)
        # A file without its magic and its footer is a stream: the schema, the dictionaries, the blocks of rows.
        first = min((start for start, _, _ in (*self._dictionaries, *self.blocks)), default=length)
        self._head = self._read(_MAGIC_BYTES, first - _MAGIC_BYTES)
        self.schema = pa.ipc.open_stream(self._head).schema

    def count_rows(self, block: Block) -> int:
        """Count the rows of a block; reads its header only."""
        return block_rows(self._read, block)

    def read_rows(self, block: Block) -> pa.RecordBatch:
        """Read the rows of a block. Raises `ValueError` if it is too large once it is decompressed."""
        with pa.ipc.open_stream(self._before_rows + self._read_block(block)) as stream:
            for rows in stream:
                return rows
        raise ValueError(f"no rows at byte {block[0]}")

    @cached_property
    def _before_rows(self) -> bytes:
        return self._head + b"".join(map(self._read_block, self._dictionaries))

    def _read_block(self, block: Block) -> bytes:
        start, message, body = block
        data = self._read(start, message + body)
        check_block(
            lambda offset, size: data[offset - start : offset - start + size],
            block,
            _MAX_DECOMPRESSED_BYTES,
        )
        return data

    def _read(self, start: int, size: int) -> bytes:
        self._section.seek(start)
        return self._section.read(size)


@contextmanager
def _decoding(name: str, location: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise_shortage(error, location)
        message = f"state {name!r} can't be decoded ({error})"
        raise CheckpointCorruptedError(message, location) from error


def _check_columns(schema: pa.Schema, name: str, location: str) -> None:
    names = tuple(schema.names)
    if names not in (LIST_COLUMNS, MAP_COLUMNS):
        message = f"state {name!r} has columns {names}, expected {LIST_COLUMNS} or {MAP_COLUMNS}"
        raise CheckpointCorruptedError(message, location)


def _copy(section: pa.Buffer) -> pa.Buffer:
    copy = pa.allocate_buffer(section.size)
    memoryview(copy).cast("B")[:] = memoryview(section).cast("B")
    return copy


def _align(section: pa.Buffer) -> pa.Buffer:
    """Return the section at an address that Arrow accepts for numbers: sections begin anywhere in a stream."""
    if section.address % _ALIGNMENT == 0:
        return section
    return _copy(section)


class _Section:
    """The part of a stream that a section fills, as a file whose positions begin at 0.

    Arrow writes positions into the section's footer, and closes its file; to close the stream itself would discard it.
    """

    closed = False
    _failed = False

    def __init__(self, stream: SectionStream) -> None:
        self._stream = stream
        self._start = stream.tell()

    def write(self, data: bytes) -> int:
        if self._failed:
            # Arrow writes a footer even after an error; a second error would hide the first.
            return len(data)
        try:
            return self._stream.write(data)
        except BaseException:
            self._failed = True
            raise

    def tell(self) -> int:
        return self._stream.tell() - self._start

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def has_same_form(schema: pa.Schema, other: pa.Schema, state: str) -> bool:
    """Return whether two parts of a state are stored in the same form.

    A class with a new name or module is the same type, except of pickles, which have the name.

    Raises:
        CheckpointCorruptedError: The description of a column's serializer can't be read.
    """
    if schema.equals(other, check_metadata=True):
        return True
    return schema.equals(other) and all(
        _form(field, state) == _form(twin, state) for field, twin in zip(schema, other, strict=True)
    )


def _form(field: pa.Field, state: str) -> tuple[str, str, str]:
    stored = stored_serializer(field, state)
    return stored.kind, stored.form, stored.name if stored.kind == "pickle" else ""
