"""How one state lies in a snapshot's stream: an Arrow IPC file with the elements as one column.

The IPC file format, not the stream format, because its footer leads to single record batches:
a reader that needs some of the rows can skip the rest.
"""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import CheckpointStateOutputStream

_COLUMN = "element"


def write_section(
    stream: CheckpointStateOutputStream, element_type: pa.DataType, chunks: Sequence[pa.Array]
) -> int:
    """Append a section with these elements; returns its length in bytes."""
    schema = pa.schema([pa.field(_COLUMN, element_type)])
    start = stream.tell()
    # A file must keep to one dictionary; chunks that came from different batches have several.
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
    with pa.PythonFile(_Section(stream), mode="w") as sink:
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            writer.write_table(pa.table([pa.chunked_array(chunks, element_type)], schema))
    return stream.tell() - start


def read_section(section: pa.Buffer, *, first: int, count: int, name: str) -> pa.ChunkedArray:
    """The elements of a section that count, without a copy.

    Raises:
        CheckpointCorruptedError: It is no section, or has too few elements.
    """
    try:
        with pa.ipc.open_file(section) as reader:
            elements = reader.read_all().column(_COLUMN)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CheckpointCorruptedError(f"state {name!r} can't be decoded ({error})") from error
    if first + count > len(elements):
        message = f"state {name!r} has {len(elements)} elements, expected {first + count}"
        raise CheckpointCorruptedError(message)
    return elements.slice(first, count)


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
