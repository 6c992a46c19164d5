"""How one state lies in a snapshot's stream: an Arrow IPC file, one row an element.

The IPC file format, not the stream format, because its footer leads to single record batches:
a reader that needs some of the rows can skip the rest.
"""

import io
from collections.abc import Sequence
from typing import BinaryIO, Literal

import pyarrow as pa

from holdfast.backends._bounded_stream import BoundedInputStream, StateSource
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import (
    ByteStreamStateHandle,
    CheckpointStateOutputStream,
    StreamStateHandle,
    read_into,
)

Compression = Literal["zstd", "lz4"]

LIST_COLUMNS = ("element",)
MAP_COLUMNS = ("key", "value")


def write_section(
    stream: CheckpointStateOutputStream,
    schema: pa.Schema,
    columns: Sequence[Sequence[pa.Array]],
    compression: Compression | None = None,
) -> int:
    """Append a section with these columns; returns its length in bytes."""
    start = stream.tell()
    # A file must keep to one dictionary; chunks that came from different batches have several.
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True, compression=compression)
    arrays = [
        pa.chunked_array(chunks, field.type) for chunks, field in zip(columns, schema, strict=True)
    ]
    with pa.PythonFile(_Section(stream), mode="w") as sink:
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            writer.write_table(pa.table(arrays, schema))
    return stream.tell() - start


def read_section(section: pa.Buffer, *, first: int, count: int, name: str) -> pa.Table:
    """The rows of a section that count, without a copy where it is not compressed.

    Raises:
        CheckpointCorruptedError: It is no section, or has too few rows.
    """
    try:
        with pa.ipc.open_file(section) as reader:
            rows = reader.read_all()
            names = tuple(rows.column_names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(f"state {name!r} can't be decoded ({error})") from error
    if names not in (LIST_COLUMNS, MAP_COLUMNS):
        message = f"state {name!r} has columns {names}, which no state has"
        raise CheckpointCorruptedError(message)
    if first < 0 or count < 0 or first + count > len(rows):
        message = f"state {name!r} has {len(rows)} elements, expected {first + count}"
        raise CheckpointCorruptedError(message)
    return rows.slice(first, count)


def section_of(handle: StreamStateHandle, stream: BinaryIO, offset: int, length: int) -> pa.Buffer:
    """The bytes of a section: those of the handle itself, or read into memory of Arrow's.

    Raises:
        EOFError: The stream ends before.
    """
    if isinstance(handle, ByteStreamStateHandle) and offset + length <= handle.size:
        return pa.py_buffer(handle.data).slice(offset, length)
    section = pa.allocate_buffer(length)  # from a pool: new pages would cost more than reading
    stream.seek(offset)
    read_into(stream, memoryview(section).cast("B"))
    return section


def read_schema(handle: StreamStateHandle, offset: int, length: int, *, name: str) -> pa.Schema:
    """How the columns of a section are stored; reads its footer alone.

    Raises:
        CheckpointNotFoundError: The state file is gone.
        CheckpointCorruptedError: It is no section.
    """
    try:
        with StateSource(handle) as source:
            section = io.BufferedReader(BoundedInputStream(source, offset, length))
            with pa.ipc.open_file(pa.PythonFile(section)) as reader:
                return reader.schema
    except (pa.ArrowException, OSError) as error:
        raise CheckpointCorruptedError(f"state {name!r} can't be decoded ({error})") from error


class _Section:
    """The part of a stream that a section fills, as a file whose positions begin at 0.

    Arrow notes positions in the section's footer, and closes the file that it was given;
    closing our stream would discard it.
    """

    closed = False
    _failed = False

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._start = stream.tell()

    def write(self, data: bytes) -> int:
        if self._failed:
            # Arrow writes a footer even behind an error; a second error would hide the first.
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
